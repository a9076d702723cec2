"""A lowered network: an input, affine maps, sums, (leaky) ReLUs and tanhs, in the order in which they are computed."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from deepfool.certificates.operators import Operator, apply
from deepfool.certificates.rows import Shape


@dataclass(frozen=True, eq=False)
class Node:
    """`id` is the place in the graph; inputs come before."""

    id: int
    shape: Shape
    inputs: tuple[Node, ...] = ()

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class Input(Node):
    """The flattened features in their own shape."""


@dataclass(frozen=True, eq=False)
class Affine(Node):
    """An operator on the only input."""

    operator: Operator = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class Sum(Node):
    """The inputs added up, each with a sign, 1 or -1."""

    signs: tuple[int, ...] = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class Bend(Node):
    """A function of each entry by itself that never falls: what is bounded by two lines."""

    def value(self, z: Tensor) -> Tensor:
        """The function."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Relu(Bend):
    """z above zero, `slope` * z below; 0 <= slope < 1."""

    slope: float = field(default=0.0, kw_only=True)

    def value(self, z: Tensor) -> Tensor:
        return z.clamp_min(0) + self.slope * z.clamp_max(0)


@dataclass(frozen=True, eq=False)
class Tanh(Bend):
    """tanh(z). A sigmoid is one as well: (1 + tanh(z / 2)) / 2."""

    def value(self, z: Tensor) -> Tensor:
        return z.tanh()


@dataclass
class Graph:
    """The nodes in order; the last is the scores, (classes,)."""

    nodes: list[Node]
    rows: torch.dtype = torch.float64
    """What rows over it are computed in."""
    paths: dict[int, tuple[float, int]] = field(default_factory=dict)
    """What is known of rows from each node, by id: see `follow_row`."""

    @cached_property
    def fans(self) -> Counter[int]:
        """How many nodes read each node, by id."""
        return Counter(before.id for node in self.nodes for before in node.inputs)

    @property
    def scores(self) -> Node:
        return self.nodes[-1]

    @property
    def bends(self) -> list[Bend]:
        return [node for node in self.nodes if isinstance(node, Bend)]

    @property
    def relus(self) -> list[Relu]:
        """The bends that can be split."""
        return [node for node in self.nodes if isinstance(node, Relu)]

    def run(self, x: Tensor) -> dict[int, Tensor]:
        """The values of all nodes, by id, for flat features x (n, d)."""
        values: dict[int, Tensor] = {}
        for node in self.nodes:
            values[node.id] = compute(node, x, [values[each.id] for each in node.inputs])
        return values

    def __call__(self, x: Tensor) -> Tensor:
        """The scores."""
        return self.run(x)[self.scores.id]


def compute(node: Node, x: Tensor, inputs: list[Tensor]) -> Tensor:
    """The value of a node, from the values of its inputs."""
    if isinstance(node, Affine):
        return apply(node.operator, inputs[0])
    if isinstance(node, Bend):
        return node.value(inputs[0])
    if isinstance(node, Sum):
        total = inputs[0] * node.signs[0]
        for sign, each in zip(node.signs[1:], inputs[1:], strict=True):
            total = total + sign * each
        return total
    return x.view(-1, *node.shape)
