"""Linear bounds traced back from any node to the input (CROWN, Zhang et al. 2018, "Efficient neural network robustness
certification with general activation functions").

A row is a linear function of the values at a node. Walking back through the graph it becomes a linear function of the
input that is nowhere larger: an affine map is replaced by its transpose, a bend by the line below it where the row's
coefficient is positive and by the line above it where that is negative.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from deepfool.certificates.graph import Affine, Bend, Graph, Input, Node, Sum
from deepfool.certificates.relaxation import Lines
from deepfool.certificates.rows import Rows


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
    lines: dict[int, Lines],
    choices: Choices | None = None,
    seen: dict[int, Tensor] | None = None,
    width: list[Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """(rows, features) and (rows,): a x + c, a lower bound of the rows wherever the lines hold.

    Row i belongs to sample who[i] of the lines (None: to sample i). `seen` collects the coefficients at each bend, and
    `width` (rows,) how far apart the lines are, weighted by them: where both lines are parallel, a x + c and all the
    widths together are an upper bound.
    """
    waiting: dict[int, Rows] = {node.id: rows}
    constant = torch.zeros(len(rows.values), dtype=rows.values.dtype)
    for each in reversed(graph.nodes):
        if each.id not in waiting:
            continue
        here = waiting.pop(each.id)
        if isinstance(each, Input):
            return here.flat(), constant
        if isinstance(each, Affine):
            if each.operator.bias is not None:
                constant = constant + _dot(here, each.operator.bias)
            back = [each.operator.transpose(here)]
        elif isinstance(each, Sum):
            back = [here if sign == 1 else -here for sign in each.signs]
        else:
            assert isinstance(each, Bend)
            relaxed, offset = _relax(here, who, lines[each.id], choices, each.id, seen)
            if width is not None:
                width.append((here.values.abs() * here.read(lines[each.id].height, who)).flatten(1).sum(1))
            constant, back = constant + offset, [relaxed]
        for before, part in zip(each.inputs, back, strict=True):
            waiting[before.id] = waiting[before.id] + part if before.id in waiting else part
    # Nothing of the input is left: the node does not depend on it.
    return torch.zeros(len(constant), graph.nodes[0].size, dtype=constant.dtype), constant


def _relax(
    here: Rows, who: Tensor | None, lines: Lines, choices: Choices | None, place: int, seen: dict[int, Tensor] | None
) -> tuple[Rows, Tensor]:
    chord, height = here.read(lines.chord, who), here.read(lines.height, who)
    below = here.read(lines.start, who)
    if choices is not None and place in choices.alpha:
        below = torch.where(here.read(lines.unstable, who), choices.alpha[place], below)
    if seen is not None:
        seen[place] = here.values.detach()
    negative = here.values.clamp_max(0)
    offset = (negative * height).flatten(1).sum(1)
    positive = here.values.clamp_min(0)
    if lines.floor is not None:
        offset = offset + (positive * here.read(lines.floor, who)).flatten(1).sum(1)
    values = positive * below + negative * chord
    if choices is not None and place in choices.beta:
        values = values - choices.beta[place] * choices.sign[place]
    return here.like(values), offset


def _dot(rows: Rows, bias: Tensor) -> Tensor:
    """What the rows make of a constant map."""
    if rows.windowed:
        return (rows.values * rows.read(bias[None].to(rows.values), None)).flatten(1).sum(1)
    return rows.values.flatten(1) @ bias.to(rows.values).flatten()
