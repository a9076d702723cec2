"""How v does: one search for each radius or number of images, the smallest radius for a share, other models."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from deepfool.metrics.estimates import Estimate, share
from deepfool.universals.images import Images
from deepfool.universals.results import Point, Reached

SHARES = (0.5, 0.9)
ACCURACY = 0.01
"""How closely the smallest radius is found, relative to it."""


def rate_of(images: Images, v: Tensor) -> Estimate:
    """The share of these images that v fools, with its interval."""
    fooled = images.fooled(v)
    return share(int(fooled.sum()), len(fooled))


def find_reached(points: Sequence[tuple[Point, Tensor]], rate: Callable[[Tensor], float]) -> tuple[Reached, ...]:
    """The smallest radius for each of `SHARES`.

    Among the searches, the one of the smallest radius that reaches the share; its v is then shortened as far as the
    share is still reached. So the radius is one that a v was seen to do it with, not a value between two others.

    >>> import torch
    >>> est = lambda r: Estimate(r, r, r, 9)
    >>> points = [(Point(xi, 9, est(xi), est(xi)), torch.tensor([xi])) for xi in (0.2, 0.6)]
    >>> [(each.share, round(each.xi, 2)) for each in find_reached(points, lambda v: float(v))]
    [(0.5, 0.5), (0.9, inf)]
    """
    ordered = sorted(points, key=lambda each: each[0].xi)
    found = []
    for wanted in SHARES:
        k = next((k for k, (point, _) in enumerate(ordered) if point.rate.value >= wanted), None)
        if k is None:
            found.append(Reached(wanted, math.inf, math.nan))
            continue
        point, v = ordered[k]
        low, high, there = (ordered[k - 1][0].xi / point.xi if k else 0.0), 1.0, point.rate.value
        while high - low > ACCURACY * high:
            middle = (low + high) / 2
            reached = rate(middle * v)
            if reached >= wanted:
                high, there = middle, reached
            else:
                low = middle
        found.append(Reached(wanted, high * point.xi, there))
    return tuple(found)
