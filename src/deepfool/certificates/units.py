"""Bounds of the inputs of all ReLUs, layer by layer: by intervals first, by linear bounds where those leave a doubt.

A problem is a sample with a radius and, in branch and bound, with units whose sign is known. Many are bounded together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from deepfool.certificates.backward import trace_back
from deepfool.certificates.ball import Ball
from deepfool.certificates.graph import Affine, Graph, Input, Node, Relu, Sum
from deepfool.certificates.operators import Convolution, Dense, Reshape, Scale, interval
from deepfool.certificates.relaxation import Bounds, Lines
from deepfool.certificates.rows import Rows

CHUNK = 2_000_000
"""Entries of a matrix of rows, at most: 16 MB in float64, what the caches of a CPU hold."""


@dataclass
class Layers:
    """Bounds of the ReLUs' inputs and the lines that follow from them, by id."""

    bounds: dict[int, Bounds]
    lines: dict[int, Lines]

    def of(self, index: Tensor) -> Layers:
        return Layers({k: v.of(index) for k, v in self.bounds.items()}, {k: v.of(index) for k, v in self.lines.items()})

    @property
    def empty(self) -> Tensor:
        """(n,): bounds that contradict each other; no point of the ball has the signs that are said to be known."""
        found = None
        for bounds in self.bounds.values():
            crossed = (bounds.low > bounds.high).flatten(1).any(1)
            found = crossed if found is None else found | crossed
        assert found is not None
        return found


@torch.no_grad()
def bound_units(
    graph: Graph,
    ball: Ball,
    radius: Tensor,
    *,
    known: Layers | None = None,
    sign: dict[int, Tensor] | None = None,
    since: int = -1,
    only: dict[int, Tensor] | None = None,
    lean: float = 1.0,
) -> Layers:
    """Bounds that hold on the balls of these radii (n,).

    `known` are bounds that hold already; `sign` are splits. Only ReLUs after the node `since` are bounded anew, and of
    them only the units (n, *shape) that `only` names. `lean` is that of the lines.
    """
    values: dict[int, tuple[Tensor, Tensor]] = {}
    layers = Layers({}, {})
    for node in graph.nodes:
        if isinstance(node, Input):
            low, high = (v.view(-1, *node.shape) for v in ball.interval(radius))
        elif isinstance(node, Affine):
            low, high = interval(node.operator, *values[node.inputs[0].id])
        elif isinstance(node, Sum):
            low, high = _add(node, values)
        else:
            assert isinstance(node, Relu)
            low, high = values[node.inputs[0].id]
            if known is not None:
                old = known.bounds[node.id]
                low, high = torch.maximum(low, old.low), torch.minimum(high, old.high)
            bounds = Bounds(low, high).split(None if sign is None else sign.get(node.id))
            if node.id > since and not (ball.p == math.inf and _is_plain(node.inputs[0])):
                asked = None if only is None else only[node.id]
                bounds = _sharpen(graph, node, ball, radius, bounds, layers.lines, asked)
                bounds = bounds.split(None if sign is None else sign.get(node.id))
            layers.bounds[node.id], layers.lines[node.id] = bounds, Lines.around(bounds, node.slope, lean)
            low, high = (v.clamp_min(0) + node.slope * v.clamp_max(0) for v in (bounds.low, bounds.high))
        values[node.id] = low, high
    return layers


def _is_plain(node: Node) -> bool:
    """Whether intervals are exact here: one dense or convolutional layer of the features, which move one by one."""
    mixed = 0
    while isinstance(node, Affine) and isinstance(node.operator, Dense | Convolution | Reshape | Scale):
        mixed += isinstance(node.operator, Dense | Convolution)
        node = node.inputs[0]
    return isinstance(node, Input) and mixed <= 1


def _add(node: Sum, values: dict[int, tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    low = high = torch.zeros((), dtype=torch.float64)
    for before, sign in zip(node.inputs, node.signs, strict=True):
        a, b = values[before.id]
        low, high = (low + a, high + b) if sign == 1 else (low - b, high - a)
    return low, high


def _sharpen(
    graph: Graph, relu: Relu, ball: Ball, radius: Tensor, bounds: Bounds, lines: dict[int, Lines], asked: Tensor | None
) -> Bounds:
    """Linear bounds of the units that may still have either sign."""
    low, high = bounds.low, bounds.high
    unstable = (low < 0) & (high > 0)
    who, index = (unstable if asked is None else unstable & asked).flatten(1).nonzero().unbind(1)
    if len(who) == 0:
        return bounds
    flat_low, flat_high = low.flatten(1).clone(), high.flatten(1).clone()
    node = relu.inputs[0]
    size = _chunk(graph, node)
    for start in range(0, len(who), size):
        w, i = who[start : start + size], index[start : start + size]
        below, above = bound_rows(graph, node, i, w, ball, radius, lines)
        flat_low[w, i] = torch.maximum(flat_low[w, i], below)
        flat_high[w, i] = torch.minimum(flat_high[w, i], above)
    return Bounds(flat_low.view_as(low), flat_high.view_as(high))


def bound_rows(
    graph: Graph, node: Node, index: Tensor, who: Tensor, ball: Ball, radius: Tensor, lines: dict[int, Lines]
) -> tuple[Tensor, Tensor]:
    """Lower and upper bounds (rows,) of entries of a node."""
    bent = any(place < node.id for place in lines)
    rows, offset = Rows.pick(node.shape, index, torch.float64), torch.zeros(len(index), dtype=torch.float64)
    if isinstance(node, Affine) and isinstance(node.operator, Dense):  # the first step back is to pick its rows
        rows = Rows(node.operator.weight[index], node.operator.before)
        offset = offset if node.operator.bias is None else node.operator.bias[index]
        node = node.inputs[0]
    a, c = trace_back(graph, node, rows, who, lines)
    low = ball.middle(a, who) + c + offset + ball.least(a, who, radius)
    if bent:
        a, c = trace_back(graph, node, -rows, who, lines)
        a, c = -a, -c
    return low, ball.middle(a, who) + c + offset - ball.least(-a, who, radius)


def _chunk(graph: Graph, node: Node) -> int:
    """How many rows to trace back at once."""
    widest = max(each.size for each in graph.nodes if each.id <= node.id)
    return max(16, CHUNK // widest)
