"""One descent of `smallest` for each sample: climb until the label changes, pull back towards x_0, slide.

A round costs one forward pass and one backward row:

    linearise   the margin at y
    aim         a little beyond the linearised boundary: further after a miss, nearer after a hit
    project     x_0 on what lies beyond, inside the box and a cube around y: for every norm the same projection
    shrink      the cube, by the same factor each round

While nothing has fooled, a round climbs instead: Newton's step from y, in a cube that follows what steps really gain.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from deepfool.attacks.shared.adversarial import Evidence
from deepfool.attacks.shared.rows import pick, put, put_where
from deepfool.attacks.shared.task import Task
from deepfool.boxes import project
from deepfool.classifier.jacobian import difference
from deepfool.norms import dual, norm, seem_finite

# Chosen by hand; docs/algorithms/smallest.md names the networks, and says what other values gave there.
LEAP, LEAST = 0.1, 0.1
"""Climbing: the trust region at first and at most, as a share of the box; and where to give up, as a share of that."""
OVERSHOOT, FURTHER, FREELY = 0.02, 0.2, 0.05
"""Climbing: how far beyond the linearised boundary to step, and how much further each round, in a box and without one.
What is too far is pulled back; in a box, with 0.05, some climbs crept up to the boundary for eight rounds. Without one
0.2 steps past nearer classes on affine models, where most climbs take two rounds."""
GOOD, POOR, BAD = 0.75, 0.25, 0.05
"""Climbing: the gain over what was predicted at which the trust region doubles, halves, and the step is taken back."""
EARLY, SLOW = 2, 0.5
"""Climbing in l2 and linf: after so many rounds it is given up if the next step, taken as often as it may be, would
gain less than this share of what is missing. Only in a box: elsewhere steps may grow."""
STRIDE = 0.5
"""Climbing after a kick, in l2: the longest step, as a share of the best perturbation. In the cube all features would
move, and most climbs would be longer than what they look for."""
PULLED, PULLS = 0.85, 5
"""The first point of the way back to x_0 that is looked at, and how many at most."""
HIT, HITS, MISS, IN_A_ROW = 0.7, 0.35, 1.5, 3
"""Sliding: what the aim is multiplied by after a hit, after several in a row, and after a miss; after several misses
the step goes from y to the boundary, not from x_0."""
INERTIA = 0.3
"""Sliding: the share of the last normal in the next one."""
KEEP = 0.85
"""Sliding: what a round leaves of the cube's side."""
HURRY, STALE, FELL, FALLS = 0.7, 3, 1.003, 1.02
"""The same in l2 and linf where STALE rounds in a row have not made the perturbation smaller by the factor FELL. Where
it falls by FALLS the cube stays as it is. In l1 this loses: what seems to stand still may yet drop a feature."""
ASTRAY, HALVED, MODEST = {1.0: 6, 2.0: 3, math.inf: 3}, 0.5, 0.1
"""Sliding: after so many misses in a row it goes back to the last point that fooled, with this share of the cube and
this aim; in l2 and linf if the next point would be larger than that one. In l1 misses may lead to a sparser point: not
while it thins out, and after three it would be too soon."""
SPREAD = {1.0: 0.6, 2.0: 0.3}
"""Sliding in l1 and l2: the cube as a share of the largest entry, because no entry moves as far as all together."""
THIN, THINNEST, SPARSE = 0.7, 0.01, 0.3
"""Thinning out in l1: the cube as a share of the largest entry, and what an entry of zero counts as; it ends where the
cube has shrunk to the share SPARSE. The page says what other values gave."""
HOPELESS, LONGER = {1.0: 2.0, 2.0: 1.5, math.inf: 1.5}, 3.0
"""A slide is left after its first rounds if it is this much larger than the best answer; a climb if it is LONGER."""

BEGAN_AWAY = (
    "no gradient led from the input itself to another label: the search began at points away from it, and may have "
    "missed a nearer boundary"
)


class Descents:
    """The running descent of every sample."""

    def __init__(
        self, task: Task, gap: Tensor, dead: Tensor, left: Callable[[Tensor], Tensor], found_by: tuple[Evidence, str]
    ) -> None:
        """`gap` (n,): what the nearest class has to gain; `dead` (n,): no class has a gradient at x_0; `left`: how many
        passes samples may still make; `found_by`: what a perturbation counts as, and what to say about it."""
        asked = task.asked
        self.asked, self.model, self.best, self.p = asked, task.model, task.best, asked.p
        self.gap, self.left = gap, left
        self.evidence, caution = found_by
        self.caution, self.away = caution, dead.clone()
        """What to say about a perturbation; and whether the search began away from x_0, which is said then."""
        # Until a sample is fooled its steps are Newton's. Those of l1 are taken in l2: in l1 the nearest point moves a
        # few features as far as they go, far outside of what the linear picture knows.
        self.newton = max(2.0, asked.p)
        x = asked.x_0
        wall = torch.full_like(x, math.inf)
        self.lower = -wall if asked.lower is None else asked.lower
        self.upper = wall if asked.upper is None else asked.upper
        width = (self.upper - self.lower).amax(1)
        spread = x.amax(1) - x.amin(1)
        self.bounded = width.isfinite()
        self.leap = LEAP * torch.where(self.bounded, width, torch.where(spread > 0, spread, torch.ones_like(spread)))
        """(n,): how far a feature may move at once while nothing has fooled."""

        def each(value: float) -> Tensor:
            return torch.full_like(x[:, 0], value)

        def no() -> Tensor:
            return torch.zeros_like(asked.label, dtype=torch.bool)

        self.over = ~no()
        self.sloped = ~dead
        """Whether any gradient so far was not zero, that at x_0 included."""
        self.lacking = x.new_zeros(len(x), asked.classes)
        """(n, c): what each class had to gain at the last point that fooled."""
        self.found_at = each(math.inf)
        """Passes until something fooled."""
        # The point, the class it is after (-1: any), rounds so far and at most, the smallest perturbation met.
        self.y = x.clone()
        self.target = torch.full_like(asked.label, -1)
        self.rounds, self.patience, self.here = each(0), each(0), each(math.inf)
        self.signed, self.short = no(), no()
        """Whether it climbs by steps of linf, which move all features alike; by steps shorter than the best answer."""
        # Climbing: the last point with its normal and margin, the gain predicted there, the trust region.
        self.last, self.w, self.d = x.clone(), torch.zeros_like(x), each(0)
        self.predicted, self.radius = each(0), each(0)
        # Sliding: the cube now, at first and at the end; the aim; hits in a row (misses are negative hits).
        self.share, self.first_share, self.last_share = each(0), each(0), each(0)
        self.aim, self.hits = each(0), each(0)
        # The smallest perturbation met when it last fell, and the rounds since then.
        self.mark, self.stale = each(math.inf), each(0)
        self.safe = x.clone()
        """(n, d): the last point that fooled."""
        self.multiplier = each(0)
        """Of the last projection, where the next one begins: planes change little from round to round."""
        self.bold = no()
        """Whether it may go to the far corner of the cube."""
        self.thin, self.pace = no(), each(KEEP)
        """Whether it turns a dense perturbation into a sparse one, as most descents in l1 do; and what a round leaves
        of the cube's side meanwhile."""

    def start(
        self, rows: Tensor, *, target: Tensor, patience: Tensor, signed: Tensor, short: Tensor, aim: Tensor,
        share: Tensor, last_share: Tensor, bold: Tensor, thin: Tensor, pace: Tensor,
    ) -> None:  # fmt: skip
        """Begin a descent of these samples at their points y."""
        self.target[rows], self.patience[rows] = target, patience.to(self.d.dtype)
        self.signed[rows], self.short[rows] = signed, short
        self.radius[rows], self.rounds[rows], self.predicted[rows] = self.leap[rows], 0, 0
        self.here[rows], self.hits[rows], self.over[rows], self.multiplier[rows] = math.inf, 0, False, 0
        self.mark[rows], self.stale[rows] = math.inf, 0
        self.aim[rows], self.share[rows] = aim.to(self.aim.dtype), share.to(self.share.dtype)
        self.first_share[rows], self.last_share[rows] = self.share[rows], last_share.to(self.share.dtype)
        self.bold[rows], self.thin[rows], self.pace[rows] = bold, thin, pace.to(self.pace.dtype)

    def round(self, rows: Tensor) -> None:
        """Linearise every sample at its point; then climb, or pull back, or slide. `rows` are in order, each once."""
        rows = self.asked.everyone if len(rows) == len(self.y) else rows
        y = self.asked.clamp(rows, self.y[rows])
        z, guide, d, w = self._linearise(rows, y)
        climbing = self.here[rows].isinf()
        fooled = self._report(rows, y, z)
        lacking = guide.gather(1, self.asked.goal.reference(rows, guide)[:, None]) - guide
        self.lacking[rows] = torch.where(fooled[:, None], torch.nan_to_num(lacking).to(y.dtype), self.lacking[rows])
        # The guide has changed sides and the true scores have not, as they saturate or are rounded: further.
        further = torch.maximum(d / 2, OVERSHOOT * self.gap[rows])
        d = torch.where((d > 0) & ~fooled, -further, d)
        self.sloped[rows] |= norm(w, 1) > 0
        self.rounds[rows] += 1
        self.best.iterations[rows] += 1
        arrived = (climbing & fooled).nonzero()[:, 0]
        moved = torch.zeros_like(fooled)
        if len(arrived):
            moved[arrived] = self._pull(rows[arrived], pick(y, arrived))
        a = (climbing & ~fooled).nonzero()[:, 0]
        if len(a):
            self._judge_step(pick(rows, a), pick(y, a), pick(w, a), d[a])
        a = (~moved & ~(climbing & ~fooled)).nonzero()[:, 0]
        if len(a):
            self._slide(pick(rows, a), pick(y, a), pick(w, a), d[a], fooled[a])

    def _linearise(self, rows: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Scores at y, what guides in their place, and value and gradient of the margin to raise: that of the class the
        descent is after, and once fooled of the best rival; to reach a target, of the target over its best rival.

        While it is thinned out, a perturbation keeps to its class: the best rival of a dense one says little about
        which class a sparse one reaches first."""
        target = self.target[rows]

        def choose(guide: Tensor) -> tuple[Tensor, Tensor]:
            """The class to raise and the class to lower."""
            reached = (self.best.is_fooled(rows, guide) & ~self._thins(rows)) | (target < 0)
            return self.asked.goal.pair_towards(rows, guide, target.clamp_min(0), reached)

        z, guide, w = self.model.guided_gradient(rows, y, lambda _, guide: difference(guide, *choose(guide)))
        gain, loss = choose(guide)
        d = (guide.gather(1, gain[:, None]) - guide.gather(1, loss[:, None]))[:, 0]
        return z, guide, torch.nan_to_num(d).to(y.dtype), w

    def _report(self, rows: Tensor, y: Tensor, z: Tensor) -> Tensor:
        """Report the points y; returns which of them fool."""
        r, away = y - self.asked.of(rows, self.asked.x_0), pick(self.away, rows)
        if self.caution or not bool(away.any()):
            fooled = self.best.report(rows, r, z, caution=self.caution, evidence=self.evidence, once=True)
        else:
            fooled = torch.zeros_like(away)
            for a, caution in (((~away).nonzero()[:, 0], ""), (away.nonzero()[:, 0], BEGAN_AWAY)):
                found = rows[a], r[a], z[a]
                fooled[a] = self.best.report(*found, caution=caution, evidence=self.evidence, once=True)
        here, found_at = pick(self.here, rows), pick(self.found_at, rows)
        put(self.here, rows, torch.where(fooled, torch.minimum(norm(r, self.p), here), here))
        spent = self.model.spent(rows).to(found_at.dtype)
        put(self.found_at, rows, torch.where(fooled & (found_at == math.inf), spent, found_at))
        return fooled

    def climb(self, rows: Tensor, y: Tensor, w: Tensor, d: Tensor) -> None:
        """Newton's step from y to beyond the linearised boundary, or as far as the trust region lets it."""
        further = torch.where(self.bounded[rows], FURTHER, FREELY).to(d.dtype)
        beyond = (OVERSHOOT + further * self.rounds[rows]) * d.abs() + torch.finfo(d.dtype).eps
        height = (w * y).sum(1) - d + beyond
        cube = self._cube(rows, y, self.radius[rows])
        reached, _ = project(y, w, height, *cube, self.newton)
        if self.p <= 2:
            for flag, step in ((self.signed, self._step_signed), (self.short, self._step_shortly)):
                a = flag[rows].nonzero()[:, 0]
                if len(a):
                    reached = reached.index_copy(0, a, step(rows[a], pick(y, a), pick(w, a), height[a]))
        for table, new in ((self.y, reached), (self.last, y), (self.w, w), (self.d, d)):
            put(table, rows, new)
        self.predicted[rows] = (w * (reached - y)).sum(1)

    def _step_signed(self, rows: Tensor, y: Tensor, w: Tensor, height: Tensor) -> Tensor:
        """Newton's step in linf inside the cube, which moves all features alike."""
        return project(y, w, height, *self._cube(rows, y, self.radius[rows]), math.inf)[0]

    def _step_shortly(self, rows: Tensor, y: Tensor, w: Tensor, height: Tensor) -> Tensor:
        """Newton's step in l2, no longer than a share of the best perturbation."""
        lower, upper = pick(self.lower, rows), pick(self.upper, rows)
        longest = STRIDE * self.best.size[rows] * self.radius[rows] / self.leap[rows]
        tiny = torch.finfo(w.dtype).tiny * 1e4
        whole, possible = project(y, w, height, lower, upper, 2)
        step = torch.where(possible[:, None], whole - y, w * (longest / norm(w, 2).clamp_min(tiny))[:, None])
        shorter = (longest / norm(step, 2).clamp_min(tiny)).clamp_max(1)
        return torch.addcmul(y, step, shorter[:, None]).clamp(lower, upper)

    def _judge_step(self, rows: Tensor, y: Tensor, w: Tensor, d: Tensor) -> None:
        """Accept the last step of a climb or take it back; fit the trust region; take the next, or give up."""
        predicted = self.predicted[rows]
        ratio = torch.where(predicted > 0, (d - self.d[rows]) / predicted, (GOOD + POOR) / 2)  # at first nothing was
        back = ratio < BAD
        factor = torch.where(ratio > GOOD, 2.0, torch.where(ratio < POOR, 0.5, 1.0)).to(d.dtype)
        most = torch.where(self.bounded[rows], self.leap[rows], math.inf)  # in a box, more ends in a corner of it
        self.radius[rows] = torch.minimum(self.radius[rows] * factor, most)
        a = back.nonzero()[:, 0]
        if len(a):
            y, w, d = (
                new.index_copy(0, a, old.index_select(0, rows[a]))
                for old, new in ((self.last, y), (self.w, w), (self.d, d))
            )
        self.climb(rows, y, w, d)
        left = self.patience[rows] - self.rounds[rows]
        slow = left <= 0
        if self.p != 1:
            creeps = self.predicted[rows] * left < SLOW * d.abs()
            slow |= creeps & (self.rounds[rows] >= EARLY) & self.bounded[rows]
        small = self.radius[rows] < LEAST * self.leap[rows]
        flat = self.predicted[rows] <= torch.finfo(d.dtype).eps * d.abs()
        # By the norm of the steps: in l1 a climb is dense, and many times as long as the sparse point it would lead to.
        far = norm(pick(self.y, rows) - pick(self.asked.x_0, rows), self.newton)
        long = self.best.found(rows) & (far > LONGER * norm(pick(self.best.r, rows), self.newton))
        self.over[rows] = slow | small | flat | long

    def _pull(self, rows: Tensor, y: Tensor) -> Tensor:
        """Back towards x_0: if PULLED of the way still fools, bisect; returns who moved."""
        x = pick(self.asked.x_0, rows)
        r = y - x
        low, high = torch.zeros_like(r[:, 0]), torch.ones_like(r[:, 0])
        share = torch.full_like(low, PULLED)
        at = torch.arange(len(rows), device=rows.device)
        for _ in range(PULLS):
            at = at[self.left(rows[at]) >= 1]
            if len(at) == 0:
                break
            trial = self.asked.clamp(rows[at], torch.addcmul(pick(x, at), share[at, None], pick(r, at)))
            fooled = self._report(rows[at], trial, self.model.look(rows[at], trial))
            high[at], low[at] = torch.where(fooled, share[at], high[at]), torch.where(fooled, low[at], share[at])
            at = at[high[at] < 1]
            share = (low + high) / 2
        put(self.y, rows, torch.addcmul(x, high[:, None], r))
        return high < 1

    def _slide(self, rows: Tensor, y: Tensor, w: Tensor, d: Tensor, fooled: Tensor) -> None:
        """Aim, project, shrink: the point nearest to x_0 beyond the linearised boundary, inside the cube."""
        x = pick(self.asked.x_0, rows)
        hits, share, first_share = pick(self.hits, rows), pick(self.share, rows), pick(self.first_share, rows)
        hits = torch.where(fooled, hits.clamp_min(0) + 1, hits.clamp_max(0) - 1)
        # Hits in a row: the boundary is as flat as it was taken to be, and the aim far too wide.
        factor = torch.where(fooled, torch.where(hits >= IN_A_ROW, HITS, HIT), MISS).to(d.dtype)
        aim = (pick(self.aim, rows) * factor).clamp_(2e-5, 1)
        scale = norm(w, 1).clamp_min(torch.finfo(w.dtype).tiny * 1e4)
        w, d = w / scale[:, None], d / scale
        w = w.lerp(pick(self.w, rows), INERTIA * (share < first_share)[:, None].to(w.dtype))
        boundary = torch.linalg.vecdot(w, y) - d
        height = boundary + aim * (boundary - torch.linalg.vecdot(w, x)).clamp_min(0)
        moved, possible = self._project(rows, y, w, height)
        # Not to the far corner of the cube, which moves every feature.
        a = ((~possible | (hits <= -IN_A_ROW)) & ~pick(self.bold, rows)).nonzero()[:, 0]
        if len(a):
            moved[a] = self._reach(rows[a], pick(y, a), pick(w, a), height[a])
        moved = moved if seem_finite(moved) else torch.where(moved.isfinite(), moved, y)
        here = pick(self.here, rows)
        share = self._shrink(rows, here) * share
        put_where(self.safe, rows, fooled, y)
        astray = (hits <= -ASTRAY[self.p]) & ~self._thins(rows)
        if self.p != 1:
            astray &= norm(moved - x, self.p) > here
        a = astray.nonzero()[:, 0]
        if len(a):
            moved[a] = self.safe[rows[a]]
            hits = hits.masked_fill(astray, 0)
            share, aim = torch.where(astray, HALVED * share, share), aim.masked_fill(astray, MODEST)
        late = (share < 0.6 * first_share) & (here > HOPELESS[self.p] * pick(self.best.size, rows))
        over = late | (share < pick(self.last_share, rows)) | ~pick(self.sloped, rows)
        for table, new in (
            (self.y, moved), (self.w, w), (self.share, share), (self.aim, aim), (self.hits, hits), (self.over, over),
        ):  # fmt: skip
            put(table, rows, new)

    def _shrink(self, rows: Tensor, here: Tensor) -> Tensor:
        """What is left of the cube's side after this round."""
        if self.p == 1:
            return torch.where(self._thins(rows), pick(self.pace, rows), KEEP).to(here.dtype)
        mark = pick(self.mark, rows)
        fell = FELL * here < mark
        falls = (FALLS * here < mark) & (mark < math.inf)
        stale = (pick(self.stale, rows) + 1).masked_fill_(fell, 0)
        put(self.mark, rows, torch.where(fell, here, mark))
        put(self.stale, rows, stale)
        return torch.where(stale < STALE, KEEP, HURRY).masked_fill_(falls, 1).to(here.dtype)

    def _project(self, rows: Tensor, y: Tensor, w: Tensor, height: Tensor) -> tuple[Tensor, Tensor]:
        """The point nearest to x_0 beyond the plane w . y = height, inside the cube; and whether there is one."""
        if self.p == 1:
            thin = self._thins(rows)
            thinned, others = thin.nonzero()[:, 0], (~thin).nonzero()[:, 0]
            if len(others) == 0:
                return self._thin_out(rows, y, w, height)
            if len(thinned):
                moved, possible = torch.empty_like(y), torch.empty_like(thin)
                for a in (thinned, others):
                    part = self._project(*(v.index_select(0, a) for v in (rows, y, w, height)))
                    for whole, found in zip((moved, possible), part, strict=True):
                        whole.index_copy_(0, a, found)
                return moved, possible
        x, near_to = pick(self.asked.x_0, rows), self.multiplier.index_select(0, rows)
        size = pick(self.here, rows) if self.p == math.inf else SPREAD[self.p] * norm(y - x, math.inf)
        cube = self._cube(rows, y, pick(self.share, rows) * size)
        answer = project(x, w, height, *cube, self.p, near_to=near_to)
        put(self.multiplier, rows, near_to)
        return answer

    def _thins(self, rows: Tensor) -> Tensor:
        """Whether these samples are being thinned out."""
        return pick(self.thin, rows) & (pick(self.share, rows) >= SPARSE)

    def _thin_out(self, rows: Tensor, y: Tensor, w: Tensor, height: Tensor) -> tuple[Tensor, Tensor]:
        """In l1: the nearest point in a weighted l2 norm in which small entries cost more than large ones.

        Round by round it turns a dense perturbation into a sparse one (iteratively reweighted least squares). The
        nearest point in l1 itself would drop nearly all entries at once, far outside of what the linear picture knows.
        """
        x = pick(self.asked.x_0, rows)
        r = (y - x).abs()
        largest = r.amax(1)
        cube = self._cube(rows, y, THIN * pick(self.share, rows) * largest)
        near_to = self.multiplier.index_select(0, rows)
        answer = project(x, w, height, *cube, 2, ease=r + THINNEST * largest[:, None], near_to=near_to)
        put(self.multiplier, rows, near_to)
        return answer

    def _reach(self, rows: Tensor, y: Tensor, w: Tensor, height: Tensor) -> Tensor:
        """Where the cube is too small to get beyond the boundary: from y towards it, by a share of the perturbation."""
        most = self.share[rows] * norm(y - pick(self.asked.x_0, rows), self.newton)
        lower, upper = pick(self.lower, rows), pick(self.upper, rows)
        here = (w * y).sum(1)
        corner = torch.where(w > 0, upper, lower)
        all_ = torch.where(w != 0, w * (corner - y), torch.zeros_like(w)).sum(1)
        gain = torch.minimum(height - here, most * norm(w, dual(self.newton)))
        return project(y, w, here + torch.minimum(gain, 0.9 * all_), lower, upper, self.newton)[0]

    def _cube(self, rows: Tensor, y: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
        """The box, and a cube around y in it."""
        radius = radius[:, None]
        return torch.maximum(pick(self.lower, rows), y - radius), torch.minimum(pick(self.upper, rows), y + radius)
