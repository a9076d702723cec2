"""The open leaves of one sample's tree, as arrays with a row for each leaf.

A leaf is a rival class and the signs of some ReLUs. It remembers what its bounds were reached with, so that its two
halves begin where it ended. A leaf that needs no more work is dropped: only its value is kept.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from deepfool.certificates.curves import lines_around
from deepfool.certificates.graph import Graph
from deepfool.certificates.layers import Layers
from deepfool.certificates.relaxation import Bounds


class Frontier:
    """`values` (classes,) are known distances of the classes at least, infinite for those that do not count."""

    def __init__(self, graph: Graph, values: Tensor) -> None:
        self.bends, self.rows = {each.id: each for each in graph.bends}, graph.rows
        shapes = {each.id: each.shape for each in graph.bends}
        self.rival = values.isfinite().nonzero()[:, 0]
        n = len(self.rival)
        self.value = values[self.rival].clone()
        """How far away, at least, points of the rival class with these signs are."""
        self.proved = torch.ones(n, dtype=torch.bool)
        """Whether the whole ball was proved when the leaf was bounded last: it is to be bounded again, not split."""
        self.stuck = torch.zeros(n, dtype=torch.bool)
        """Whether nothing more can be done."""
        self.split = torch.full((n, 2), -1)
        """The ReLU's id and the unit to split next."""
        self.last = torch.full((n,), -1)
        """The ReLU that was split last."""
        self.within = torch.zeros(n, dtype=torch.float64)
        """The radius up to which `low` and `high` hold."""
        self.sign = {k: torch.zeros(n, *shape, dtype=torch.int8) for k, shape in shapes.items()}
        self.alpha = {k: torch.zeros(n, *shape) for k, shape in shapes.items()}
        self.beta = {k: torch.zeros(n, *shape) for k, shape in shapes.items()}
        self.weight = {k: torch.zeros(n, *shape) for k, shape in shapes.items()}
        """How much the lines of each unit weigh: its coefficient times the height between them."""
        self.low = {k: torch.zeros(n, *shape, dtype=torch.float64) for k, shape in shapes.items()}
        self.high = {k: torch.zeros(n, *shape, dtype=torch.float64) for k, shape in shapes.items()}
        self.begun = False
        """Whether `alpha` has been filled."""
        self.closed = torch.full_like(values, math.inf)
        """(classes,): the least value of the leaves of each class that were dropped."""

    _PARTS = ("sign", "alpha", "beta", "weight", "low", "high")
    _PLAIN = ("rival", "value", "proved", "stuck", "split", "last", "within")

    def __len__(self) -> int:
        return len(self.rival)

    def least(self) -> Tensor:
        """(classes,): the least value of all leaves of each class; infinite where there are none."""
        return self.closed.scatter_reduce(0, self.rival, self.value, "amin")

    def halve(self, leaves: Tensor) -> Tensor:
        """Each leaf becomes the half where its unit is active; new ones are those where it is not. All that changed."""
        if len(leaves) == 0:
            return leaves
        self.last[leaves] = self.split[leaves, 0]
        new = torch.arange(len(self), len(self) + len(leaves))
        for name in self._PARTS:
            parts = getattr(self, name)
            for k in parts:
                parts[k] = torch.cat([parts[k], parts[k][leaves]])
        for name in self._PLAIN:
            old = getattr(self, name)
            setattr(self, name, torch.cat([old, old[leaves]]))
        for k, sign in self.sign.items():
            here = self.split[leaves, 0] == k
            unit = self.split[leaves[here], 1]
            sign.view(len(sign), -1)[leaves[here], unit] = 1
            sign.view(len(sign), -1)[new[here], unit] = -1
        return torch.cat([leaves, new])

    def drop(self, done: Tensor) -> None:
        """Leaves (a mask) that need no more work."""
        if not bool(done.any()):
            return
        self.closed.scatter_reduce_(0, self.rival[done], self.value[done], "amin")
        keep = (~done).nonzero()[:, 0]
        for name in self._PARTS:
            parts = getattr(self, name)
            for k in parts:
                parts[k] = parts[k][keep]
        for name in self._PLAIN:
            setattr(self, name, getattr(self, name)[keep])

    def layers(self, leaves: Tensor, base: Layers, radius: float, lean: float) -> Layers:
        """The bounds of the units in each of these leaves: its own where they hold, else those of the whole ball."""
        own = self.within[leaves] >= radius
        bounds, lines = {}, {}
        for k, whole in base.bounds.items():
            sides = own.view(-1, *[1] * (whole.low.ndim - 1))
            low = torch.where(sides, self.low[k][leaves], whole.low)
            high = torch.where(sides, self.high[k][leaves], whole.high)
            bounds[k] = Bounds(low, high).split(self.sign[k][leaves])
            at = base.centre[self.bends[k].inputs[0].id]
            lines[k] = lines_around(self.bends[k], bounds[k], lean, at, self.rows)
        return Layers(bounds, lines, base.centre, base.noise)

    def keep_layers(self, leaves: Tensor, layers: Layers, radius: float) -> None:
        """Remember bounds that hold up to this radius."""
        self.within[leaves] = radius
        for k, bounds in layers.bounds.items():
            self.low[k][leaves], self.high[k][leaves] = bounds.low, bounds.high

    def heaviest(self, relu: int, leaves: Tensor, count: int) -> Tensor:
        """Which units of a layer weigh most, in each of these leaves."""
        weight = self.weight[relu][leaves]
        flat = weight.flatten(1)
        least = flat.topk(min(count, flat.shape[1]), dim=1).values[:, -1:]
        return ((flat >= least) & (flat > 0)).view_as(weight)
