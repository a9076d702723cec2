"""Two lines around a bend: it lies between them as long as its input lies between its bounds.

Above an unstable unit (low < 0 < high) is the chord from (low, relu(low)) to (high, high). Below is any line through
the origin whose slope lies between the two of the ReLU: the slope that is free to be chosen, `alpha`.

Around tanh they are chords and tangents (see `curves`), and nothing is free.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Bounds:
    """What the input of a ReLU lies between, (n, *shape) each."""

    low: Tensor
    high: Tensor

    def of(self, index: Tensor) -> Bounds:
        return Bounds(self.low[index], self.high[index])

    def split(self, sign: Tensor | None) -> Bounds:
        """Bounds where units are known to be active (1) or not (-1); 0: not known."""
        if sign is None:
            return self
        low, high = self.low, self.high
        return Bounds(
            torch.where(sign > 0, low.clamp_min(0), low.expand_as(sign)),
            torch.where(sign < 0, high.clamp_max(0), high.expand_as(sign)),
        )


@dataclass(frozen=True)
class Lines:
    """The lines around a bend, (n, *shape) each: above chord * z + height, below alpha * z + floor."""

    chord: Tensor
    height: Tensor
    unstable: Tensor
    start: Tensor
    """The slope below to begin with. That of the larger side leaves the smaller area between the lines; but a network
    that was trained on intervals is bounded much better by flat lines."""
    least: float
    """The slope of the ReLU below zero, the smallest that alpha may be."""
    floor: Tensor | None = None
    """None: zero, as for all ReLUs."""

    @staticmethod
    def around(bounds: Bounds, slope: float, lean: float = 1.0) -> Lines:
        """The lines for bounds that hold. The larger `lean`, the more units begin with the flat line below.

        >>> lines = Lines.around(Bounds(torch.tensor([-1.0, 1.0]), torch.tensor([3.0, 2.0])), 0.0)
        >>> lines.chord, lines.height, lines.start
        (tensor([0.7500, 1.0000]), tensor([0.7500, 0.0000]), tensor([1., 1.]))
        """
        low, high = bounds.low, bounds.high
        unstable = (low < 0) & (high > 0)
        width = torch.where(unstable, high - low, torch.ones_like(low))
        fixed = torch.where(low >= 0, 1.0, slope).to(low.dtype)
        chord = torch.where(unstable, (high - slope * low) / width, fixed)
        height = torch.where(unstable, (1 - chord) * high, torch.zeros_like(low))
        start = torch.where(unstable, torch.where(high > -lean * low, 1.0, slope).to(low.dtype), fixed)
        return Lines(chord, height, unstable, start, slope)

    @property
    def parallel(self) -> Lines:
        """The same with lines below that run beside those above, for ReLUs."""
        return Lines(self.chord, self.height, self.unstable, self.chord, self.least)

    def of(self, index: Tensor) -> Lines:
        floor = None if self.floor is None else self.floor[index]
        return Lines(self.chord[index], self.height[index], self.unstable[index], self.start[index], self.least, floor)
