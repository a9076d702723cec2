"""Two lines around a bend: it lies between them as long as its input lies between its bounds.

Above an unstable unit (low < 0 < high) is the chord from (low, relu(low)) to (high, high). Below is any line through
the origin whose slope lies between the two of the ReLU: the slope that is free to be chosen, `alpha`.

Around tanh they are chords and tangents (see `curves`), and nothing is free.

Rows count everything from the values at the sample: what a line adds to them is how far it is above or below the bend
there. If rows are in float32 the slopes are numbers that float32 has, and the lines are moved apart to hold with them.
"""

from __future__ import annotations

import math
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
    rise: Tensor | None = None
    sink: Tensor | None = None
    """How far the lines are above the bend at the sample: the one above, and the one below."""
    centre: Tensor | None = None
    """The input of the bend at the sample; (1, *shape) if there is one for all."""

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

    def seen_from(self, z: Tensor, y: Tensor, bounds: Bounds, dtype: torch.dtype) -> Lines:
        """The same for rows of this type, beside the values of the bend at the sample: y, of z."""
        chord, height, start, floor, least = self.chord, self.height, self.start, self.floor, self.least
        if dtype == torch.float32:
            most = torch.maximum(bounds.low.abs(), bounds.high.abs())
            least = _round_up(least)
            chord, start = chord.float().double(), start.float().double()
            start = torch.where(self.unstable, start.clamp_min(least), start)
            height = height + (self.chord - chord).abs() * most
            below = (self.start - start).abs() * most
            floor = -below if floor is None else floor - below
        rise, sink = chord * z + height - y, start * z - y
        sink = sink if floor is None else sink + floor
        return Lines(
            chord.to(dtype), height.to(dtype), self.unstable, start.to(dtype), least, floor, rise.to(dtype),
            sink.to(dtype), z.to(dtype),
        )  # fmt: skip

    @property
    def parallel(self) -> Lines:
        """The same with lines below that run beside those above, for ReLUs; `height` is how far they are apart."""
        assert self.rise is not None
        assert self.sink is not None
        start = torch.where(self.unstable, self.chord, self.start)
        height = torch.where(self.unstable, self.height, self.rise - self.sink)
        sink = torch.where(self.unstable, self.rise - self.height, self.sink)
        return Lines(self.chord, height, self.unstable, start, self.least, None, self.rise, sink, self.centre)

    def of(self, index: Tensor) -> Lines:
        n = len(self.chord)
        picked = (
            None if each is None else each[index] if len(each) == n else each
            for each in (self.floor, self.rise, self.sink, self.centre)
        )  # fmt: skip
        return Lines(
            self.chord[index], self.height[index], self.unstable[index], self.start[index], self.least, *picked
        )


def _round_up(value: float) -> float:
    """The least number of float32 that is not smaller."""
    single = torch.tensor(value, dtype=torch.float32)
    return float(single if float(single) >= value else single.nextafter(torch.tensor(math.inf)))
