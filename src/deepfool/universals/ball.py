"""Where v may lie, and what an image becomes with it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deepfool.attacks.shared.arguments import Bounds, check_bounds, check_mask
from deepfool.errors import InputError
from deepfool.norms import check_p, norm, project_on_ball
from deepfool.values import as_number

NORMS = (1.0, 2.0, math.inf)


@dataclass(frozen=True)
class Ball:
    """All v with ||v||_p <= xi that leave the masked features alone. Images with v are cut at the box."""

    p: float
    xi: float
    lower: Tensor | None = None
    upper: Tensor | None = None
    """The box, in the shape of one image; None where nothing bounds the images."""
    mask: Tensor | None = None
    """Which features may change, in the shape of one image; None means all."""

    def project(self, v: Tensor) -> Tensor:
        """The nearest point of the ball in the l2 norm (P_{p,xi} of the paper).

        >>> Ball(math.inf, 0.1, mask=torch.tensor([True, True, False])).project(torch.tensor([0.3, -0.05, 0.3]))
        tensor([ 0.1000, -0.0500,  0.0000])
        """
        v = v if self.mask is None else v * self.mask
        return project_on_ball(v.reshape(1, -1), v.new_tensor([self.xi]), self.p).view(v.shape)

    def move(self, x: Tensor, v: Tensor) -> Tensor:
        """Images (n, ...) with v, inside the box."""
        moved = x + v
        return moved if self.lower is None or self.upper is None else moved.clamp(self.lower, self.upper)

    def norm(self, v: Tensor) -> float:
        """||v||_p."""
        return float(norm(v.reshape(-1), self.p))

    @property
    def bounds(self) -> Bounds | None:
        """The box, as attacks take it."""
        return None if self.lower is None or self.upper is None else (self.lower, self.upper)


def make_ball(p: float, xi: float, like: Tensor, bounds: Bounds | None, mask: Tensor | None) -> Ball:
    """The ball for images such as `like` (1, ...); box and mask are the same for all images.

    >>> make_ball(2, 0.5, torch.zeros(1, 3), (0, 1), None).lower
    tensor([0., 0., 0.])
    """
    p = check_p(p)
    if p not in NORMS:
        raise InputError(f"universal works in the norms p = 1, 2 and inf, got {p:g}.")
    flat = like.flatten(1)
    lower, upper = check_bounds(bounds, like, flat)
    allowed = None if mask is None else check_mask(mask, like).view(like.shape[1:])
    if allowed is not None and not bool(allowed.any()):
        raise InputError("the mask lets no feature change.", hint="True or 1 where a feature may change.")
    if lower is None or upper is None:
        return Ball(p, xi, mask=allowed)
    return Ball(p, xi, lower.view(like.shape[1:]), upper.view(like.shape[1:]), allowed)


def read_xi(xi: Any, name: str = "xi") -> tuple[float, bool]:
    """A radius as a number, and whether it is a share of the mean norm of the images.

    >>> read_xi(0.1), read_xi("10/255")[0] * 255, read_xi("4%")
    ((0.1, False), 10.0, (0.04, True))
    """
    relative = isinstance(xi, str) and xi.strip().endswith("%")
    number = _read_text(xi) if isinstance(xi, str) else as_number(xi)
    if number is None or not 0 < number < math.inf:
        raise InputError(
            f"{name} must be a number above 0, got {xi!r:.80}.",
            hint='0.04, "10/255", or a share of the mean norm of the images: "4%".',
        )
    return (number / 100, True) if relative else (number, False)


def _read_text(text: str) -> float | None:
    over, slash, under = text.strip().removesuffix("%").partition("/")
    try:
        return float(over) / float(under) if slash else float(over)
    except (ValueError, ZeroDivisionError):
        return None


def mean_norm(x: Tensor, p: float) -> float:
    """The mean of ||x||_p over images.

    >>> mean_norm(torch.tensor([[3.0, 4.0], [0.0, 1.0]]), 2)
    3.0
    """
    return float(torch.mean(norm(x.flatten(1), p)))
