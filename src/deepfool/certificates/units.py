"""Bounds of the inputs of all bends, layer by layer: by intervals first, by linear bounds where those leave a doubt.

A problem is a sample with a radius and, in branch and bound, with units whose sign is known. Many are bounded together.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from deepfool.certificates.backward import follow_row, trace_back
from deepfool.certificates.ball import Ball
from deepfool.certificates.curves import lines_around, undecided
from deepfool.certificates.graph import Affine, Bend, Graph, Input, Node, Relu, Sum
from deepfool.certificates.layers import Layers
from deepfool.certificates.operators import Convolution, Dense, Reshape, Scale, interval
from deepfool.certificates.precision import Noise
from deepfool.certificates.relaxation import Bounds
from deepfool.certificates.rows import Rows
from deepfool.certificates.timing import Watch

CHUNK = 1_000_000
"""Entries of a matrix of rows, at most: 8 MB in float64, what the caches of a CPU hold."""


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
    watch: Watch | None = None,
) -> Layers:
    """Bounds that hold on the balls of these radii (n,).

    `known` are bounds that hold already, on these balls; `sign` are splits. Only bends after the node `since` are
    bounded anew, and of them only the units (n, *shape) that `only` names. `lean` is that of the lines. If there is a
    `watch`, the pass is given up when its time is over.
    """
    values: dict[int, tuple[Tensor, Tensor]] = {}
    layers = Layers.begin(graph, ball) if known is None else Layers({}, {}, known.centre, known.noise)
    noise = layers.noise = Noise(graph) if known is None and graph.rows == torch.float32 else layers.noise
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
                bounds = _sharpen(graph, node, ball, radius, bounds, layers, asked, watch)
                bounds = bounds.split(None if sign is None else sign.get(node.id))
            at = layers.centre[node.inputs[0].id]
            layers.bounds[node.id], layers.lines[node.id] = bounds, lines_around(node, bounds, lean, at, graph.rows)
            values[node.inputs[0].id] = bounds.low, bounds.high
            low, high = node.value(bounds.low), node.value(bounds.high)
        values[node.id] = low, high
        if noise is not None and known is None:
            moves = [_move(values[each.id], layers.centre[each.id]) for each in (*node.inputs, node)]
            noise.enter(node, moves[:-1], moves[-1], layers.lines.get(node.id))
    return layers


def _move(bounds: tuple[Tensor, Tensor], centre: Tensor) -> Tensor:
    """How far from the centre a value gets, at most."""
    return torch.maximum(bounds[1] - centre, centre - bounds[0]).clamp_min(0)


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
    graph: Graph, bend: Bend, ball: Ball, radius: Tensor, bounds: Bounds, layers: Layers, asked: Tensor | None,
    watch: Watch | None,
) -> Bounds:  # fmt: skip
    """Linear bounds of the units that are not decided yet."""
    low, high = bounds.low, bounds.high
    open_ = undecided(bend, low, high)
    who, index = _by_place(open_ if asked is None else open_ & asked)
    if len(who) == 0:
        return bounds
    flat_low, flat_high = low.flatten(1).clone(), high.flatten(1).clone()
    node = bend.inputs[0]
    size = _chunk(graph, node)
    # Parallel lines decide most units with one trace, and bound others more closely than the usual ones do. Units that
    # are asked for by name are those that weigh most: seldom are they decided so.
    both = asked is None and bool(layers.lines)
    both = both and all(isinstance(each, Relu) for each in graph.bends if each.id <= bend.id)
    beside = layers.at({k: v.parallel for k, v in layers.lines.items()}) if both else layers
    for start in range(0, len(who), size):
        if watch is not None:
            watch.check()
        w, i = who[start : start + size], index[start : start + size]
        if both:
            below, above = bound_rows_at_once(graph, node, i, w, ball, radius, beside)
            flat_low[w, i] = torch.fmax(flat_low[w, i], below)
            flat_high[w, i] = torch.fmin(flat_high[w, i], above)
            left = (flat_low[w, i] < 0) & (flat_high[w, i] > 0)
            w, i = w[left], i[left]
        if len(w):
            below, above = bound_rows(graph, node, i, w, ball, radius, layers)
            flat_low[w, i] = torch.fmax(flat_low[w, i], below)
            flat_high[w, i] = torch.fmin(flat_high[w, i], above)
    return Bounds(flat_low.view_as(low), flat_high.view_as(high))


def _by_place(units: Tensor) -> tuple[Tensor, Tensor]:
    """The sample and the flat index of each of these units. Those at one pixel are neighbours: they share windows."""
    who, index = units.flatten(1).nonzero().unbind(1)
    pixels = units[0, 0].numel() if units.ndim == 4 else 1
    order = (who * pixels + index % pixels).argsort(stable=True) if pixels > 1 else torch.arange(len(who))
    return who[order], index[order]


def bound_rows_at_once(
    graph: Graph, node: Node, index: Tensor, who: Tensor, ball: Ball, radius: Tensor, beside: Layers
) -> tuple[Tensor, Tensor]:
    """The same as `bound_rows` with lines that are parallel: one trace serves both sides, and is a little looser."""
    rows, value, lost, node = _first_rows(graph, node, index, who, beside)
    width: list[Tensor] = []
    a, c = trace_back(graph, node, rows, who, beside, width=width)
    low = value + c + ball.least(a, who, radius)
    return low - lost, value + c + sum(width) - ball.least(-a, who, radius) + lost


def bound_rows(
    graph: Graph, node: Node, index: Tensor, who: Tensor, ball: Ball, radius: Tensor, layers: Layers
) -> tuple[Tensor, Tensor]:
    """Lower and upper bounds (rows,) of entries of a node."""
    rows, value, lost, before = _first_rows(graph, node, index, who, layers)
    a, c = trace_back(graph, before, rows, who, layers)
    low = value + c + ball.least(a, who, radius) - lost
    if any(place < node.id for place in layers.lines):
        a, c = trace_back(graph, before, -rows, who, layers)
        return low, value - c - ball.least(a, who, radius) + lost
    return low, value - c - ball.least(-a, who, radius) + lost


def _first_rows(
    graph: Graph, node: Node, index: Tensor, who: Tensor, layers: Layers
) -> tuple[Rows, Tensor, Tensor | float, Node]:
    """Rows that read entries of a node, their values at the samples, what they lost, and the node that they are about.

    The first step back from a dense layer is to pick its rows.
    """
    at = layers.centre[node.id].flatten(1)
    value = at[0 if len(at) == 1 else who, index]
    if isinstance(node, Affine) and isinstance(node.operator, Dense):
        rows = Rows(node.operator.weight[index].to(graph.rows), node.operator.before)
        lost = 0.0 if layers.noise is None else layers.noise.lost_by_picking(node, index, who)
        return rows, value, lost, node.inputs[0]
    return Rows.pick(node.shape, index, graph.rows), value, 0.0, node


def _chunk(graph: Graph, node: Node) -> int:
    """How many rows to trace back at once."""
    return max(16, CHUNK // follow_row(graph, node)[1])
