"""Linear bounds traced back from any node to the input (CROWN, Zhang et al. 2018, "Efficient neural network robustness
certification with general activation functions").

A row is a linear function of the values at a node. Walking back through the graph it becomes a linear function of the
input that is nowhere larger: an affine map is replaced by its transpose, a bend by the line below it where the row's
coefficient is positive and by the line above it where that is negative.

All values are counted from those at the sample, so that the constants of affine maps play no part. Rows in float32 lose
something at each node (see `precision`), which is taken off.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from deepfool.certificates.graph import Affine, Bend, Graph, Input, Node, Sum
from deepfool.certificates.layers import Layers
from deepfool.certificates.rows import Rows

ENTRY = 20
"""What touching an entry of a row costs at a bend, in multiplications."""


@dataclass
class Choices:
    """What is free to choose in a backward pass, by the id of the ReLU; row by row. Any choice gives a bound."""

    alpha: dict[int, Tensor] = field(default_factory=dict)
    """Slopes of the lines below."""
    beta: dict[int, Tensor] = field(default_factory=dict)
    """Multipliers >= 0 of what splits say: sign * z >= 0."""
    sign: dict[int, Tensor] = field(default_factory=dict)
    """The splits: 1 for an active unit, -1 for one that is not, 0 where nothing is known."""


def trace_back(
    graph: Graph,
    node: Node,
    rows: Rows,
    who: Tensor | None,
    layers: Layers,
    choices: Choices | None = None,
    seen: dict[int, Tensor] | None = None,
    width: list[Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """(rows, features) and (rows,): the rows are at least as large as at the sample + c + a . d at d from it.

    That is so wherever the lines of the layers hold. Row i belongs to sample who[i] of theirs (None: to sample i).
    `seen` collects the coefficients at each bend, and `width` (rows,) how far apart the lines are, weighted by them:
    where both lines are parallel, c + a . d and all the widths together are an upper bound.
    """
    waiting: dict[int, Rows] = {node.id: rows}
    constant = torch.zeros(len(rows.values), dtype=torch.float64)
    lost, noise = torch.zeros_like(constant), layers.noise
    a = torch.zeros(len(constant), graph.nodes[0].size, dtype=torch.float64)  # if nothing of the input is left
    for each in reversed(graph.nodes):
        if each.id not in waiting:
            continue
        here = waiting.pop(each.id)
        if noise is not None and (each is node or each.id in noise.pays):
            lost = lost + noise.lost(each, here.values, who)
        if isinstance(each, Input):
            a = here.flat()
            break
        if isinstance(each, Affine):
            back = [each.operator.transpose(here)]
        elif isinstance(each, Sum):
            back = [here if sign == 1 else -here for sign in each.signs]
        else:
            assert isinstance(each, Bend)
            values, drop = _relax(here, who, layers, choices, each)
            if seen is not None:
                seen[each.id] = here.values.detach()
            constant, back = constant + drop.flatten(1).sum(1).double(), [here.like(values)]
            if choices is not None and each.id in choices.beta:
                split = choices.beta[each.id] * choices.sign[each.id]
                constant = constant - (split * layers.centre[each.inputs[0].id]).flatten(1).sum(1)
                lost = lost if noise is None else lost + noise.lost(each, split, who)
            lost = lost if noise is None else lost + noise.lost_in_sum(drop)
            if width is not None:
                apart = here.values.abs() * here.read(layers.lines[each.id].height, who)
                width.append(apart.flatten(1).sum(1).double())
                lost = lost if noise is None else lost + noise.lost_in_sum(apart)
        for before, part in zip(each.inputs, back, strict=True):
            waiting[before.id] = waiting[before.id] + part if before.id in waiting else part
    if noise is None:
        return a, constant
    lost = lost + noise.lost_at_last(who)
    usable = a.isfinite().all(1) & constant.isfinite() & lost.isfinite()  # what float32 has no room for says nothing
    if width is not None:
        width.append(torch.where(usable, 2 * lost, torch.inf))
    return torch.where(usable[:, None], a, 0.0), torch.where(usable, constant - lost, -torch.inf)


def _relax(
    here: Rows, who: Tensor | None, layers: Layers, choices: Choices | None, bend: Bend
) -> tuple[Tensor, Tensor]:
    """The rows before a bend, and what its lines add to each entry at the sample."""
    lines = layers.lines[bend.id]
    assert lines.rise is not None
    assert lines.sink is not None
    chord, below, rise, sink = here.read_all((lines.chord, lines.start, lines.rise, lines.sink), who)
    if choices is not None and bend.id in choices.alpha:
        assert lines.centre is not None
        alpha = torch.where(here.read(lines.unstable, who), choices.alpha[bend.id], below)
        below, sink = alpha, sink + (alpha - below) * here.read(lines.centre, who)
    positive, negative = here.values.clamp_min(0), here.values.clamp_max(0)
    values, drop = torch.addcmul(positive * below, negative, chord), torch.addcmul(positive * sink, negative, rise)
    if choices is not None and bend.id in choices.beta:
        values = values - choices.beta[bend.id] * choices.sign[bend.id]
    return values, drop


def follow_row(graph: Graph, node: Node) -> tuple[float, int]:
    """Multiplications to trace back a row from the middle of a node, and the most entries that it has on the way.

    Its windows say how much of a layer it sees.
    """
    if node.id in graph.paths:
        return graph.paths[node.id]
    place = node.size // 2
    if len(node.shape) == 3:
        place = (node.shape[0] // 2 * node.shape[1] + node.shape[1] // 2) * node.shape[2] + node.shape[2] // 2
    waiting = {node.id: Rows.pick(node.shape, torch.tensor([place]), torch.float64)}
    cost, widest = 0.0, 1
    for each in reversed(graph.nodes):
        here = waiting.pop(each.id, None)
        if here is None or isinstance(each, Input):
            continue
        widest = max(widest, here.values.numel())
        if isinstance(each, Affine):
            cost += each.operator.cost * here.values.numel() / max(each.size, 1)
            back = [each.operator.transpose(here)]
        else:
            cost += ENTRY * here.values.numel()
            back = [here] * (len(each.signs) if isinstance(each, Sum) else 1)
        for before, part in zip(each.inputs, back, strict=True):
            waiting[before.id] = waiting[before.id] + part if before.id in waiting else part
    graph.paths[node.id] = cost, max(widest, graph.nodes[0].size)
    return graph.paths[node.id]
