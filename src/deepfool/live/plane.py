"""A map of the decision regions in a plane through x, as in Figures 4 and 5 of the paper but of the real network.

The plane goes through x, the boundary point that was found, and a second direction. It is classified on a grid that is
coarse at first, and refined only where neighbours differ: a region smaller than a square of the first grid that is
classified in full can be missed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy  # type: ignore[import-untyped]  # its parts are imported when they are first used: they take a while
import torch
from torch import Tensor

from deepfool.attacks.deepfool import deepfool
from deepfool.live.scenes import AT_ONCE, Answer, Scene, cut, send_bytes, send_numbers
from deepfool.norms import norm

FIRST, LAST = 9, 129
"""Points on a side of the coarsest and of the finest grid; each grid has 2 n - 1 points of the last."""
IN_FULL = 0.15
"""Seconds that a whole grid may take: as long as the next one takes less, all its points are classified."""
ENOUGH = 4.0
"""Seconds after which the grid is not refined any more. Not measured: what one waits for without wondering."""
MARGIN = 1.45
"""Half the side of the map, relative to the farther of the two points in it."""
RUNNERS_UP = 3
"""Classes that are tried for the second direction, by their scores at x."""

Grid = np.ndarray[Any, np.dtype[np.int64]]
Shares = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Plane:
    """x + a u + b v, for a and b in [-half, half]; u and v are orthogonal and have l2 norm 1."""

    x: Tensor
    u: Tensor
    v: Tensor
    half: float
    towards: int | None
    """The class that the second direction leads to; None: it is random."""
    other: tuple[float, float] | None
    """Where in the plane that class was reached."""

    def place(self, r: Tensor) -> tuple[float, float]:
        """The coordinates of x + r, projected on the plane."""
        flat = r.flatten().double()
        return float(flat @ self.u), float(flat @ self.v)

    def points(self, where: Tensor) -> Tensor:
        """(n, 2) coordinates as (n, ...) inputs."""
        flat = where[:, :1] * self.u + where[:, 1:] * self.v
        return self.x.double() + flat.reshape(-1, *self.x.shape)

    def ball(self, radius: float, p: float, corners: int = 120) -> list[list[float]]:
        """Where the p-norm ball around x cuts the plane: a circle for p = 2, a polygon for 1 and inf."""
        angle = torch.linspace(0, 2 * math.pi, corners + 1, dtype=torch.float64)
        way = angle.cos()[:, None] * self.u + angle.sin()[:, None] * self.v
        far = radius / norm(way, p)
        return torch.stack([far * angle.cos(), far * angle.sin()], 1).tolist()


def find_plane(scene: Scene, r: Tensor, adv_label: int) -> Plane | None:
    """The plane through x and x + r; None if there is only one direction."""
    flat = r.flatten().double()
    length = float(flat.norm())
    if flat.numel() < 2 or not length > 0:
        return None
    u = flat / length
    towards, second = (None, None) if scene.asked.random_plane else _find_second(scene, adv_label)
    v = None if second is None else _orthogonal(second, u)
    if v is None:
        towards, second = None, None
        noise = torch.randn(flat.numel(), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        if scene.asked.mask is not None:
            noise = noise * scene.asked.mask.flatten()
        v = _orthogonal(noise, u)
        if v is None:
            return None
    other = None if second is None else (float(second @ u), float(second @ v))
    reach = max(length, min(math.hypot(*other), 2.5 * length) if other else 0)
    return Plane(scene.x, u, v, MARGIN * reach, towards, other)


def _orthogonal(way: Tensor, u: Tensor) -> Tensor | None:
    """What is left of a direction without its part along u, with norm 1; None if that is next to nothing."""
    rest = way - (way @ u) * u
    size = float(rest.norm())
    return rest / size if size > 1e-3 * float(way.norm()) and size > 0 else None


def _find_second(scene: Scene, adv_label: int) -> tuple[int | None, Tensor | None]:
    """The class that is nearest after the one that was reached, as DeepFool sees it, and the way to it."""
    order = scene.probabilities(scene.x.unsqueeze(0))[0].argsort(descending=True).tolist()
    others = [k for k in order if k not in (scene.label, adv_label)][:RUNNERS_UP]
    if not others:
        return None, None
    knobs = {**scene.knobs, "target": others, "goal": None}
    many = scene.x.expand(len(others), *scene.x.shape).contiguous()
    found = deepfool(scene.f, many, p=scene.asked.p, max_iter=15, **knobs)
    if not bool(found.fooled.any()):
        return None, None
    i = int(found.norm.argmin())
    return others[i], found.r[i].flatten().double()


def survey(scene: Scene, plane: Plane) -> Iterator[tuple[Grid, Shares]]:
    """Labels and probabilities on finer and finer grids, as long as there is time."""
    began = time.monotonic()

    def classify(where: Tensor) -> tuple[Grid, Shares]:
        # The points themselves are made part by part: all of a grid at once would take gigabytes for photographs.
        parts = cut(where, max(1, AT_ONCE // scene.x.numel()))
        best = [scene.probabilities(plane.points(some)).max(1) for some in parts]
        return torch.cat([each.indices for each in best]).numpy(), torch.cat([each.values for each in best]).numpy()

    n = FIRST
    labels, shares = classify(_grid(n, plane.half))
    labels, shares = labels.reshape(n, n), shares.reshape(n, n)
    each = (time.monotonic() - began) / n**2  # seconds
    while n < LAST:
        n = 2 * n - 1
        whole = n**2 * each < IN_FULL
        labels, shares, doubtful = _spread(labels, shares)
        doubtful = np.ones_like(doubtful) if whole else doubtful
        labels[doubtful], shares[doubtful] = classify(_grid(n, plane.half)[torch.from_numpy(doubtful.ravel())])
        late = time.monotonic() - began > ENOUGH
        if n >= 33 or late:
            yield labels, shares
        if late:
            return


def _grid(n: int, half: float) -> Tensor:
    """(n * n, 2) coordinates; rows from the top (b = half) to the bottom."""
    line = torch.linspace(-half, half, n, dtype=torch.float64)
    b, a = torch.meshgrid(line.flip(0), line, indexing="ij")
    return torch.stack([a.flatten(), b.flatten()], 1)


def _spread(labels: Grid, shares: Shares) -> tuple[Grid, Shares, np.ndarray[Any, np.dtype[np.bool_]]]:
    """A grid twice as fine, with what can be guessed from its neighbours; and where that is doubtful.

    >>> labels, shares, doubtful = _spread(np.array([[0, 0, 0, 1]] * 4), np.ones((4, 4)))
    >>> labels.shape, doubtful[0].tolist()
    ((7, 7), [False, False, False, False, False, True, False])
    """
    n = len(labels)
    fine = 2 * n - 1
    cells = labels[:-1, :-1]
    mixed = (cells != labels[1:, :-1]) | (cells != labels[:-1, 1:]) | (cells != labels[1:, 1:])
    near = np.zeros((fine, fine), bool)
    for row, column in zip(*np.nonzero(mixed), strict=True):
        near[2 * row : 2 * row + 3, 2 * column : 2 * column + 3] = True
    near[::2, ::2] = False
    spread = labels[np.arange(fine)[:, None] // 2, np.arange(fine)[None, :] // 2]
    spread[::2, ::2] = labels
    smooth = scipy.ndimage.zoom(shares, fine / n, order=1)
    smooth[::2, ::2] = shares
    return spread, smooth, near


def place_names(labels: Grid, least: float = 0.012) -> list[tuple[int, float, float]]:
    """(label, column, row) of a name for every region that is large enough: where it has most room around it.

    >>> place_names(np.array([[0] * 9 + [1] * 12] * 21))
    [(0, 0.2, 0.5), (1, 0.7..., 0.5)]
    """
    n, found = len(labels), []
    for label in np.unique(labels):
        regions, count = scipy.ndimage.label(labels == label)
        for k in range(1, count + 1):
            region = regions == k
            if region.sum() < least * n * n:
                continue
            room = scipy.ndimage.distance_transform_edt(np.pad(region, 1))[1:-1, 1:-1]
            rows, columns = np.nonzero(room >= room.max() - 0.5)
            found.append((int(label), float(columns.mean() / (n - 1)), float(rows.mean() / (n - 1))))
    return found


def describe_grid(labels: Grid, shares: Shares) -> dict[str, Any]:
    """A grid as the page reads it."""
    classes, index = np.unique(labels, return_inverse=True)
    return {
        "n": len(labels), "classes": classes[:256].tolist(),
        "labels": send_bytes(index.reshape(labels.shape).clip(0, 255).astype(np.uint8)),
        "shares": send_bytes((255 * shares.clip(0, 1)).round().astype(np.uint8)),
        "names": place_names(labels),
    }  # fmt: skip


def describe_plane(scene: Scene, plane: Plane, best: Answer) -> dict[str, Any]:
    """What stays the same while the grid is refined: the plane, the path, the balls."""
    return {
        "half": plane.half, "u": send_numbers(plane.u), "v": send_numbers(plane.v), "towards": plane.towards,
        "other": plane.other, "found": plane.place(best.r), "attack": best.attack,
        "path": [(0.0, 0.0), *(plane.place(step.r) for step in scene.steps)],
        "ball": plane.ball(best.norm, scene.asked.p),
    }  # fmt: skip
