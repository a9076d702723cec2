"""Subspaces: the directions in which an input may change.

A subspace has m coordinates, and two functions: `to` coordinates and `back` to the input, on flat samples. They are
orthonormal, so that a perturbation has the same l2 norm in coordinates as in the input. Bands of the DCT, random
subspaces, low resolution, single channels and principal components are makers of one and the same thing; single
features (`Subspace.only`) are one that holds in every norm, and with bounds exactly.

Sources: the discrete cosine transform II with its usual orthonormal scaling; bands of it as a measure of what a network
looks at: Ortiz-Jimenez, Modas, Moosavi-Dezfooli, Frossard, "Hold me tight! Influence of discriminative features on deep
network boundaries" (NeurIPS 2020); random subspaces: Fawzi, Moosavi-Dezfooli, Frossard, "Robustness of classifiers:
from adversarial to random noise" (NeurIPS 2016).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deepfool.errors import InputError

Map = Callable[[Tensor], Tensor]

EXACT = 1e-4
"""How far from orthonormal a basis may be, relative; a QR decomposition in float32 is at 1e-6."""


@dataclass(frozen=True)
class Subspace:
    """m directions of an input with d features, flat.

    >>> diagonal = Subspace.of(torch.tensor([[1.0], [1.0]]) / 2**0.5)
    >>> diagonal.project(torch.tensor([[2.0, 0.0]]))
    tensor([[1.0000, 1.0000]])
    """

    features: int
    """d"""
    dimensions: int
    """m"""
    to: Map
    """(n, d) -> (n, m)"""
    back: Map
    """(n, m) -> (n, d)"""
    mask: Tensor | None = None
    """(d,) booleans where the directions are features: then every norm, and bounds, hold exactly."""
    name: str = "subspace"

    @staticmethod
    def of(basis: Tensor, name: str = "basis") -> Subspace:
        """The span of the columns of an orthonormal basis (d, m).

        >>> Subspace.of(torch.ones(3, 1))
        Traceback (most recent call last):
        ...
        deepfool.errors.InputError: the columns of a basis must be orthonormal; these are off by 2. Hint: ...
        """
        if not isinstance(basis, Tensor) or basis.ndim != 2 or not 0 < basis.shape[1] <= basis.shape[0]:
            got = tuple(basis.shape) if isinstance(basis, Tensor) else type(basis).__name__
            raise InputError(f"a basis must be a tensor (features, directions), with fewer directions, got {got}.")
        basis = basis.detach()
        own = basis.double()
        off = float((own.T @ own - torch.eye(own.shape[1], dtype=own.dtype, device=own.device)).abs().max())
        if not off <= EXACT:
            raise InputError(
                f"the columns of a basis must be orthonormal; these are off by {off:.3g}.",
                hint="torch.linalg.qr(basis).Q spans the same.",
            )
        return Subspace(len(basis), basis.shape[1], lambda x: x @ basis.to(x), lambda c: c @ basis.to(c).T, None, name)

    @staticmethod
    def by(to: Map, back: Map, features: int, dimensions: int, name: str = "functions") -> Subspace:
        """A pair of linear functions on flat samples, which must undo each other and keep the l2 norm.

        >>> halves = Subspace.by(lambda x: x[:, :2], lambda c: torch.cat([c, 0 * c], 1), 4, 2)
        >>> halves.project(torch.ones(1, 4))
        tensor([[1., 1., 0., 0.]])
        """
        c = torch.randn(2, dimensions, generator=torch.Generator().manual_seed(0))
        x = back(c)
        if x.shape != (2, features) or to(x).shape != c.shape:
            raise InputError(
                f"`back` must lead from (n, {dimensions}) to (n, {features}), and `to` in the other direction, got "
                f"{tuple(x.shape)} and {tuple(to(x).shape)}."
            )
        kept, lengths = (to(x) - c).abs().max(), (x.norm(dim=1) - c.norm(dim=1)).abs().max()
        if not float(torch.maximum(kept, lengths)) <= EXACT * math.sqrt(dimensions):
            raise InputError(
                "`to` must undo `back`, and `back` must keep the l2 norm.", hint="scale them to be orthonormal."
            )
        return Subspace(features, dimensions, to, back, None, name)

    @staticmethod
    def only(mask: Tensor, name: str = "features") -> Subspace:
        """Single features: a mask in the shape of one sample.

        >>> Subspace.only(torch.tensor([True, False, True])).dimensions
        2
        """
        flat = mask.detach().reshape(-1) != 0
        index = flat.nonzero()[:, 0]
        if len(index) == 0:
            raise InputError("a mask must leave at least one feature.")

        def back(c: Tensor) -> Tensor:
            return torch.zeros(len(c), len(flat), dtype=c.dtype, device=c.device).index_copy(1, index.to(c.device), c)

        return Subspace(len(flat), len(index), lambda x: x[:, index.to(x.device)], back, flat, name)

    def project(self, x: Tensor) -> Tensor:
        """The part of flat samples (n, d) that lies in the subspace."""
        return self.back(self.to(x))


def draw_subspace(features: int, dimensions: int, seed: int = 0) -> Subspace:
    """A random subspace, all of the same dimension being equally likely.

    >>> draw_subspace(10, 3).dimensions
    3
    """
    if not 0 < dimensions <= features:
        raise InputError(f"a subspace of {features} features has 1 to {features} dimensions, got {dimensions}.")
    drawn = torch.randn(features, dimensions, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    q, r = torch.linalg.qr(drawn)
    return Subspace.of((q * r.diagonal().sign()).float(), f"random {dimensions}")


def make_cosines(n: int) -> Tensor:
    """(n, n): the rows of the orthonormal DCT-II, in float64, lowest frequency first.

    >>> torch.allclose(make_cosines(4) @ make_cosines(4).T, torch.eye(4, dtype=torch.float64))
    True
    """
    k, at = torch.arange(n, dtype=torch.float64)[:, None], torch.arange(n, dtype=torch.float64) + 0.5
    scale = torch.full((n, 1), math.sqrt(2 / n), dtype=torch.float64)
    scale[0] = math.sqrt(1 / n)
    return scale * torch.cos(math.pi / n * k * at)


def rank_frequencies(shape: Sequence[int]) -> Tensor:
    """(d,): how high the frequency of each DCT coefficient of an image (c, h, w) is, from 0 to 1."""
    c, h, w = _check_image(shape)
    down, across = (torch.arange(n, dtype=torch.float64) / max(1, n - 1) for n in (h, w))
    return ((down[:, None] + across) / 2).expand(c, h, w).reshape(-1)


def pick_frequencies(shape: Sequence[int], chosen: Tensor, name: str = "DCT") -> Subspace:
    """The images whose DCT coefficients are zero but for the chosen ones, (d,) booleans."""
    c, h, w = _check_image(shape)
    index = chosen.nonzero()[:, 0]
    if len(index) == 0:
        raise InputError("a band needs at least one frequency.")
    rows, columns = make_cosines(h), make_cosines(w)

    def to(x: Tensor) -> Tensor:
        z = rows.to(x) @ x.view(-1, c, h, w) @ columns.to(x).T
        return z.reshape(len(x), -1)[:, index.to(x.device)]

    def back(z: Tensor) -> Tensor:
        whole = torch.zeros(len(z), c * h * w, dtype=z.dtype, device=z.device).index_copy(1, index.to(z.device), z)
        return (rows.to(z).T @ whole.view(-1, c, h, w) @ columns.to(z)).reshape(len(z), -1)

    return Subspace(c * h * w, len(index), to, back, None, name)


def make_bands(shape: Sequence[int], bands: int) -> list[Subspace]:
    """The images (c, h, w), cut by frequency into bands of about the same dimension, the lowest first.

    >>> [band.dimensions for band in make_bands((1, 4, 4), 4)]
    [4, 4, 4, 4]
    """
    frequency = rank_frequencies(shape)
    if not 0 < bands <= len(frequency):
        raise InputError(f"there can be 1 to {len(frequency)} bands, got {bands}.")
    place = frequency.argsort(stable=True).argsort()  # by frequency, then by place
    band = place * bands // len(frequency)
    return [pick_frequencies(shape, band == i, f"band {i + 1} of {bands}") for i in range(bands)]


def lower_resolution(shape: Sequence[int], factor: int) -> Subspace:
    """The images (c, h, w) that are constant on squares of this side.

    >>> lower_resolution((1, 4, 4), 2).project(torch.eye(16)[:1])[0, :2]
    tensor([0.2500, 0.2500])
    """
    c, h, w = _check_image(shape)
    if factor < 1 or h % factor or w % factor:
        raise InputError(f"the factor must divide {h} and {w}, got {factor}.")

    def to(x: Tensor) -> Tensor:
        return (factor * torch.nn.functional.avg_pool2d(x.view(-1, c, h, w), factor)).reshape(len(x), -1)

    def back(z: Tensor) -> Tensor:
        small = z.view(-1, c, h // factor, w // factor) / factor
        return small.repeat_interleave(factor, 2).repeat_interleave(factor, 3).reshape(len(z), -1)

    return Subspace(c * h * w, c * h * w // factor**2, to, back, None, f"resolution 1/{factor}")


def find_components(x: Tensor, dimensions: int) -> Subspace:
    """The principal components of some samples: the directions in which they vary most.

    >>> find_components(torch.tensor([[0.0, 0], [1, 1], [2, 2]]), 1).project(torch.tensor([[2.0, 0]]))
    tensor([[1.0000, 1.0000]])
    """
    flat = x.detach().flatten(1).double()
    if not 0 < dimensions <= min(flat.shape):
        raise InputError(f"{len(flat)} samples have 1 to {min(flat.shape)} components, got {dimensions}.")
    directions = torch.linalg.svd(flat - flat.mean(0), full_matrices=False).Vh[:dimensions]
    return Subspace.of(directions.T.contiguous().to(torch.promote_types(x.dtype, torch.float32)), "components")


def _check_image(shape: Sequence[int]) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise InputError(f"expected the shape (channels, height, width) of an image, got {tuple(shape)}.")
    return int(shape[0]), int(shape[1]), int(shape[2])


_TEXTS = "band:1/8, random:50, random:50/7 (of seed 7), resolution:4 or channel:0"


def read_subspace(text: str, shape: Sequence[int]) -> Subspace:
    """A subspace by its text, for samples of this shape.

    >>> read_subspace("band:1/8", (1, 28, 28)).name, read_subspace("random:5/3", (20,)).dimensions
    ('band 1 of 8', 5)
    >>> read_subspace("low", (1, 28, 28))
    Traceback (most recent call last):
    ...
    deepfool.errors.InputError: there is no subspace 'low'. Hint: band:1/8, random:50, ...
    """
    kind, _, rest = text.strip().partition(":")
    first, _, second = rest.partition("/")
    usual = {"band": "", "random": "0", "resolution": "0", "channel": "0"}
    second = second or usual.get(kind, "")
    if kind not in usual or not all(each.isdecimal() and len(each) <= 9 for each in (first, second)):
        raise InputError(f"there is no subspace {text!r:.80}.", hint=f"{_TEXTS}.")
    a, b = int(first), int(second)
    if kind == "random":
        return draw_subspace(math.prod(shape), a, seed=b)
    if kind == "resolution":
        return lower_resolution(shape, a)
    if kind == "channel":
        channels, height, width = _check_image(shape)
        if a >= channels:
            raise InputError(f"there are channels 0 to {channels - 1}, got {a}.")
        mask = torch.zeros(channels, height, width)
        mask[a] = 1
        return Subspace.only(mask, f"channel {a}")
    if not 1 <= a <= b:
        raise InputError(f"a band is the first to the last of some, such as band:1/8, got {text!r:.80}.")
    return make_bands(shape, b)[a - 1]
