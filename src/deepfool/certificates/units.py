"""Bounds of the inputs of all bends, layer by layer: by intervals first, by linear bounds where those leave a doubt.

A problem is a sample with a radius and, in branch and bound, with units whose sign is known. Many are bounded together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from deepfool.certificates.backward import trace_back
from deepfool.certificates.ball import Ball
from deepfool.certificates.curves import lines_around, undecided
from deepfool.certificates.graph import Affine, Bend, Graph, Input, Node, Relu, Sum
from deepfool.certificates.operators import Convolution, Dense, Reshape, Scale, interval
from deepfool.certificates.relaxation import Bounds, Lines
from deepfool.certificates.rows import Rows

CHUNK = 2_000_000
"""Entries of a matrix of rows, at most: 16 MB in float64, what the caches of a CPU hold."""

DOUBTFUL = 0.5
"""Units are bounded with one trace back, and with two if that leaves a doubt; if it does for this share, with two at
once. On lenet-cifar10, near the sample, one trace decides nineteen of twenty units."""


@dataclass
class Layers:
    """Bounds of the bends' inputs and the lines that follow from them, by id."""

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

    `known` are bounds that hold already; `sign` are splits. Only bends after the node `since` are bounded anew, and of
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
            assert isinstance(node, Bend)
            low, high = values[node.inputs[0].id]
            if known is not None:
                old = known.bounds[node.id]
                low, high = torch.maximum(low, old.low), torch.minimum(high, old.high)
            bounds = Bounds(low, high).split(None if sign is None else sign.get(node.id))
            if node.id > since and not (ball.p == math.inf and _is_plain(node.inputs[0])):
                asked = None if only is None else only[node.id]
                bounds = _sharpen(graph, node, ball, radius, bounds, layers.lines, asked)
                bounds = bounds.split(None if sign is None else sign.get(node.id))
            layers.bounds[node.id], layers.lines[node.id] = bounds, lines_around(node, bounds, lean)
            low, high = node.value(bounds.low), node.value(bounds.high)
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
    graph: Graph, bend: Bend, ball: Ball, radius: Tensor, bounds: Bounds, lines: dict[int, Lines], asked: Tensor | None
) -> Bounds:
    """Linear bounds of the units that are not decided yet."""
    low, high = bounds.low, bounds.high
    open_ = undecided(bend, low, high)
    who, index = (open_ if asked is None else open_ & asked).flatten(1).nonzero().unbind(1)
    if len(who) == 0:
        return bounds
    flat_low, flat_high = low.flatten(1).clone(), high.flatten(1).clone()
    node = bend.inputs[0]
    size = _chunk(graph, node)
    beside = {k: v.parallel for k, v in lines.items() if k < node.id}
    # Units that are asked for by name are those that weigh most: seldom are they decided so.
    quickly = asked is None and bool(beside) and isinstance(bend, Relu)
    quickly = quickly and all(lines[k].floor is None for k in beside)
    for start in range(0, len(who), size):
        w, i = who[start : start + size], index[start : start + size]
        if quickly:
            below, above = bound_rows_at_once(graph, node, i, w, ball, radius, beside)
            flat_low[w, i] = torch.maximum(flat_low[w, i], below)
            flat_high[w, i] = torch.minimum(flat_high[w, i], above)
            left = (flat_low[w, i] < 0) & (flat_high[w, i] > 0)
            quickly = float(left.double().mean()) < DOUBTFUL
            w, i = w[left], i[left]
        if len(w):
            below, above = bound_rows(graph, node, i, w, ball, radius, lines)
            flat_low[w, i] = torch.maximum(flat_low[w, i], below)
            flat_high[w, i] = torch.minimum(flat_high[w, i], above)
    return Bounds(flat_low.view_as(low), flat_high.view_as(high))


def bound_rows_at_once(
    graph: Graph, node: Node, index: Tensor, who: Tensor, ball: Ball, radius: Tensor, beside: dict[int, Lines]
) -> tuple[Tensor, Tensor]:
    """The same as `bound_rows` with lines that are parallel: one trace serves both sides, and is a little looser."""
    rows, offset, node = _first_rows(node, index)
    width: list[Tensor] = []
    a, c = trace_back(graph, node, rows, who, beside, width=width)
    middle = ball.middle(a, who) + c + offset
    return middle + ball.least(a, who, radius), middle + sum(width) - ball.least(-a, who, radius)


def bound_rows(
    graph: Graph, node: Node, index: Tensor, who: Tensor, ball: Ball, radius: Tensor, lines: dict[int, Lines]
) -> tuple[Tensor, Tensor]:
    """Lower and upper bounds (rows,) of entries of a node."""
    bent = any(place < node.id for place in lines)
    rows, offset, node = _first_rows(node, index)
    a, c = trace_back(graph, node, rows, who, lines)
    low = ball.middle(a, who) + c + offset + ball.least(a, who, radius)
    if bent:
        a, c = trace_back(graph, node, -rows, who, lines)
        a, c = -a, -c
    return low, ball.middle(a, who) + c + offset - ball.least(-a, who, radius)


def _first_rows(node: Node, index: Tensor) -> tuple[Rows, Tensor, Node]:
    """Rows that read entries of a node, what is to be added to them, and the node that they are about."""
    rows, offset = Rows.pick(node.shape, index, torch.float64), torch.zeros(len(index), dtype=torch.float64)
    if isinstance(node, Affine) and isinstance(node.operator, Dense):  # the first step back is to pick its rows
        rows = Rows(node.operator.weight[index], node.operator.before)
        offset = offset if node.operator.bias is None else node.operator.bias[index]
        node = node.inputs[0]
    return rows, offset, node


def _chunk(graph: Graph, node: Node) -> int:
    """How many rows to trace back at once."""
    widest = max(each.size for each in graph.nodes if each.id <= node.id)
    return max(16, CHUNK // widest)
