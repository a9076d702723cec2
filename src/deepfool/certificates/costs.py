"""What bounding a network takes, estimated before any of it is done."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deepfool.certificates.backward import follow_row
from deepfool.certificates.graph import Graph
from deepfool.errors import ModelError

RATE = 2e9
"""Multiplications a second of one core, all told; LeNet and the dense networks of the zoo take 1 to 4e9."""
FASTER = 2.5
"""How much less time rows in float32 take: LeNet on MNIST 1.7 times less, on CIFAR-10 2.5 to 3.5."""
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
        total += 2 * bend.size * follow_row(graph, bend.inputs[0])[0]
    entries = sum(node.size for node in graph.nodes)
    rate = FASTER * RATE if graph.rows == torch.float32 else RATE
    return Cost(total / rate, BYTES * entries, sum(bend.size for bend in graph.bends))


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
