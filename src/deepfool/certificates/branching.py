"""Branch and bound for one sample: ReLUs are split into active and inactive until the bounds meet.

A leaf is a rival class and the signs of some ReLUs. Its value is how far away, at least, points of that class with
those signs are; the least value of all leaves is certified. The leaves with the least values are split first. A leaf is
bounded on a ball a little larger than its value, so that lines are as tight as they can be. If the whole ball is
proved, the leaf is bounded again later, on a larger one, without a split.

Bounds at the radius are computed once for all leaves; after a split those of the later layers are computed again, with
the lines that the split made exact. The ReLU to split is the one whose lines lose most at the nearest point.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from deepfool.certificates.backward import Choices
from deepfool.certificates.ball import Ball
from deepfool.certificates.graph import Graph
from deepfool.certificates.leaves import solve_leaf
from deepfool.certificates.margins import Best, Margins, improve
from deepfool.certificates.relaxation import Lines
from deepfool.certificates.timing import Watch
from deepfool.certificates.units import Layers, bound_units
from deepfool.norms import norm

EXACT = 1e-3
"""A lower bound this close to the upper one, relatively, is exact."""
GROWTH = 1.05
"""From one radius to the next."""
BATCH, ENTRIES = (8, 48), 40_000
"""Leaves that are split at once, at least and at most; in between, so many entries of all nodes together."""
STEPS = 4
"""Steps in the slopes and multipliers for each leaf."""
ANEW = 16
"""Units of each later layer that are bounded again after a split: those whose lines weigh most. On fc500-mnist it is a
fifth of those that are unstable."""
BEYOND = (1.0, 1 + 1e-5, 1 + 1e-4, 1 + 5e-4)
"""How far along the way to a leaf's nearest point the network itself is asked."""

Confirm = Callable[[Tensor], tuple[float, Tensor] | None]
"""Points (k, d) to the norm and the point of the nearest that really changes the decision, if any does."""


class Tree:
    """The leaves of one sample, as arrays. `lower` and `upper` only ever come closer."""

    def __init__(
        self, graph: Graph, ball: Ball, label: int, slack: float, values: Tensor, upper: float, confirm: Confirm,
        *, refresh: bool = True, steps: int = STEPS, lean: float = 1.0,
    ) -> None:  # fmt: skip
        """`values` (classes,) are known distances of the classes at least, infinite for those that do not count."""
        self.graph, self.ball, self.label, self.slack, self.confirm = graph, ball, label, slack, confirm
        self.refresh, self.steps, self.lean = refresh, steps, lean
        self.batch = min(max(BATCH[0], ENTRIES // sum(node.size for node in graph.nodes)), BATCH[1])
        self.upper = upper
        self.point: Tensor | None = None
        self.reach = float(ball.reach)
        self.rival = values.isfinite().nonzero()[:, 0]
        self.value = values[self.rival].clone()
        n = len(self.rival)
        self.sign = {r.id: torch.zeros(n, *r.shape, dtype=torch.int8) for r in graph.relus}
        self.alpha: dict[int, Tensor] = {}
        self.beta = {r.id: torch.zeros(n, *r.shape) for r in graph.relus}
        self.weight = {r.id: torch.zeros(n, *r.shape) for r in graph.relus}
        """How much the lines of each unit weigh: its coefficient times the height between them."""
        self.proved = torch.ones(n, dtype=torch.bool)
        """Whether the whole ball was proved when the leaf was bounded last: it is to be bounded again, not split."""
        self.split = torch.full((n, 2), -1)
        """The ReLU's id and the unit to split next."""
        self.stuck = torch.zeros(n, dtype=torch.bool)
        self.evaluated = 0
        self.watch = Watch(0)
        self.balls: dict[float, Layers] = {}

    @property
    def lower(self) -> float:
        return min(float(self.value.min()), self.upper) if len(self.value) else self.upper

    @property
    def met(self) -> bool:
        return self.lower >= (1 - EXACT) * self.upper

    def grow(self, watch: Watch) -> None:
        """Until the bounds meet, nothing more can be split, or the time is over."""
        self.watch = watch
        while not watch.over() and not self.met:
            ready = ~self.stuck & (self.value < (1 - EXACT / 2) * self.upper)
            if not bool(ready.any()):
                break
            radius = self._radius(float(self.value[ready].min()))
            chosen = (ready & (self.value < radius)).nonzero()[:, 0]
            chosen = chosen[self.value[chosen].argsort()[: self.batch]]
            again = chosen[self.proved[chosen]]
            apart = chosen[~self.proved[chosen]]
            self._bound(torch.cat([again, self._split(apart)]), radius)

    def touch(self) -> None:
        """Of an affine network every distance is exact: the nearest points are the smallest perturbations."""
        margins = Margins(
            self.graph, self.ball, torch.full_like(self.rival, self.label), self.rival,
            torch.full((len(self.rival),), self.slack, dtype=torch.float64), torch.zeros_like(self.rival),
        )  # fmt: skip
        self._look(margins.distance({})[1])

    def story(self) -> str:
        """Why the bounds have not met, in words."""
        if self.met:
            return ""
        if self.evaluated == 0:
            return "time was enough for linear bounds only"
        nearest = int(self.rival[self.value.argmin()])
        what = "nothing is left to split" if bool(self.stuck[self.value.argmin()]) else "time ran out"
        return f"{what} after {self.evaluated} leaves; class {nearest} may be the nearest"

    def _radius(self, value: float) -> float:
        """The next radius of a geometric sequence below the upper bound."""
        most = min(self.upper, self.reach)
        if not math.isfinite(most):
            return max(value, 1e-9) * GROWTH
        # Just above a radius of the sequence counts as on it: the next is larger by some way.
        steps = math.ceil(math.log(most / max(value, 1e-6 * most)) / math.log(GROWTH) - 1e-3)
        return most * GROWTH ** -(steps - 1) if steps > 1 else most

    def _layers(self, radius: float) -> Layers:
        """The bounds of all units on the ball, before any split."""
        if radius not in self.balls:
            if len(self.balls) > 4:
                self.balls.pop(next(iter(self.balls)))
            one = torch.tensor([radius], dtype=torch.float64)
            self.balls[radius] = bound_units(self.graph, self.ball, one, lean=self.lean)
        return self.balls[radius]

    def _split(self, leaves: Tensor) -> Tensor:
        """Each leaf becomes the one where its unit is active; new ones are those where it is not."""
        if len(leaves) == 0:
            return leaves
        new = torch.arange(len(self.value), len(self.value) + len(leaves))
        for parts in (self.sign, self.alpha, self.beta, self.weight):
            for k in parts:
                parts[k] = torch.cat([parts[k], parts[k][leaves]])
        for name in ("rival", "value", "proved", "split", "stuck"):
            old = getattr(self, name)
            setattr(self, name, torch.cat([old, old[leaves]]))
        for k, sign in self.sign.items():
            here = self.split[leaves, 0] == k
            unit = self.split[leaves[here], 1]
            sign.view(len(sign), -1)[leaves[here], unit] = 1
            sign.view(len(sign), -1)[new[here], unit] = -1
        return torch.cat([leaves, new])

    def _bound(self, leaves: Tensor, radius: float) -> None:
        """Bound these leaves on the ball of this radius."""
        if len(leaves) == 0:
            return
        self.evaluated += len(leaves)
        layers = self._refreshed(leaves, radius)
        empty = layers.empty
        self.value[leaves[empty]] = math.inf
        leaves, keep = leaves[~empty], (~empty).nonzero()[:, 0]
        if len(leaves) == 0:
            return
        layers = layers.of(keep)
        n = len(leaves)
        if not self.alpha:
            self.alpha = {k: v.start.expand(len(self.value), *v.start.shape[1:]).float() for k, v in
                          self._layers(radius).lines.items()}  # fmt: skip
        sign = {k: v[leaves].double() for k, v in self.sign.items() if bool(v[leaves].any())}
        choices = Choices(
            {k: v[leaves].double() for k, v in self.alpha.items()},
            {k: self.beta[k][leaves].double() for k in sign}, sign,
        )  # fmt: skip
        margins = Margins(
            self.graph, self.ball, torch.full((n,), self.label), self.rival[leaves],
            torch.full((n,), self.slack, dtype=torch.float64), None,
        )  # fmt: skip
        enough = torch.full((n,), radius, dtype=torch.float64)
        best = improve(margins, layers.lines, choices, self.steps, enough)
        for k, v in best.choices.alpha.items():
            self.alpha[k][leaves] = v.float()
        for k, v in best.choices.beta.items():
            self.beta[k][leaves] = v.float()
        self.value[leaves] = torch.maximum(self.value[leaves], best.distance.clamp_max(radius))
        self.proved[leaves] = best.distance >= radius
        if radius >= min(self.upper, self.reach):
            done = best.distance >= radius
            self.value[leaves[done]] = math.inf if radius >= self.reach else best.distance[done]
        self._look(best.step)
        self._choose(leaves, layers.lines, best)
        self._settle(leaves, margins, layers.lines, best)

    def _settle(self, leaves: Tensor, margins: Margins, lines: dict[int, Lines], best: Best) -> None:
        """Leaves with nothing left to split: what is missing are the best multipliers, which a solver finds."""
        ended = (self.split[leaves, 0] < 0) & ~self.proved[leaves] & (best.distance < (1 - EXACT / 2) * self.upper)
        for i in ended.nonzero()[:, 0].tolist():
            at = torch.tensor([i])
            one = {k: v.of(at) for k, v in lines.items()}
            alone = Margins(
                self.graph, self.ball, margins.label[at], margins.rival[at], margins.slack[at], None
            )  # fmt: skip
            choices = Choices(
                {k: v[at] for k, v in best.choices.alpha.items()}, {}, {k: v[at] for k, v in best.choices.sign.items()}
            )  # fmt: skip
            distance, steps = solve_leaf(alone, one, choices)
            self.value[leaves[i]] = max(float(self.value[leaves[i]]), distance)
            self._look(steps)
            self._split_any(leaves[i], one)
            if self.watch.over():
                break

    def _split_any(self, leaf: Tensor, lines: dict[int, Lines]) -> None:
        """A solved leaf goes on with its widest unit, or is stuck: its value is what its splits leave."""
        widest = 0.0
        self.stuck[leaf] = True
        for k, line in lines.items():
            height, unit = (line.height * line.unstable).flatten().max(0)
            if float(height) > widest:
                widest, self.stuck[leaf] = float(height), False
                self.split[leaf] = torch.tensor([k, int(unit)])

    def _refreshed(self, leaves: Tensor, radius: float) -> Layers:
        """The bounds of the units in each leaf: those after its first split computed again."""
        n = len(leaves)
        base = self._layers(radius)
        sign = {k: v[leaves] for k, v in self.sign.items()}
        shared = Layers({k: b.split(sign[k]) for k, b in base.bounds.items()}, {})
        slopes = {r.id: r.slope for r in self.graph.relus}
        shared.lines = {k: Lines.around(b, slopes[k], self.lean) for k, b in shared.bounds.items()}
        ids = sorted(slopes)
        if not self.refresh or len(ids) == 1:
            return shared
        first = torch.full((n,), ids[-1])
        for k in reversed(ids[:-1]):
            first[(sign[k] != 0).flatten(1).any(1)] = k
        for k in ids[:-1]:
            at = (first == k).nonzero()[:, 0]
            if len(at) == 0:
                continue
            zero = torch.zeros_like(at)
            fresh = bound_units(
                self.graph, self.ball.of(zero), torch.full((len(at),), radius, dtype=torch.float64),
                known=shared.of(at), sign={j: s[at] for j, s in sign.items()}, since=k,
                only={j: self._heaviest(j, leaves[at]) for j in ids}, lean=self.lean,
            )  # fmt: skip
            for j in ids:
                for name in ("low", "high"):
                    getattr(shared.bounds[j], name)[at] = getattr(fresh.bounds[j], name)
                for name in ("chord", "height", "unstable", "start"):
                    getattr(shared.lines[j], name)[at] = getattr(fresh.lines[j], name)
        return shared

    def _heaviest(self, relu: int, leaves: Tensor) -> Tensor:
        """Which units of a layer weigh most, in each of these leaves."""
        weight = self.weight[relu][leaves]
        flat = weight.flatten(1)
        least = flat.topk(min(ANEW, flat.shape[1]), dim=1).values[:, -1:]
        return ((flat >= least) & (flat > 0)).view_as(weight)

    @torch.no_grad()
    def _look(self, step: Tensor) -> None:
        """Ask the network itself near the leaves' nearest points: one may be the smallest perturbation."""
        size = norm(step, self.ball.p)
        step = step[(size > 0) & (size < self.upper)]
        if len(step) == 0:
            return
        x, down, up = self.ball.x, self.ball.down, self.ball.up
        points = torch.cat([x + torch.minimum(torch.maximum(step * s, -down), up) for s in BEYOND])
        scores = self.graph(points)
        own = scores[:, self.label].clone()
        scores[:, self.label] = -math.inf
        fools = scores[:, self.rival].amax(1) > own
        inside = norm(points - x, self.ball.p) < self.upper * (1 - 1e-6)
        points = points[fools & inside]
        if len(points) == 0:
            return
        points = points[norm(points - x, self.ball.p).argsort()[:8]]
        found = self.confirm(points)
        if found is not None and found[0] < self.upper:
            self.upper, self.point = found

    @torch.no_grad()
    def _choose(self, leaves: Tensor, lines: dict[int, Lines], best: Best) -> None:
        """The unit of each leaf whose lines lose most at its nearest point."""
        values = self.graph.run(self.ball.x + best.step)
        most = torch.zeros(len(leaves), dtype=torch.float64)
        split = torch.full((len(leaves), 2), -1)
        for relu in self.graph.relus:
            z, y, line, a = values[relu.inputs[0].id], values[relu.id], lines[relu.id], best.seen[relu.id]
            alpha = best.choices.alpha[relu.id]
            self.weight[relu.id][leaves] = (a.abs() * line.height).float()
            loss = torch.where(a > 0, a * (y - alpha * z), a * (y - line.chord * z - line.height))
            # Where nothing is lost here, the widest lines are the next best guess.
            loss = (loss + 1e-6 * a.abs() * line.height) * line.unstable
            top, unit = loss.flatten(1).max(1)
            more = top > most
            most = torch.where(more, top, most)
            split[more, 0], split[more, 1] = relu.id, unit[more]
        self.split[leaves] = split
