"""The search of `smallest` for p = 0: which features, and how few of them.

How far a feature moves costs nothing, so what is searched is the support: the units (features, or pixels) that change.
A point of the search moves its units, mostly to their bounds, and may move at most `cap` of them: one fewer than the
best answer. A round costs one forward pass and one backward row:

    linearise   the margin at y: every unit gains something if it goes to its bounds, and every moved unit is worth
                something, which is lost if it goes back
    drop        where the label has changed: the units that are worth least, as many as the linear picture can spare
    add         where it has not, and fewer than `cap` units have moved: those that gain most
    swap        where `cap` have: those worth least for those that gain most, if that gains
    keep        what did not raise the margin is taken back; the units that were tried are not tried again at once

When rounds no longer help, the next descent begins: from x_0 towards another class, or from the best answer with a
random part of its units put back. Each weighs the units by random numbers of its own. The sequence has no end, and does
not depend on the budget, which only says when to stop.
"""

from __future__ import annotations

import math
import zlib

import torch
from torch import Tensor

from deepfool.attacks.shared.adversarial import Evidence, Status
from deepfool.attacks.shared.ranking import rank_classes
from deepfool.attacks.shared.task import Task
from deepfool.classifier.jacobian import difference
from deepfool.norms import by_unit

CLASSES, FAR = 3, 2.0
"""Classes that are tried from x_0 first; not those that look FAR times as far as the nearest, once one has fooled."""
SPLIT = 3
"""Of the units that the linear picture asks for, one in SPLIT is added before it is drawn again."""
PATIENCE = 4
"""Rounds in a row that do not raise the margin, after which a descent is over."""
LEAST, MOST = 0.15, 0.6
"""The share of the best answer's units that a restart puts back is random between these."""
NOISE = 0.5
"""How far random weights spread what units seem to gain in a restart: the standard deviation of their logarithm."""
HALFWAY, AT_BOUND = 0.5, 0.05
"""A moved unit whose gradient points on goes half of the way to its bound, and all of it if little is left."""
STRIDE, SLOWER, FASTER = 0.5, 0.5, 1.5
"""By what share of the best answer the next one is to be smaller, at first and at most; what a descent that did not get
there makes of it, and one that did. It is always at least one unit."""
CLIMB, ROUNDS, SHAKEN = 0.1, 20, 0.1
"""While nothing fools: all units climb, by this share of the box a round, for so many rounds; the second climb starts
this share of the box away from x_0, the next ones twice as far each."""
AGAIN = 4
"""Every so many restarts, one goes from x_0 to a class once more."""
LOST = 6
"""Descents after which gradients are given up where nothing has fooled."""
QUERIES = 500
"""Forward passes of the search by decisions then, and of thinning out what it finds."""
QUIET, LONGEST = 30, 10_000
"""Without a budget: the end comes after QUIET restarts in a row that found nothing, or LONGEST passes."""


class Supports:
    """The point of every sample, and where it stands in its sequence of descents."""

    def __init__(self, task: Task, budget: int | None, candidates: int, seed: int) -> None:
        asked = task.asked
        self.task, self.asked, self.model, self.best = task, asked, task.model, task.best
        self.lower, self.upper = asked.walls(asked.everyone)
        self.channels = asked.channels
        self.budget, self.endless = LONGEST if budget is None else budget, budget is None
        self.ranking = rank_classes(task, candidates, keep=CLASSES)
        self.tried = self.ranking.slopes.shape[1]
        """How many classes are gone to from x_0."""
        self.random = [
            torch.Generator().manual_seed(zlib.crc32(str(seed).encode() + x.cpu().numpy().tobytes())) for x in asked.x_0
        ]
        self.found_by, self.caution = Evidence.GRADIENTS, ""
        if self.model.masks:
            self.found_by = Evidence.REPAIRED
            self.caution = f"found by gradients past what hides them in this model: {', '.join(self.model.masks)}"
        n, self.units = len(asked.x_0), asked.x_0.shape[1] // self.channels
        self.place = torch.arange(self.units, device=asked.x_0.device)

        def each(value: float) -> Tensor:
            return torch.full_like(asked.x_0[:, 0], value)

        # The sequence: descents begun, whether the running one is over, whether there is nothing more to do.
        self.begun = torch.full_like(asked.label, -1)
        self.over = torch.ones_like(asked.label, dtype=torch.bool)
        self.ended, self.sloped = torch.zeros_like(self.over), torch.zeros_like(self.over)
        self.quiet, self.before, self.stride = each(0), each(math.inf), each(STRIDE)
        self.climbing, self.rounds = torch.zeros_like(self.over), each(0)
        # A descent: its point, the class it is after (-1: any), most units, random weights of what units gain.
        self.y, self.target = asked.x_0.clone(), torch.full_like(asked.label, -1)
        self.cap, self.weight = each(self.units), asked.x_0.new_ones(n, self.units)
        # The best point under the cap with its gradient and margin; rounds in a row that did not beat it; the units
        # that were tried there in vain; how many are swapped at once.
        self.anchor, self.slope, self.margin = asked.x_0.clone(), torch.zeros_like(asked.x_0), each(-math.inf)
        self.idle, self.swaps = each(0), each(1)
        self.tabu = torch.zeros(n, self.units, dtype=torch.bool, device=asked.x_0.device)

    def run(self) -> None:
        rows = self.task.rows
        for _ in range(2 * self.budget):
            rows = rows[~self.ended[rows] & (self._left(rows) >= 2)]
            fresh = rows[self.over[rows]]
            if len(fresh):
                self._begin(fresh)
                rows = rows[~self.ended[rows]]
            if len(rows) == 0:
                break
            self._round(rows)
        self.best.give_up(
            self.task.rows, Status.STUCK, "neither gradients nor decisions led to another label; raise the budget"
        )

    def _left(self, rows: Tensor) -> Tensor:
        """Passes that these samples may still make: as many as it takes until something fools."""
        left = self.budget - self.model.spent(rows)
        return torch.where(self.best.found(rows), left, left + LONGEST)

    def _begin(self, rows: Tensor) -> None:
        """The next descent of these samples; those that have none are ended."""
        found = self.best.found(rows)
        helped = self.best.size[rows] < self.before[rows]
        self.quiet[rows] = torch.where(helped | (self.begun[rows] < self.tried), 0.0, self.quiet[rows] + 1)
        self.stride[rows] = (self.stride[rows] * torch.where(helped, FASTER, SLOWER)).clamp(1e-6, STRIDE)
        self.before[rows] = self.best.size[rows]
        self.begun[rows] += 1
        self.ended[rows] = (self.best.size[rows] <= 1) | (self.endless & found & (self.quiet[rows] >= QUIET))
        rows = rows[~self.ended[rows]]
        if len(rows) == 0:
            return
        known, k = self.best.found(rows), self.begun[rows]
        for _ in range(self.tried):  # once something has fooled, classes that look far are passed over
            far = self.ranking.distance[rows, k.clamp_max(self.tried - 1)] > FAR * self.ranking.nearest(rows)
            k = k + ((k < self.tried) & far & known).long()
        self.begun[rows] = k
        self.over[rows], self.idle[rows], self.margin[rows] = False, 0, -math.inf
        self.tabu[rows] = False
        self.cap[rows] = torch.where(known, self._aim(rows), float(self.units))
        self.rounds[rows], self.climbing[rows] = 0, ~known & (k > 0)
        self.swaps[rows] = torch.ceil(torch.where(known, self.cap[rows] / 4, 1.0))
        first = k < self.tried
        again = ~first & ((k - self.tried) % AGAIN == AGAIN - 1)
        draws = torch.stack([torch.randn(2, self.units, generator=self.random[i]) for i in rows.tolist()]).to(self.y)
        self.weight[rows] = torch.where(first[:, None], 1.0, torch.exp(NOISE * draws[:, 0]))
        direct = (first | again) & ~self.climbing[rows]
        place = torch.where(first, k, torch.div(k - self.tried, AGAIN, rounding_mode="floor") % self.tried)
        self.target[rows] = torch.where(
            direct, self.ranking.order[rows].gather(1, place[:, None])[:, 0], torch.full_like(k, -1)
        )
        self._start_at_inputs(rows[direct], place[direct])
        self._shake(rows[self.climbing[rows]], draws[self.climbing[rows], 1])
        kicked = ~direct & ~self.climbing[rows]
        self._kick(rows[kicked], draws[kicked, 1])

    def _start_at_inputs(self, rows: Tensor, place: Tensor) -> None:
        """From x_0 towards a class whose gradient there is known."""
        self.anchor[rows], self.slope[rows] = self.asked.x_0[rows], self.ranking.slopes[rows, place]
        self.margin[rows] = -self.ranking.gaps[rows, place]
        self._add_or_swap(rows)
        self.over[rows] = False

    def _aim(self, rows: Tensor) -> Tensor:
        """How many units the next answer may move."""
        size = self.best.size[rows]
        return size - torch.floor(self.stride[rows] * size).clamp_min(1)

    def _shake(self, rows: Tensor, draw: Tensor) -> None:
        """Begin to climb: the first time at x_0, then farther and farther away from it."""
        away = SHAKEN * 2.0 ** (self.begun[rows] - 2) * (self.begun[rows] > 1)
        r = self._spread(draw.sign()) * away[:, None] * (self.upper[rows] - self.lower[rows])
        r = r if self.asked.mask is None else r * self.asked.mask[rows]
        self.y[rows] = self.asked.clamp(rows, self.asked.x_0[rows] + r)

    def _climb(self, rows: Tensor, y: Tensor, w: Tensor) -> None:
        """All units one step up the gradient."""
        self.y[rows] = self.asked.clamp(rows, y + CLIMB * (self.upper[rows] - self.lower[rows]) * w.sign())
        self.rounds[rows] += 1
        self.over[rows] = (self.rounds[rows] >= ROUNDS) | ~(w != 0).any(1)

    def _kick(self, rows: Tensor, draw: Tensor) -> None:
        """From the best answer, with a random part of its units put back."""
        if len(rows) == 0:
            return
        y = self.asked.x_0[rows] + self.best.r[rows]
        moved = self._moved(rows, y)
        share = LEAST + (MOST - LEAST) * torch.frac(draw[:, 0].abs() * 1000)
        count = torch.maximum(torch.ceil(share * moved.sum(1)), moved.sum(1) - self.cap[rows])
        order = torch.where(moved, draw, math.inf).argsort(1)
        out = torch.zeros_like(moved).scatter_(1, order, self.place < count[:, None])
        self.y[rows] = torch.where(self._spread(out), self.asked.x_0[rows], y)

    def _round(self, rows: Tensor) -> None:
        """Linearise every sample at its point; then drop, add or swap units."""
        y = self.y[rows]
        z, d, w = self._linearise(rows, y)
        self.best.iterations[rows] += 1
        self.sloped[rows] |= (w != 0).any(1)
        r = y - self.asked.x_0[rows]
        fooled = self.best.report(rows, r, z, caution=self.caution, evidence=self.found_by)
        climbing = self.climbing[rows] & ~fooled
        self.climbing[rows] = climbing
        self._climb(rows[climbing], y[climbing], w[climbing])
        rows, y, d, w, fooled = (v[~climbing] for v in (rows, y, d, w, fooled))
        better = fooled | (d > self.margin[rows])
        self._keep(rows[better], y[better], w[better], torch.where(fooled, -math.inf, d)[better])
        self._step_back(rows[~better], y[~better])
        self.cap[rows] = torch.where(fooled, self._aim(rows), self.cap[rows])
        self.over[rows] |= (self.idle[rows] >= PATIENCE) | (self.best.size[rows] <= 1)
        going = ~self.over[rows]
        self._drop(rows[fooled & going], d[fooled & going])
        self._add_or_swap(rows[~fooled & going])

    def _keep(self, rows: Tensor, y: Tensor, w: Tensor, d: Tensor) -> None:
        self.anchor[rows], self.slope[rows], self.margin[rows] = y, w, d
        self.idle[rows], self.tabu[rows] = 0, False

    def _step_back(self, rows: Tensor, y: Tensor) -> None:
        """Back to the anchor; the units that were added are not tried there again."""
        self.idle[rows] += 1
        self.swaps[rows] = torch.ceil(self.swaps[rows] / 2)
        self.tabu[rows] |= self._moved(rows, y) & ~self._moved(rows, self.anchor[rows])

    def _drop(self, rows: Tensor, d: Tensor) -> None:
        """The units that are worth least go back: as many as the margin can spare, and at least one."""
        if len(rows) == 0:
            return
        moved, worth, _ = self._judge(rows)
        least, order = torch.where(moved, worth, math.inf).sort(1)
        spared = torch.where(least.isfinite(), least, 0.0).cumsum(1) < d[:, None]
        count = moved.sum(1)
        gone = spared | (self.place < (count - self.cap[rows])[:, None])
        gone &= self.place < (count - 1).clamp_min(1)[:, None]
        out = torch.zeros_like(moved).scatter_(1, order, gone.long().cumprod(1).bool())
        self._move(rows, out, torch.zeros_like(out))

    def _add_or_swap(self, rows: Tensor) -> None:
        """Under the cap, add the units that gain most; at the cap, swap those worth least for them while it gains."""
        if len(rows) == 0:
            return
        moved, worth, gain = self._judge(rows)
        offered = torch.where(moved | self.tabu[rows], 0.0, gain * self.weight[rows])
        most, order = offered.sort(dim=1, descending=True)
        least, worst = torch.where(moved, worth, math.inf).sort(1)
        free = (self.cap[rows] - moved.sum(1)).clamp_min(0)
        wanted = 1 + (gain.gather(1, order).cumsum(1) < -self.margin[rows, None]).sum(1)
        added = torch.ceil(torch.minimum(wanted.to(free.dtype), free) / SPLIT)
        swapped = (free == 0)[:, None] & (most > least) & (self.place < self.swaps[rows, None])
        chosen = ((self.place < added[:, None]) & (most > 0)) | swapped
        into = torch.zeros_like(moved).scatter_(1, order, chosen)
        out = torch.zeros_like(moved).scatter_(1, worst, swapped)
        self.over[rows] |= ~into.any(1) & (self.idle[rows] > 0)
        self._move(rows, out, into)

    def _judge(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """At the anchors, (k, units) each: which units have moved, what those are worth, what a unit can gain."""
        x, y, w = self.asked.x_0[rows], self.anchor[rows], self.slope[rows]
        bound = torch.where(w > 0, self.upper[rows], self.lower[rows])
        gain, worth = (by_unit(w * (to - x), self.channels).sum(-2) for to in (bound, y))
        return self._moved(rows, y), worth, gain

    def _move(self, rows: Tensor, out: Tensor, into: Tensor) -> None:
        """From the anchors: units `out` go back, units `into` go to their bounds, the others on towards theirs."""
        x, y, w = self.asked.x_0[rows], self.anchor[rows], self.slope[rows]
        lower, upper = self.lower[rows], self.upper[rows]
        bound = torch.where(w > 0, upper, torch.where(w < 0, lower, y))
        near = (bound - y).abs() <= AT_BOUND * (upper - lower)
        onward = torch.where(near, bound, y + HALFWAY * (bound - y))
        stay = self._spread(self._moved(rows, y) & ~out)
        self.y[rows] = torch.where(self._spread(into), bound, torch.where(stay, onward, x))

    def _moved(self, rows: Tensor, y: Tensor) -> Tensor:
        """(k, units): which units differ from x_0."""
        return by_unit(y != self.asked.x_0[rows], self.channels).any(-2)

    def _spread(self, units: Tensor) -> Tensor:
        """(k, units) as (k, d)."""
        return units.repeat(1, self.channels)

    def _linearise(self, rows: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scores at y, and the margin of the class that the descent is after (once fooled: any), with its gradient."""
        target = self.target[rows]

        def choose(guide: Tensor) -> tuple[Tensor, Tensor]:
            reached = self.best.is_fooled(rows, guide) | (target < 0)
            return self.asked.goal.pair_towards(rows, guide, target.clamp_min(0), reached)

        z, guide, w = self.model.guided_gradient(rows, y, lambda _, guide: difference(guide, *choose(guide)))
        gain, loss = choose(guide)
        d = (guide.gather(1, gain[:, None]) - guide.gather(1, loss[:, None]))[:, 0]
        return z, torch.nan_to_num(d).to(y.dtype), w
