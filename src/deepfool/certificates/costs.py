"""What bounding a network takes, estimated before any of it is done."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deepfool.certificates.graph import Affine, Graph, Input, Node, Sum
from deepfool.certificates.rows import Rows
from deepfool.errors import ModelError

RATE = 2e9
"""Multiplications a second of one core, all told; LeNet and the dense networks of the zoo take 1 to 4e9."""
ENTRY = 20
"""What touching an entry of a row costs at a bend, in multiplications."""
BYTES = 200
"""Memory that each entry of each node takes for a sample: bounds, lines, intervals, and a copy of the lines."""
MOST_BYTES = 8 * 2**30
PATIENCE, LEAST = 10.0, 60.0
"""A pass may take this many times the seconds that were asked for, and in any case so many seconds."""


@dataclass(frozen=True)
class Cost:
    """Of one pass for one sample."""

    seconds: float
    bytes: int
    units: int


def estimate(graph: Graph) -> Cost:
    """One pass that bounds every unit, as if all of them were undecided.

    >>> from deepfool.certificates.building import Builder
    >>> builder = Builder((3,))
    >>> estimate(builder.graph(builder.relu(builder.input))).units
    3
    """
    total = 0.0
    for bend in graph.bends:
        total += 2 * bend.size * _row(graph, bend.inputs[0])
    entries = sum(node.size for node in graph.nodes)
    return Cost(total / RATE, BYTES * entries, sum(bend.size for bend in graph.bends))


def check_cost(cost: Cost, seconds: float) -> None:
    """An error for a network that would take too long or too much memory."""
    limit = max(LEAST, PATIENCE * seconds)
    if cost.seconds > limit:
        raise ModelError(
            f"no certificate for this model: one pass over its {cost.units:,} units would take about "
            f"{cost.seconds:,.0f} s a sample, more than {limit:,.0f} s.",
            hint=f"give it time, seconds={cost.seconds / PATIENCE:.0f}; or certify a smaller network.",
        )
    if cost.bytes > MOST_BYTES:
        raise ModelError(
            f"no certificate for this model: its {cost.units:,} units would take about {cost.bytes / 2**30:.0f} GB.",
            hint="certify a smaller network, or smaller inputs.",
        )


def _row(graph: Graph, node: Node) -> float:
    """Multiplications to trace back a row from the middle of a node: its windows say how much of a layer it sees."""
    place = node.size // 2
    if len(node.shape) == 3:
        place = (node.shape[0] // 2 * node.shape[1] + node.shape[1] // 2) * node.shape[2] + node.shape[2] // 2
    waiting = {node.id: Rows.pick(node.shape, torch.tensor([place]), torch.float64)}
    cost = 0.0
    for each in reversed(graph.nodes):
        here = waiting.pop(each.id, None)
        if here is None or isinstance(each, Input):
            continue
        if isinstance(each, Affine):
            cost += each.operator.cost * here.values.numel() / max(each.size, 1)
            back = [each.operator.transpose(here)]
        else:
            cost += ENTRY * here.values.numel()
            back = [here] * (len(each.signs) if isinstance(each, Sum) else 1)
        for before, part in zip(each.inputs, back, strict=True):
            waiting[before.id] = waiting[before.id] + part if before.id in waiting else part
    return cost
