"""The affine maps of a lowered network: each knows itself, its transpose on rows, and its intervals.

Everything works on samples without their batch dimension in `shape`, and on batches of them in the methods.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from deepfool.certificates.rows import Rows, Shape

FEW = 4
"""Channels up to which a transposed convolution is a product of matrices and sums of neighbours: with one channel that
takes a sixth of the time of torch's own in float32."""


class Operator(Protocol):
    """y = L h + bias. `before` and `shape` are the shapes of h and y."""

    before: Shape
    shape: Shape
    bias: Tensor | None
    cost: int
    """Multiplications that the transpose of one whole row takes."""
    terms: int
    """Products that one entry of a transposed row is the sum of, at most; 0 where entries are only moved."""

    def linear(self, h: Tensor) -> Tensor:
        """L h, for a batch."""

    def spread(self, r: Tensor) -> Tensor:
        """|L| r, for a batch: how far the outputs move if the inputs move by up to r."""

    def transpose(self, rows: Rows) -> Rows:
        """Rows over the outputs as rows over the inputs."""


def apply(operator: Operator, h: Tensor) -> Tensor:
    """L h + bias."""
    y = operator.linear(h)
    return y if operator.bias is None else y + operator.bias


def interval(operator: Operator, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """What the outputs lie between if the inputs lie between `low` and `high`."""
    middle, spread = apply(operator, (low + high) / 2), operator.spread((high - low) / 2)
    return middle - spread, middle + spread


class Dense:
    """A matrix. Its products are computed in float64, and rounded once where rows are in float32."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight.contiguous(), bias
        self.before: Shape = (weight.shape[1],)
        self.shape: Shape = (weight.shape[0],)
        self.cost, self.terms = weight.numel(), 1

    def linear(self, h: Tensor) -> Tensor:
        return h @ self.weight.T

    def spread(self, r: Tensor) -> Tensor:
        return r @ self.weight.abs().T

    def transpose(self, rows: Rows) -> Rows:
        return Rows((rows.values.double() @ self.weight).to(rows.values.dtype), self.before)


class Convolution:
    """Of any stride, padding, dilation and number of groups, in two dimensions. `bias` is a map."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, before: Shape, stride: Shape, padding: Shape, dilation: Shape,
        groups: int,
    ) -> None:  # fmt: skip
        self.weight, self.before, self.stride, self.padding = weight.contiguous(), before, stride, padding
        self.dilation, self.groups = dilation, groups
        self.span = tuple(d * (k - 1) + 1 for d, k in zip(dilation, weight.shape[2:], strict=True))
        out = (
            (side + 2 * pad - span) // step + 1
            for side, pad, span, step in zip(before[1:], padding, self.span, stride, strict=True)
        )
        self.shape = (weight.shape[0], *out)
        self.bias = None if bias is None else bias.view(-1, 1, 1).expand(self.shape)
        self.cost = weight.numel() * self.shape[1] * self.shape[2]
        self.single = self.weight.float()
        self.terms = weight.shape[0] // groups * weight.shape[2] * weight.shape[3]

    def linear(self, h: Tensor) -> Tensor:
        return F.conv2d(h, self.weight, None, self.stride, self.padding, self.dilation, self.groups)

    def spread(self, r: Tensor) -> Tensor:
        return F.conv2d(r, self.weight.abs(), None, self.stride, self.padding, self.dilation, self.groups)

    def transpose(self, rows: Rows) -> Rows:
        if rows.top is None or rows.left is None:
            return Rows(self._transpose_whole(rows.values), self.before)
        top, left = rows.top * self.stride[0] - self.padding[0], rows.left * self.stride[1] - self.padding[1]
        return Rows(self._transpose_free(rows.values), self.before, top, left).trimmed()

    def like(self, values: Tensor) -> Tensor:
        """The weights in the type of some rows."""
        return self.single if values.dtype == torch.float32 else self.weight

    def _transpose_free(self, values: Tensor) -> Tensor:
        """All that the rows see, beyond the borders too."""
        weight = self.like(values)
        if self.groups > 1 or weight.shape[1] > FEW:
            return F.conv_transpose2d(values, weight, None, self.stride, 0, 0, self.groups, self.dilation)
        tall, wide = (
            (side - 1) * step + span
            for side, step, span in zip(values.shape[2:], self.stride, self.span, strict=True)
        )  # fmt: skip
        parts = weight.flatten(1).T @ values.flatten(2)
        return F.fold(parts, (tall, wide), tuple(weight.shape[2:]), self.dilation, 0, self.stride)

    def _transpose_whole(self, values: Tensor) -> Tensor:
        full = self._transpose_free(values)
        (top, left), (tall, wide) = self.padding, self.before[1:]
        return F.pad(full, (-left, wide + left - full.shape[3], -top, tall + top - full.shape[2]))


class Scale:
    """Every entry times a factor of its own; `factor` and `bias` are maps."""

    cost = 0

    def __init__(self, factor: Tensor, bias: Tensor | None, shape: Shape) -> None:
        self.factor = factor.expand(shape).contiguous()
        self.terms = 0 if bool((factor.abs() == 1).all()) else 1
        self.bias = None if bias is None else bias.expand(shape).contiguous()
        self.before = self.shape = shape

    def linear(self, h: Tensor) -> Tensor:
        return h * self.factor

    def spread(self, r: Tensor) -> Tensor:
        return r * self.factor.abs()

    def transpose(self, rows: Rows) -> Rows:
        return rows.times(rows.read(self.factor[None].to(rows.values), None))


class Taps:
    """Along one axis of a map, output i is the sum of coefficient * input[i * step + offset] over a few taps.

    What pooling is made of: differences of neighbours, and their sums.
    """

    def __init__(self, before: Shape, axis: int, step: int, out: int, taps: dict[int, float], span: int) -> None:
        """`axis` is that of the sample, 1 or 2; `span` is how many neighbours the windows of all taps have room for."""
        self.before, self.axis, self.step, self.taps, self.span = before, axis, step, taps, span
        self.shape = (*before[:axis], out, *before[axis + 1 :])
        self.bias: Tensor | None = None
        self.cost = len(taps) * math.prod(self.shape)
        apart = len({offset % step for offset in taps}) == len(taps)  # no two taps read the same entry
        self.terms = 0 if apart and all(abs(each) == 1 for each in taps.values()) else len(taps)

    def _sum(self, h: Tensor, taps: dict[int, float]) -> Tensor:
        out, total = self.shape[self.axis], None
        for offset, coefficient in taps.items():
            place = torch.arange(out) * self.step + offset
            part = coefficient * h.index_select(self.axis + 1, place)
            total = part if total is None else total + part
        assert total is not None
        return total

    def linear(self, h: Tensor) -> Tensor:
        return self._sum(h, self.taps)

    def spread(self, r: Tensor) -> Tensor:
        return self._sum(r, {offset: abs(coefficient) for offset, coefficient in self.taps.items()})

    def transpose(self, rows: Rows) -> Rows:
        values, axis = rows.values, self.axis + 1
        out = values.shape[axis]
        side = (out - 1) * self.step + self.span if rows.windowed else self.before[self.axis]
        full = values.new_zeros(*values.shape[:axis], side, *values.shape[axis + 1 :])
        for offset, coefficient in self.taps.items():
            places = full.narrow(axis, offset, (out - 1) * self.step + 1)
            places[(slice(None),) * axis + (slice(None, None, self.step),)].add_(values, alpha=coefficient)
        if rows.top is None or rows.left is None:
            return Rows(full, self.before)
        top, left = (rows.top * self.step, rows.left) if self.axis == 1 else (rows.top, rows.left * self.step)
        return Rows(full, self.before, top, left).trimmed()


class Edges:
    """Along one axis of a map, entries repeated beyond the edges: what reaches over the border of a max-pooling."""

    cost = 0

    def __init__(self, before: Shape, axis: int, low: int, high: int) -> None:
        self.before, self.axis, self.low, self.high = before, axis, low, high
        self.place = torch.arange(-low, before[axis] + high).clamp(0, before[axis] - 1)
        self.shape = (*before[:axis], len(self.place), *before[axis + 1 :])
        self.bias: Tensor | None = None
        self.terms = max(low, high) + 1

    def linear(self, h: Tensor) -> Tensor:
        return h.index_select(self.axis + 1, self.place)

    spread = linear

    def transpose(self, rows: Rows) -> Rows:
        axis, values = self.axis + 1, rows.values
        if rows.top is None or rows.left is None:
            full = values.new_zeros(*values.shape[:axis], self.before[self.axis], *values.shape[axis + 1 :])
            return Rows(full.index_add(axis, self.place, values), self.before)
        # A window beyond an edge is made to reach back to it.
        reach = (self.high, self.low)
        values = F.pad(values, (0, 0, *reach) if self.axis == 1 else reach)
        corner = (rows.top if self.axis == 1 else rows.left) - self.low - self.high
        at = corner[:, None] + torch.arange(values.shape[axis])
        inner = (at.clamp(0, self.before[self.axis] - 1) - corner[:, None]).clamp(0, values.shape[axis] - 1)
        inner = inner[:, None, :, None] if self.axis == 1 else inner[:, None, None, :]
        moved = torch.zeros_like(values).scatter_add(axis, inner.expand_as(values), values)
        top, left = (corner, rows.left) if self.axis == 1 else (rows.top, corner)
        return Rows(moved, self.before, top, left).trimmed()


class Pad:
    """A map put beside zeros, or cut off where `pads` (left, right, above, below) are below zero."""

    cost = terms = 0

    def __init__(self, before: Shape, pads: tuple[int, int, int, int]) -> None:
        self.before, self.pads = before, pads
        left, right, above, below = pads
        self.shape: Shape = (before[0], before[1] + above + below, before[2] + left + right)
        self.bias: Tensor | None = None

    def linear(self, h: Tensor) -> Tensor:
        return F.pad(h, self.pads)

    spread = linear

    def transpose(self, rows: Rows) -> Rows:
        if rows.top is None or rows.left is None:
            return Rows(F.pad(rows.values, tuple(-side for side in self.pads)), self.before)
        return Rows(rows.values, self.before, rows.top - self.pads[2], rows.left - self.pads[0]).trimmed()


class Rearrange:
    """Entries moved, left out, put beside zeros, or averaged: any map whose coefficients are not negative.

    Sums of unknown length are computed in float64, and rounded once where rows are in float32.
    """

    cost, terms = 0, 1

    def __init__(self, function: Callable[[Tensor], Tensor], before: Shape, shape: Shape, bias: Tensor | None) -> None:
        self.function, self.before, self.shape, self.bias = function, before, shape, bias

    def linear(self, h: Tensor) -> Tensor:
        return self.function(h)

    spread = linear

    def transpose(self, rows: Rows) -> Rows:
        values = rows.dense().values.double()
        with torch.enable_grad():
            zero = torch.zeros(len(values), *self.before, dtype=values.dtype, requires_grad=True)
            (moved,) = torch.autograd.grad(self.function(zero), zero, values, create_graph=values.requires_grad)
        return Rows(moved.to(rows.values.dtype), self.before)


class Reshape:
    """The same entries in another shape."""

    cost = terms = 0

    def __init__(self, before: Shape, shape: Shape) -> None:
        self.before, self.shape = before, shape
        self.bias: Tensor | None = None

    def linear(self, h: Tensor) -> Tensor:
        return h.reshape(len(h), *self.shape)

    spread = linear

    def transpose(self, rows: Rows) -> Rows:
        return Rows(rows.dense().values.reshape(-1, *self.before), self.before)
