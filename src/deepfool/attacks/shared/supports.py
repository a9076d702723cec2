"""The search of `smallest` for p = 0: which features, and how few of them.

How far a feature moves costs nothing, so what is searched is the support: the units (features, or pixels) that change.
A point of the search may move at most `cap` of them, fewer than the best answer does. Descents of two kinds take turns,
and a round of either costs one forward pass and one backward row:

    few      from x_0 towards a class, or from the best answer with a random part of its units put back; round by round:
      linearise   the margin at y: every unit gains something if it goes to its bounds, and every moved unit is worth
                  something, which is lost if it goes back
      drop        where the label has changed: the units that are worth least, as many as the linear picture can spare
      add         where it has not, and fewer than `cap` units have moved: those that gain most
      swap        where `cap` have: those worth least for those that gain most, while that gains
      keep        what did not raise the margin is taken back; the units that were tried are not tried again at once
    smooth   from x_0 by the steps of sigma-zero, which move all units and cut most of them off again: on networks whose
             gradient at x_0 says little, this finds other and smaller supports

The sequence of descents has no end and does not depend on the budget, which only says when to stop. Where the first two
have not fooled, all units climb, from points farther and farther away from x_0, and at last the decisions alone are
searched. The first answer of a descent that moves all units is thinned out at once (prefixes.py).
"""

from __future__ import annotations

import math
import zlib
from enum import IntEnum

import torch
from torch import Tensor

from deepfool.attacks.shared.adversarial import Evidence, Status
from deepfool.attacks.shared.decisions import search_by_decisions
from deepfool.attacks.shared.prefixes import Prefix
from deepfool.attacks.shared.ranking import rank_classes
from deepfool.attacks.shared.task import Task
from deepfool.attacks.sigma_zero import LAST, Smooth
from deepfool.classifier.jacobian import difference
from deepfool.norms import by_unit

# Chosen by hand; docs/algorithms/few-features.md names the networks, and says what other values gave there.
CLASSES, FAR = 3, 2.0
"""Classes that are tried from x_0 first; not those that look FAR times as far as the nearest, once one has fooled."""
SPLIT, EAGER = 3, 3.0
"""Of the units that the linear picture asks for, one in SPLIT is added before it is drawn again; while nothing has
fooled, EAGER times as many after each round that did not raise the margin."""
PATIENCE = 4
"""Rounds in a row that do not raise the margin, after which a descent is over."""
LEAST, MOST = 0.15, 0.6
"""The share of the best answer's units that a restart puts back is random between these."""
NOISE, PLAIN = 0.5, 2
"""How far random weights spread what units seem to gain, as the standard deviation of their logarithm; not in the first
PLAIN descents."""
HALFWAY, AT_BOUND = 0.5, 0.05
"""A moved unit whose gradient points on goes half of the way to its bound, and all of it if little is left."""
STRIDE, SLOWER, FASTER = 0.5, 0.5, 1.5
"""By what share of the best answer the next one is to be smaller, at first and at most; what a descent that did not get
there makes of it, and one that did. It is always at least one unit."""
LENGTHS, KICKS = (30, 100, 250, 400), 2
"""Rounds of the smooth descents, the last of them again and again; restarts for every 50 rounds of them."""
SIGMA, CUT, CUT_STEP = 1e-3, 0.3, 0.01
"""Smooth descents: sigma-zero's own constants."""
CLIMB, ROUNDS, SHAKEN = 0.1, 20, 0.1
"""While nothing fools: all units climb, by this share of the box a round, for so many rounds; the second climb starts
this share of the box away from x_0, the next ones twice as far each."""
LOST, QUERIES = 6, 500
"""Climbs after which gradients are given up where nothing has fooled; forward passes of the search by decisions."""
QUIET, LONGEST = 30, 10_000
"""Without a budget: the end comes after QUIET restarts in a row that found nothing, or LONGEST passes."""

MASKED = (
    "found by decisions alone: the gradients are zero or mislead here (gradient masking?), so far fewer features may do"
)


class Kind(IntEnum):
    """What a descent does."""

    DIRECT = 0
    """From x_0 towards a class."""
    SMOOTH = 1
    REFINE = 2
    """From the best answer: drop what can be dropped."""
    KICK = 3
    """From the best answer with a part of its units put back."""


def list_descents(tried: int, most: int) -> list[tuple[Kind, int]]:
    """The sequence: what the first `most` descents do, with the class (by its rank) or the rounds of each.

    >>> [kind.name for kind, _ in list_descents(2, 8)]
    ['DIRECT', 'SMOOTH', 'REFINE', 'DIRECT', 'KICK', 'SMOOTH', 'REFINE', 'DIRECT']
    """
    found = [(Kind.DIRECT, 0)]
    turn = 0
    while len(found) < most:
        length = LENGTHS[min(turn, len(LENGTHS) - 1)]
        found += [(Kind.SMOOTH, length), (Kind.REFINE, 0)]
        found += [(Kind.DIRECT, k) for k in range(1, tried)] if turn == 0 else [(Kind.DIRECT, turn % tried)]
        found += [(Kind.KICK, 0)] * (KICKS * length // 50)
        turn += 1
    return found[:most]


class Supports:
    """The point of every sample, and where it stands in its sequence of descents."""

    def __init__(self, task: Task, budget: int | None, candidates: int, seed: int) -> None:
        asked = task.asked
        self.task, self.asked, self.model, self.best = task, asked, task.model, task.best
        self.lower, self.upper = asked.walls(asked.everyone)
        self.channels, self.units = asked.channels, asked.x_0.shape[1] // asked.channels
        self.budget, self.endless = LONGEST if budget is None else budget, budget is None
        self.ranking = rank_classes(task, candidates, keep=CLASSES)
        self.plan = torch.tensor(list_descents(self.ranking.slopes.shape[1], self.budget), device=asked.label.device)
        """What each descent does: its kind, and its class or its rounds."""
        self.smooth = Smooth(asked, SIGMA, CUT_STEP)
        self.random = [
            torch.Generator().manual_seed(zlib.crc32(str(seed).encode() + x.cpu().numpy().tobytes())) for x in asked.x_0
        ]
        self.found_by, self.caution = Evidence.GRADIENTS, ""
        if self.model.masks:
            self.found_by = Evidence.REPAIRED
            self.caution = f"found by gradients past what hides them in this model: {', '.join(self.model.masks)}"
        self.place = torch.arange(self.units, device=asked.x_0.device)

        def each(value: float) -> Tensor:
            return torch.full_like(asked.x_0[:, 0], value)

        def no() -> Tensor:
            return torch.zeros_like(asked.label, dtype=torch.bool)

        # The sequence: descents begun, whether the running one is over, whether there is nothing more to do; restarts
        # in a row that found nothing; what the best answer was before; by how much the next is to be smaller.
        self.begun, self.over, self.ended = torch.full_like(asked.label, -1), ~no(), no()
        self.quiet, self.before, self.stride = each(0), each(math.inf), each(STRIDE)
        # A descent: its point, the class it is after (-1: any), how it moves, rounds so far and at most; whether its
        # first answer is being thinned out.
        self.y, self.target = asked.x_0.clone(), torch.full_like(asked.label, -1)
        self.climbing, self.smoothing, self.rounds, self.length = no(), no(), each(0), each(0)
        self.thinning, self.prefix = no(), Prefix(asked)
        # Few units: most of them, random weights of what they gain; the best point under the cap with its gradient and
        # margin; rounds in a row that did not beat it; the units tried there in vain; how many are swapped at once.
        self.cap, self.weight = each(self.units), torch.ones_like(by_unit(asked.x_0, self.channels)[:, 0])
        self.anchor, self.slope, self.margin = asked.x_0.clone(), torch.zeros_like(asked.x_0), each(-math.inf)
        self.idle, self.tabu, self.swaps = each(0), torch.zeros_like(self.weight, dtype=torch.bool), each(1)

    def run(self) -> None:
        rows = self.task.rows
        for _ in range(self.budget + LOST * ROUNDS):  # a round takes two passes, or begins the search by decisions
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
        """Passes that these samples may still make: as many as it takes until something fools and is thinned out."""
        left = self.budget - self.model.spent(rows)
        return torch.where(self.best.found(rows) & ~self.thinning[rows], left, left + LONGEST)

    # Descents

    def _begin(self, rows: Tensor) -> None:
        """The next descent of these samples; those that have none are ended."""
        found = self.best.found(rows)
        helped = self.best.size[rows] < self.before[rows]
        self.quiet[rows] = torch.where(helped, 0.0, self.quiet[rows] + 1)
        self.stride[rows] = (self.stride[rows] * torch.where(helped, FASTER, SLOWER)).clamp(1e-6, STRIDE)
        self.before[rows] = self.best.size[rows]
        self.begun[rows] += 1
        last = (self.begun[rows] >= len(self.plan)) | (self.endless & (self.quiet[rows] >= QUIET))
        self.ended[rows] = (self.best.size[rows] <= 1) | (found & last)
        self._search_by_decisions(rows[~found & (self.begun[rows] > LOST)])
        rows = rows[~self.ended[rows]]
        if len(rows) == 0:
            return
        self._pass_over(rows)
        known, (kind, value) = self.best.found(rows), self.plan[self.begun[rows].clamp_max(len(self.plan) - 1)].T
        self.over[rows], self.idle[rows], self.rounds[rows], self.tabu[rows] = False, 0, 0, False
        self.margin[rows], self.target[rows] = -math.inf, -1
        self.cap[rows] = torch.where(known, self._aim(rows), float(self.units))
        self.swaps[rows] = torch.ceil(torch.where(known, self.cap[rows] / 4, 1.0))
        draws = torch.stack([torch.randn(2, self.units, generator=self.random[i]) for i in rows.tolist()]).to(self.y)
        plain = (self.begun[rows] < PLAIN)[:, None]
        self.weight[rows] = torch.where(plain, 1.0, torch.exp(NOISE * draws[:, 0]))
        climbing = ~known & (self.begun[rows] >= PLAIN)
        direct, smooth = (kind == Kind.DIRECT) & ~climbing, (kind == Kind.SMOOTH) & ~climbing
        self.climbing[rows], self.smoothing[rows], self.thinning[rows] = climbing, smooth, False
        self.length[rows] = torch.where(smooth, value, ROUNDS).to(self.length.dtype)
        self.y[rows] = self.asked.x_0[rows]
        self.smooth.start(rows[smooth], CUT)
        self._start_at_inputs(rows[direct], value[direct])
        self._shake(rows[climbing], draws[climbing, 1])
        back = known & ((kind == Kind.KICK) | (kind == Kind.REFINE))
        self._kick(rows[back], draws[back, 1], kind[back] == Kind.KICK)

    def _pass_over(self, rows: Tensor) -> None:
        """Once something has fooled, classes that look far are not tried."""
        known = self.best.found(rows)
        for _ in range(CLASSES):
            kind, value = self.plan[self.begun[rows].clamp_max(len(self.plan) - 1)].T
            place = torch.where(kind == Kind.DIRECT, value, 0)[:, None]
            far = self.ranking.distance[rows].gather(1, place)[:, 0] > FAR * self.ranking.nearest(rows)
            self.begun[rows] += (known & far & (kind == Kind.DIRECT)).long()

    def _aim(self, rows: Tensor) -> Tensor:
        """How many units the next answer may move."""
        size = self.best.size[rows]
        return size - torch.floor(self.stride[rows] * size).clamp_min(1)

    def _start_at_inputs(self, rows: Tensor, place: Tensor) -> None:
        """From x_0 towards a class whose gradient there is known."""
        self.target[rows] = self.ranking.order[rows].gather(1, place[:, None])[:, 0]
        self.anchor[rows], self.slope[rows] = self.asked.x_0[rows], self.ranking.slopes[rows, place]
        self.margin[rows] = -self.ranking.gaps[rows, place]
        self._add_or_swap(rows)

    def _kick(self, rows: Tensor, draw: Tensor, kicked: Tensor) -> None:
        """From the best answer, where it is `kicked` with a random part of its units put back."""
        y = self.asked.clamp(rows, self.asked.x_0[rows] + self.best.r[rows])
        moved = self._moved(rows, y)
        count = moved.sum(1)
        share = LEAST + (MOST - LEAST) * torch.frac(1000 * draw[:, :1].abs().sum(1))
        back = torch.where(kicked, torch.maximum(torch.ceil(share * count), count - self.cap[rows]), 0.0)
        order = torch.where(moved, draw, math.inf).argsort(1)
        out = torch.zeros_like(moved).scatter_(1, order, self.place < back[:, None])
        self.y[rows] = torch.where(self._spread(out), self.asked.x_0[rows], y)

    def _shake(self, rows: Tensor, draw: Tensor) -> None:
        """Begin to climb: the first time at x_0, then farther and farther away from it."""
        away = SHAKEN * 2.0 ** (self.begun[rows] - 2) * (self.begun[rows] > 1)
        r = self._spread(draw.sign()) * away[:, None] * (self.upper[rows] - self.lower[rows])
        self.y[rows] = self.asked.clamp(rows, self.asked.x_0[rows] + self.asked.masked(rows, r))

    def _search_by_decisions(self, rows: Tensor) -> None:
        """Where no climb has fooled: by the decisions alone, then drop units at random, by halves."""
        if len(rows) == 0:
            return
        y, found, z = search_by_decisions(self.task, rows, QUERIES, self.random[int(rows[0])])
        self.ended[rows] = ~found
        rows, y, z = rows[found], y[found], z[found]
        kept = {"fooled": torch.ones_like(rows, dtype=torch.bool), "caution": MASKED, "evidence": Evidence.DECISIONS}
        self.best.report(rows, y - self.asked.x_0[rows], z, **kept)  # type: ignore[arg-type]
        part = torch.full_like(y[:, 0], 0.5)
        for _ in range(QUERIES if len(rows) else 0):
            draw = torch.stack([torch.rand(self.units, generator=self.random[i]) for i in rows.tolist()]).to(y)
            trial = torch.where(self._spread(draw < part[:, None]), self.asked.x_0[rows], y)
            z = self.model.look(rows, trial)
            fooled = self.best.report(
                rows, trial - self.asked.x_0[rows], z, caution=MASKED, evidence=Evidence.DECISIONS
            )
            y = torch.where(fooled[:, None], trial, y)
            part = torch.where(fooled, part, torch.maximum(part / 1.5, 1 / self._moved(rows, y).sum(1).clamp_min(1)))

    # Rounds

    def _round(self, rows: Tensor) -> None:
        """Linearise every sample at its point; then climb, thin out, take a smooth step, or drop, add or swap units."""
        y = self.y[rows]
        z, d, w = self._linearise(rows, y)
        self.best.iterations[rows] += 1
        known = self.best.found(rows)
        r = y - self.asked.x_0[rows]
        fooled = self.best.report(rows, r, z, caution=self.caution, evidence=self.found_by)
        first = fooled & ~known & (self.climbing[rows] | self.smoothing[rows])
        self.prefix.start(rows[first], y[first], w[first])
        self.climbing[rows] &= ~fooled
        self.thinning[rows] |= first
        thinning = self.thinning[rows]
        climbing, smooth = self.climbing[rows] & ~thinning, self.smoothing[rows] & ~thinning
        self.rounds[rows] += (~thinning).to(self.rounds)
        self._thin_out(rows[thinning], fooled[thinning])
        self._climb(rows[climbing], y[climbing], w[climbing])
        self._step_smoothly(rows[smooth], y[smooth], w[smooth], fooled[smooth])
        few = ~climbing & ~smooth & ~thinning
        self._improve(rows[few], y[few], w[few], d[few], fooled[few])
        self.over[rows] |= self.best.size[rows] <= 1

    def _climb(self, rows: Tensor, y: Tensor, w: Tensor) -> None:
        """All units one step up the gradient."""
        self.y[rows] = self.asked.clamp(rows, y + CLIMB * (self.upper[rows] - self.lower[rows]) * w.sign())
        self.over[rows] = (self.rounds[rows] >= self.length[rows]) | ~(w != 0).any(1)

    def _thin_out(self, rows: Tensor, fooled: Tensor) -> None:
        """Bisect on; when that is over, a smooth descent goes on where it was, and another one is over too."""
        y, over = self.prefix.step(rows, fooled)
        smooth = self.smoothing[rows]
        self.y[rows] = torch.where((over & smooth)[:, None], self.prefix.point[rows], y)
        self.thinning[rows], self.over[rows] = ~over, over & ~smooth

    def _step_smoothly(self, rows: Tensor, y: Tensor, w: Tensor, fooled: Tensor) -> None:
        wave = (1 + torch.cos(math.pi * (self.rounds[rows] - 1) / self.length[rows])) / 2
        self.y[rows] = self.smooth.step(rows, y, w, fooled, LAST + (1 - LAST) * wave)
        self.over[rows] = self.rounds[rows] >= self.length[rows]

    def _improve(self, rows: Tensor, y: Tensor, w: Tensor, d: Tensor, fooled: Tensor) -> None:
        """Keep the point or go back to the last; then drop, add or swap units."""
        better = fooled | (d > self.margin[rows])
        self._keep(rows[better], y[better], w[better], torch.where(fooled, -math.inf, d)[better])
        self._step_back(rows[~better], y[~better])
        self.cap[rows] = torch.where(fooled, self._aim(rows), self.cap[rows])
        self.over[rows] = self.idle[rows] >= PATIENCE
        self._drop(rows[fooled], d[fooled])
        self._add_or_swap(rows[~fooled])

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
        moved, worth, gain = self._judge(rows)
        offered = torch.where(moved | self.tabu[rows], 0.0, gain * self.weight[rows])
        most, order = offered.sort(dim=1, descending=True)
        least, worst = torch.where(moved, worth, math.inf).sort(1)
        free = (self.cap[rows] - moved.sum(1)).clamp_min(0)
        wanted = 1 + (gain.gather(1, order).cumsum(1) < -self.margin[rows, None]).sum(1)
        eager = torch.where(self.best.found(rows), 1.0, EAGER ** self.idle[rows])
        added = torch.ceil(torch.minimum(eager * wanted, free) / SPLIT)
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
