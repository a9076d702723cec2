"""Two lines around any bend, and which of its units are worth bounding.

tanh bends upwards below zero and downwards above. A line above it on [low, high] is the chord, if that is no steeper
than tanh is at `high`; else a tangent, at a point far enough to the right that it is not below tanh at `low`. tanh is
odd, so the line below is the one above on [-high, -low], turned about the origin.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepfool.certificates.graph import Bend, Relu
from deepfool.certificates.relaxation import Bounds, Lines

FLAT = 1e-7
"""Intervals that are narrower get flat lines through the ends: a chord would be all rounding."""
ROUNDED = 1e-14
"""What lines are moved apart by, for each unit of z: float64 and the tanh of any library are closer than that."""
HALVINGS = 20
"""In the search for the first tangent; any later one holds as well."""


def lines_around(node: Bend, bounds: Bounds, lean: float, at: Tensor, dtype: torch.dtype = torch.float64) -> Lines:
    """The lines for bounds that hold, for rows of this type; `at` is the input at the sample; `lean` is for ReLUs."""
    lines = Lines.around(bounds, node.slope, lean) if isinstance(node, Relu) else _around_tanh(bounds)
    return lines.seen_from(at, node.value(at), bounds, dtype)


def _around_tanh(bounds: Bounds) -> Lines:
    low, high = bounds.low, bounds.high
    chord, height = _above_tanh(low, high)
    start, floor = _above_tanh(-high, -low)
    apart = ROUNDED * (1 + torch.maximum(low.abs(), high.abs()))
    return Lines(chord, height + apart, torch.zeros_like(low, dtype=torch.bool), start, 0.0, -floor - apart)


def undecided(node: Bend, low: Tensor, high: Tensor) -> Tensor:
    """Units whose lines would be closer with better bounds."""
    if isinstance(node, Relu):
        return (low < 0) & (high > 0)
    return node.value(high) - node.value(low) > FLAT


def _above_tanh(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Slope and height of a line above tanh on [low, high].

    >>> low, high = torch.tensor([-1.0, 1.0]), torch.tensor([3.0, 2.0])
    >>> slope, height = _above_tanh(low, high)
    >>> bool((slope * low + height >= low.tanh()).all() & (slope * high + height >= high.tanh()).all())
    True
    """
    width = high - low
    flat = width < FLAT
    y = low.tanh()
    chord = (high.tanh() - y) / torch.where(flat, torch.ones_like(width), width)
    left, right = torch.maximum(low, torch.zeros_like(low)), high
    for _ in range(HALVINGS):  # the tangent at `right` is above tanh at `low` all along
        middle = (left + right) / 2
        holds = _tangent(middle, low) >= y
        left, right = torch.where(holds, left, middle), torch.where(holds, middle, right)
    at = torch.maximum(right, (low + high) / 2)
    straight = chord <= _steepness(high)
    slope = torch.where(straight, chord, _steepness(at))
    height = torch.where(straight, y - chord * low, _tangent(at, torch.zeros_like(at)))
    return torch.where(flat, torch.zeros_like(slope), slope), torch.where(flat, high.tanh(), height)


def _steepness(z: Tensor) -> Tensor:
    return 1 - z.tanh().square()


def _tangent(at: Tensor, z: Tensor) -> Tensor:
    """The tangent to tanh at a point, at another."""
    return at.tanh() + _steepness(at) * (z - at)
