"""Branch and bound for one sample: ReLUs are split into active and inactive until the bounds meet.

A leaf is a rival class and the signs of some ReLUs. Its value is how far away, at least, points of that class with
those signs are; the least value of all leaves is certified. The leaves with the least values are split first. A leaf is
bounded on a ball a little larger than its value, so that lines are as tight as they can be. If the whole ball is
proved, the leaf is bounded again later, on a larger one, without a split.

Bounds at the radius are computed once for all leaves; after a split some of the later layers are computed again, with
the lines that the split made exact, and handed down. The ReLU to split is the one whose lines lose most at the nearest
point.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable

import torch
from torch import Tensor

from deepfool.certificates.backward import Choices
from deepfool.certificates.ball import Ball
from deepfool.certificates.frontier import Frontier
from deepfool.certificates.graph import Graph
from deepfool.certificates.layers import Layers
from deepfool.certificates.leaves import solve_leaf
from deepfool.certificates.margins import Best, Margins, improve
from deepfool.certificates.relaxation import Lines
from deepfool.certificates.timing import TimeIsOverError, Watch
from deepfool.certificates.units import bound_units
from deepfool.norms import norm

EXACT = 1e-3
"""A lower bound this close to the upper one, relatively, is exact."""
GROWTH = 1.02
"""From one radius to the next. With 1.05 fc500-mnist gets a median of 0.615 in l2 at 1 s, instead of 0.623."""
FEW = 64
"""Undecided units with which a search is likely to end: then leaves are bounded on the whole ball at once. On
mlp-mnist-small, with 48, that takes half the leaves of growing balls."""
BATCH, ENTRIES = (8, 128), 120_000
"""Leaves that are split at once, at least and at most; in between, so many entries of all nodes together."""
STEPS = 2
"""Steps in the slopes and multipliers for each leaf: with 8, mlp-mnist-small takes a tenth fewer leaves and twice the
time."""
ANEW, BELOW = 8, 0.2
"""Units of each later layer that are bounded again after a split: those whose lines weigh most, and how much the lines
below count beside those above. With 24 units mlp-mnist-small takes a fifth fewer leaves and a third more time."""
BEYOND = (1.0, 1 + 1e-5, 1 + 1e-4, 1 + 5e-4)
"""How far along the way to a leaf's nearest point the network itself is asked."""

Confirm = Callable[[Tensor], tuple[float, Tensor] | None]
"""Points (k, d) to the norm and the point of the nearest that really changes the decision, if any does."""


class Tree:
    """The tree of one sample. `lower` and `upper` only ever come closer."""

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
        self.rivals = values.isfinite().nonzero()[:, 0]
        self.leaves = Frontier(graph, values)
        self.balls: dict[float, Layers] = {}
        self.evaluated = 0
        self.growth = GROWTH

    @property
    def lower(self) -> float:
        return min(float(self.leaves.least().min()), self.upper)

    @property
    def met(self) -> bool:
        return self.lower >= (1 - EXACT) * self.upper

    def grow(self, watch: Watch) -> None:
        """Until the bounds meet, nothing more can be split, or the time is over."""
        self.watch = watch
        with contextlib.suppress(TimeIsOverError):
            if math.isfinite(self.upper) and not watch.over() and not self.met and self._has_few():
                self.growth = math.inf
            while not watch.over() and not self.met:
                leaves = self.leaves
                leaves.drop(leaves.value >= (1 - EXACT / 2) * self.upper)
                ready = ~leaves.stuck
                if not bool(ready.any()):
                    break
                radius = self._radius(float(leaves.value[ready].min()))
                chosen = (ready & (leaves.value < radius)).nonzero()[:, 0]
                chosen = chosen[leaves.value[chosen].argsort()[: self.batch]]
                again = chosen[leaves.proved[chosen]]
                apart = chosen[~leaves.proved[chosen]]
                layers = self._layers(radius)
                self._bound(torch.cat([again, leaves.halve(apart)]), layers, radius)

    def _has_few(self) -> bool:
        """Whether few units are undecided: on the first ball, and on that of the upper bound too."""
        if len(self.graph.bends) > len(self.graph.relus):  # smaller balls are what makes curved lines better
            return False
        most = min((1 + 2 * EXACT) * self.upper, self.reach)
        for radius in (self._radius(float(self.leaves.value.min())), most):
            if sum(int(each.unstable.sum()) for each in self._layers(radius).lines.values()) > FEW:
                return False
        return True

    def touch(self) -> None:
        """Of an affine network every distance is exact: the nearest points are the smallest perturbations."""
        margins = self._margins(self.rivals, torch.zeros_like(self.rivals))
        self._look(margins.distance(Layers.begin(self.graph, self.ball))[1])

    def story(self) -> str:
        """Why the bounds have not met, in words."""
        if self.met:
            return ""
        if not self.graph.relus:
            return "linear bounds only: there is no ReLU to split"
        if self.evaluated == 0:
            return "time was enough for linear bounds only"
        nearest = int(self.leaves.value.argmin())
        what = "nothing is left to split" if bool(self.leaves.stuck[nearest]) else "time ran out"
        return f"{what} after {self.evaluated} leaves; class {int(self.leaves.rival[nearest])} may be the nearest"

    def _margins(self, rival: Tensor, who: Tensor | None) -> Margins:
        n = len(rival)
        slack = torch.full((n,), self.slack, dtype=torch.float64)
        return Margins(self.graph, self.ball, torch.full((n,), self.label), rival, slack, who)

    def _radius(self, value: float) -> float:
        """The next radius of a geometric sequence that ends at the upper bound.

        It ends a little above, so that a wrong bound shows: on a ball that ends below, no bound can contradict it.
        """
        most = min((1 + 2 * EXACT) * self.upper, self.reach)
        if math.isinf(self.growth):
            return most
        if not math.isfinite(most):
            return max(value, 1e-9) * self.growth
        # Just above a radius of the sequence counts as on it: the next is larger by some way.
        steps = math.ceil(math.log(most / max(value, 1e-6 * most)) / math.log(self.growth) - 1e-3)
        return most * self.growth ** -(steps - 1) if steps > 1 else most

    def _layers(self, radius: float) -> Layers:
        """The bounds of all units on the ball, before any split."""
        if radius not in self.balls:
            if len(self.balls) > 4:
                self.balls.pop(next(iter(self.balls)))
            one = torch.tensor([radius], dtype=torch.float64)
            self.balls[radius] = bound_units(self.graph, self.ball, one, lean=self.lean, watch=self.watch)
        return self.balls[radius]

    def _bound(self, chosen: Tensor, whole: Layers, radius: float) -> None:
        """Bound these leaves on the ball of this radius, on which `whole` holds."""
        leaves = self.leaves
        if not leaves.begun:
            leaves.begun = True
            for k, line in whole.lines.items():
                leaves.alpha[k][:] = line.start.float()
        self.evaluated += len(chosen)
        layers = leaves.layers(chosen, whole, radius, self.lean)
        chosen, layers = self._without_empty(chosen, layers)
        chosen, layers = self._without_proved(chosen, layers, radius)
        if self.refresh and len(leaves.bends) > 1 and len(chosen):
            self._refresh(chosen, layers, radius)
            chosen, layers = self._without_empty(chosen, layers)
        if len(chosen) == 0:
            return
        leaves.keep_layers(chosen, layers, radius)
        margins, choices = self._margins(leaves.rival[chosen], None), self._choices(chosen)
        enough = torch.full((len(chosen),), radius, dtype=torch.float64)
        best = improve(margins, layers, choices, self.steps, enough)
        for k, v in best.choices.alpha.items():
            leaves.alpha[k][chosen] = v.float()
        for k, v in best.choices.beta.items():
            leaves.beta[k][chosen] = v.float()
        self._credit(chosen, best.distance, radius)
        self._look(best.step)
        self._choose(chosen, layers.lines, best)
        self._settle(chosen, margins, layers, best)

    def _credit(self, chosen: Tensor, distance: Tensor, radius: float) -> None:
        """What a distance at this radius proves; of the whole box, for good."""
        leaves = self.leaves
        proved = distance >= radius
        found = distance.clamp_max(radius)
        if radius >= self.reach:
            found[proved] = math.inf
        leaves.value[chosen] = torch.maximum(leaves.value[chosen], found)
        leaves.proved[chosen] = proved

    def _choices(self, chosen: Tensor) -> Choices:
        leaves = self.leaves
        kind = self.graph.rows
        sign = {k: v[chosen].to(kind) for k, v in leaves.sign.items() if bool(v[chosen].any())}
        return Choices(
            {k: v[chosen].to(kind) for k, v in leaves.alpha.items()},
            {k: leaves.beta[k][chosen].to(kind) for k in sign}, sign,
        )  # fmt: skip

    def _without_empty(self, chosen: Tensor, layers: Layers) -> tuple[Tensor, Layers]:
        """Leaves whose signs contradict each other hold no points at all."""
        if len(chosen) == 0:
            return chosen, layers
        empty = layers.empty
        self.leaves.value[chosen[empty]] = math.inf
        return (chosen, layers) if not bool(empty.any()) else (chosen[~empty], layers.of((~empty).nonzero()[:, 0]))

    def _without_proved(self, chosen: Tensor, layers: Layers, radius: float) -> tuple[Tensor, Layers]:
        """What the leaf before a split was bounded with is often enough for one of its halves."""
        if len(chosen) == 0:
            return chosen, layers
        margins = self._margins(self.leaves.rival[chosen], None)
        distance, _ = margins.distance(layers, self._choices(chosen))
        proved = distance >= radius
        self._credit(chosen[proved], distance[proved], radius)
        return chosen[~proved], layers.of((~proved).nonzero()[:, 0])

    def _settle(self, chosen: Tensor, margins: Margins, layers: Layers, best: Best) -> None:
        """Leaves with nothing left to split: what is missing are the best multipliers, which a solver finds."""
        leaves = self.leaves
        ended = (leaves.split[chosen, 0] < 0) & ~leaves.proved[chosen] & (best.distance < (1 - EXACT / 2) * self.upper)
        for i in ended.nonzero()[:, 0].tolist():
            at = torch.tensor([i])
            one = layers.of(at)
            choices = Choices(
                {k: v[at] for k, v in best.choices.alpha.items()}, {}, {k: v[at] for k, v in best.choices.sign.items()}
            )  # fmt: skip
            distance, steps = solve_leaf(self._margins(margins.rival[at], None), one, choices)
            leaves.value[chosen[i]] = max(float(leaves.value[chosen[i]]), distance)
            self._look(steps)
            self._split_any(chosen[i], one.lines)
            if self.watch.over():
                break

    def _split_any(self, leaf: Tensor, lines: dict[int, Lines]) -> None:
        """A solved leaf goes on with its widest unit, or is stuck: its value is what its splits leave."""
        widest = 0.0
        self.leaves.stuck[leaf] = True
        for k, line in lines.items():
            height, unit = (line.height * line.unstable).flatten().max(0)
            if float(height) > widest:
                widest, self.leaves.stuck[leaf] = float(height), False
                self.leaves.split[leaf] = torch.tensor([k, int(unit)])

    def _refresh(self, chosen: Tensor, layers: Layers, radius: float) -> None:
        """Bound the units after a split again, in place: after the last one, or after all if the ball is a new one."""
        leaves, ids = self.leaves, sorted(self.leaves.bends)
        first = torch.full((len(chosen),), ids[-1])
        for k in reversed(ids[:-1]):
            first[(leaves.sign[k][chosen] != 0).flatten(1).any(1)] = k
        own = (leaves.within[chosen] >= radius) & (leaves.last[chosen] >= 0)
        first = torch.where(own, leaves.last[chosen], first)
        one = torch.tensor([radius], dtype=torch.float64)
        for k in ids[:-1]:
            at = (first == k).nonzero()[:, 0]
            if len(at) == 0:
                continue
            fresh = bound_units(
                self.graph, self.ball, one, known=layers.of(at), since=k, lean=self.lean,
                sign={j: leaves.sign[j][chosen[at]] for j in ids},
                only={j: leaves.heaviest(j, chosen[at], ANEW) for j in ids},
            )  # fmt: skip
            for j in ids:
                for name in ("low", "high"):
                    getattr(layers.bounds[j], name)[at] = getattr(fresh.bounds[j], name)
                for name in ("chord", "height", "unstable", "start", "floor", "rise", "sink"):
                    if getattr(fresh.lines[j], name) is not None:
                        getattr(layers.lines[j], name)[at] = getattr(fresh.lines[j], name)

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
        fools = scores[:, self.rivals].amax(1) > own
        inside = norm(points - x, self.ball.p) < self.upper * (1 - 1e-6)
        points = points[fools & inside]
        if len(points) == 0:
            return
        points = points[norm(points - x, self.ball.p).argsort()[:8]]
        found = self.confirm(points)
        if found is not None and found[0] < self.upper:
            self.upper, self.point = found

    @torch.no_grad()
    def _choose(self, chosen: Tensor, lines: dict[int, Lines], best: Best) -> None:
        """The unit of each leaf whose lines lose most at its nearest point."""
        values = self.graph.run(self.ball.x + best.step)
        most = torch.zeros(len(chosen), dtype=torch.float64)
        split = torch.full((len(chosen), 2), -1)
        for bend in self.graph.bends:
            z, y, line, a = values[bend.inputs[0].id], values[bend.id], lines[bend.id], best.seen[bend.id]
            alpha = best.choices.alpha[bend.id]
            # The line below an undecided unit does not depend on its bounds: it gains only by being decided.
            weight = (BELOW * a.clamp_min(0) - a.clamp_max(0)) * line.height
            self.leaves.weight[bend.id][chosen] = weight.float()
            loss = torch.where(a > 0, a * (y - alpha * z), a * (y - line.chord * z - line.height))
            # Where nothing is lost here, the widest lines are the next best guess.
            loss = (loss + 1e-6 * a.abs() * line.height) * line.unstable
            top, unit = loss.flatten(1).max(1)
            more = top > most
            most = torch.where(more, top, most)
            split[more, 0], split[more, 1] = bend.id, unit[more]
        self.leaves.split[chosen] = split
