"""`smallest`: the smallest perturbation that is known after any number of passes, for p = 1, 2 and inf.

This project's own scheme: one search that can be stopped after any pass with its best answer so far. A sample goes
through a fixed sequence of descents, whatever its budget, so that a larger budget continues a smaller one.

    open        the gradients of the classes at x_0: which boundaries look nearest
    descents    the nearest classes, one after the other and coarsely; then the best point again, finely; then for
                ever, in turn: a class once more, from another start, and a kick (half of the best perturbation reset)
    lost        while nothing has fooled, descents start farther and farther away from x_0; at last the scores alone,
                then the decisions alone, are searched, and what they find is descended from

A descent climbs until the label changes (Newton's steps to the linearised boundary, in a trust region that follows
what they really gain), is pulled straight back towards x_0, and slides along the boundary. A round of it costs one
forward pass and one backward row:

    linearise   the margin at y
    aim         a little beyond the linearised boundary: further after a miss, nearer after a hit
    project     x_0 on what lies beyond, inside the box and a cube around y: for every norm the same projection
    shrink      the cube, by the same factor each round

Operations that hide gradients are seen through (`classifier.unmasking`); every point is judged by the true scores.
"""

from __future__ import annotations

import math
import zlib

import torch
from torch import Tensor

from deepfool.attacks.shared.adversarial import Adversarial, Evidence, Status
from deepfool.attacks.shared.arguments import check_count, check_optional_count
from deepfool.attacks.shared.boundaries import step_to_boundary
from deepfool.attacks.shared.decisions import search_by_decisions
from deepfool.attacks.shared.pruning import WIDE, Slopes
from deepfool.attacks.shared.scores import CAUTION, search_by_scores
from deepfool.attacks.shared.task import Shared, Task, Unpack, attack, run
from deepfool.classifier import Classifier, Model
from deepfool.classifier.jacobian import Tangent, difference
from deepfool.classifier.unmasking import CUT_OFF
from deepfool.norms import dual, norm, project

# Chosen by hand; docs/algorithms/smallest.md names the networks, and says what other values gave there.
LINEARISED = 10
"""Classes whose gradients are taken at x_0, at most."""
CLASSES, FAR, NEAR = 3, 2.5, 1.5
"""Classes that are tried before the best point is refined. Once one has fooled, those that look FAR times as far as the
nearest are passed over; NEAR times, where the nearest was found within that factor of where it looked to be."""
LEAP, LEAST = 0.1, 0.1
"""Climbing: the trust region at first and at most, as a share of the box; and where to give up, as a share of that."""
PATIENCE, MORE = 8, 2
"""Climbing: most rounds, and how many more with each descent that came before."""
OVERSHOOT, FURTHER = 0.02, 0.05
"""Climbing: how far beyond the linearised boundary to step, and how much further each round."""
GOOD, POOR, BAD = 0.75, 0.25, 0.05
"""Climbing: the gain over what was predicted at which the trust region doubles, halves, and the step is taken back."""
SHAKEN, DEAD = 0.2, 0.025
"""While nothing fools: how far away from x_0 the second descent starts, as a share of the box, doubled every second
time; the same where all gradients are zero at x_0."""
LOST = 9
"""After how many descents gradients are given up, where nothing has fooled or all of them were zero."""
PULLED, PULLS = 0.85, 5
"""The first point of the way back to x_0 that is looked at, and how many at most."""
AIM, FINE = 0.3, 0.03
"""Sliding: how far beyond the boundary to aim at first, as a share of the way to it; when refining."""
HIT, HITS, MISS, IN_A_ROW = 0.7, 0.35, 1.5, 3
"""Sliding: what the aim is multiplied by after a hit, after several in a row, and after a miss; after several misses
the step goes from y to the boundary, not from x_0."""
INERTIA = 0.3
"""Sliding: the share of the last normal in the next one."""
WHOLE, HALF, END, KEEP = 1.0, 0.5, 0.01, 0.85
"""Sliding: the cube's side at first, in the middle and at the end, as a share of the perturbation; what a round leaves
of it."""
SPREAD = {1.0: 0.6, 2.0: 0.3}
"""Sliding in l1 and l2: the cube as a share of the largest entry, because no entry moves as far as all together."""
HOPELESS, LONGER = 1.5, 3.0
"""A slide is left after its first rounds if it is this much larger than the best answer; a climb if it is LONGER."""
LATE = 0.3
"""What is found late is refined all the same, for this share of the budget."""
QUERIES = 1000
"""Forward passes of the search by scores; half of them, if the budget has them, where only x_0 has no gradient. On
LeNet and FC500 without gradients 500 and 1000 come within 1.22 and 1.10 of the smallest in linf (30 images each)."""
STILL, QUIET, MOST = 1.005, 4, 10_000
"""Converged: QUIET restarts in a row made the perturbation less than 0.5 % smaller, or MOST passes were made."""

MASKED = (
    "found by decisions alone: the gradients are zero or mislead here (gradient masking?), so this perturbation may be "
    "far from the smallest"
)


@attack
def smallest(
    model: Model | Classifier,
    x: Tensor,
    *,
    p: float = 2,
    budget: int | None = 100,
    candidates: int | None = None,
    seed: int = 0,
    **shared: Unpack[Shared],
) -> Adversarial:
    """The smallest perturbation that `budget` passes (forwards plus backward rows, per sample) can find.

    Args:
        model, x, bounds, labels, target, mask, threshold: as for `deepfool`.
        p: 1, 2 or inf.
        budget: passes per sample; 50 is quick, 100 the default, 1000 for reference values; None for as many as it takes
            until restarts no longer help. A larger budget continues a smaller one, and never gives a larger
            perturbation. What was really used is in the result's `forwards` and `backwards`: it is more where nothing
            fools within the budget, or only at its end.
        candidates: how many classes to linearise at x_0, those that look nearest by their scores and by how steep the
            last hidden layer says they are; None means 10.
        seed: of the random restarts. They depend on the sample, not on the batch it is in.

    `evidence` says what each row was found by, `converged` whether it was still falling. Rows that were found past an
    operation that hides gradients, or without gradients, say so in `reason`.

    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    >>> smallest(model, torch.tensor([[3.0, 1.0]])).norm
    tensor([1.414...])
    """
    budget = None if budget is None else check_count(budget, "budget", least=10)
    candidates, seed = check_optional_count(candidates, "candidates"), check_count(seed, "seed", least=0)

    def body(task: Task) -> None:
        _Search(task, budget, candidates or LINEARISED, seed).run()

    return run(body, model, x, p=p, norms=(1, 2, math.inf), classes=True, unmask=True, **shared)


class _Search:
    """The descents of all samples, each at its own place in the sequence."""

    def __init__(self, task: Task, budget: int | None, candidates: int, seed: int) -> None:
        asked = task.asked
        self.task, self.asked, self.model, self.best = task, asked, task.model, task.best
        self.p, self.budget, self.candidates, self.seed = asked.p, budget, candidates, seed
        # Until a sample is fooled its steps are Newton's. Those of l1 are taken in l2: in l1 the nearest point moves a
        # few features as far as they go, far outside of what the linear picture knows.
        self.newton = max(2.0, asked.p)
        self.caution, self.evidence = "", Evidence.GRADIENTS
        x = asked.x_0
        wall = torch.full_like(x, math.inf)
        self.lower = -wall if asked.lower is None else asked.lower
        self.upper = wall if asked.upper is None else asked.upper
        width = (self.upper - self.lower).amax(1)
        spread = x.amax(1) - x.amin(1)
        self.bounded = width.isfinite()
        self.leap = LEAP * torch.where(self.bounded, width, torch.where(spread > 0, spread, torch.ones_like(spread)))
        """(n,): how far a feature may move at once while nothing has fooled."""
        self.random = [self._generator(row) for row in x]

        def each(value: float) -> Tensor:
            return torch.full_like(x[:, 0], value)

        # The classes, nearest first; the slopes and gaps at x_0 of those that are tried first.
        self.order = torch.zeros_like(asked.label)[:, None]
        self.distance = each(math.inf)[:, None]
        self.slopes, self.gaps = torch.zeros_like(x)[:, None], each(0)[:, None]
        # The sequence: descents begun, whether the last is over, whether there is nothing more to do.
        self.begun = torch.full_like(asked.label, -1)
        self.over = torch.ones_like(asked.label, dtype=torch.bool)
        self.ended = torch.zeros_like(self.over)
        self.sloped = torch.zeros_like(self.over)
        """Whether any gradient so far was not zero."""
        self.searched = torch.zeros_like(self.over)
        """Whether the scores alone were searched."""
        self.found_at = each(math.inf)
        self.before, self.quiet = each(math.inf), each(0)
        # The running descent: its point, the class it is after (-1: any), rounds so far, its smallest perturbation.
        self.y = x.clone()
        self.target = torch.full_like(asked.label, -1)
        self.rounds, self.here = each(0), each(math.inf)
        self.signed = torch.zeros_like(self.over)
        """Whether it climbs by steps of linf, which move all features alike."""
        # Climbing: the last point with its normal and margin, the gain predicted there, the trust region.
        self.last, self.w, self.d = x.clone(), torch.zeros_like(x), each(0)
        self.predicted, self.radius = each(0), each(0)
        # Sliding: the cube now, at first and at the end; the aim; hits in a row.
        self.share, self.first_share, self.last_share = each(0), each(0), each(0)
        self.aim, self.hits = each(0), each(0)  # misses in a row are negative hits

    def run(self) -> None:
        self._open()
        lost = LOST * (PATIENCE + MORE * LOST)  # rounds before gradients are given up, at most
        for _ in range((self.budget or MOST) + lost):  # a round takes two passes
            rows = self._going()
            if len(rows) == 0:
                break
            self._round(rows)
        self.best.give_up(
            self.task.rows,
            Status.STUCK,
            "neither gradients, scores nor decisions led to another label; raise the budget",
        )

    def _generator(self, x: Tensor) -> torch.Generator:
        """A sample's own random numbers: they depend neither on the budget nor on the rest of the batch."""
        content = zlib.crc32(x.cpu().numpy().tobytes())
        return torch.Generator().manual_seed((self.seed * 2**32 + content) % 2**63)

    def _going(self) -> Tensor:
        rows = self.task.rows
        return rows[~self.ended[rows] & (self._left(rows) >= 2)]

    def _left(self, rows: Tensor) -> Tensor:
        """Passes that these samples may still make: as many as it takes until something fools."""
        budget = MOST if self.budget is None else self.budget
        late = self.found_at[rows] + LATE * budget  # infinite while nothing has
        return late.clamp_min(budget) - self.model.spent(rows)

    # -- open ----------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Class gradients at x_0 rank the classes by the distance to their linearised boundaries."""
        rows, n = self.task.rows, len(self.asked.x_0)
        tangent = self.model.linearise_inputs(rows)
        if self.model.masks:
            self.evidence, self.caution = _explain(self.model.masks)
        x, (lower, upper) = self.asked.of(rows, self.asked.x_0), self.asked.box(rows)
        classes = self._choose_classes(rows, tangent)
        reference = self.asked.goal.pair(rows, tangent.guide)[1]
        gaps = (tangent.guide.gather(1, reference[:, None]) - tangent.guide.gather(1, classes)).clamp_min(0).to(x.dtype)
        gaps = torch.maximum(gaps, 2 * self.model.rounding.tolerance[rows, None].to(x.dtype))
        slopes, distances = [], []
        for columns, part in tangent.difference_rows(classes, reference):
            self.model.count(rows, backwards=part.shape[1])
            for j, k in enumerate(range(classes.shape[1])[columns]):
                w = part[:, j].to(x.dtype)
                if k == 0:
                    seeds = difference(tangent.guide, classes[:, 0], reference)
                    self.model.learn_rounding(rows, x, torch.nan_to_num(w, 0.0, 0.0, 0.0), seeds, tangent)
                w = torch.nan_to_num(self.asked.masked(rows, w), 0.0, 0.0, 0.0)
                step, _ = step_to_boundary(x, gaps[:, k], w, lower, upper, self.p)
                # Out of reach in the linear picture is not out of reach: such classes come last.
                missing = 1 - ((w * step).sum(1) / gaps[:, k]).clamp(0, 1)
                far = norm(step, self.p) * (1 + 10 * missing)
                far = torch.where((w != 0).any(1) & (classes[:, k] != self.asked.label[rows]), far, math.inf)
                slopes.append(w)
                distances.append(far)
        distance, order = torch.stack(distances, 1).sort(1)
        first = order[:, :CLASSES]
        self.order = classes.new_zeros(n, classes.shape[1]).index_copy(0, rows, classes.gather(1, order))
        self.distance = distance.new_full((n, classes.shape[1]), math.inf).index_copy(0, rows, distance)
        self.gaps = gaps.new_zeros(n, first.shape[1]).index_copy(0, rows, gaps.gather(1, first))
        near = torch.stack(slopes, 1)[torch.arange(len(rows), device=rows.device)[:, None], first]
        self.slopes = x.new_zeros(n, first.shape[1], x.shape[1]).index_copy(0, rows, near)

    def _choose_classes(self, rows: Tensor, tangent: Tangent) -> Tensor:
        """(k, m): the classes that look nearest by score and by how steep the last hidden layer says they are."""
        z, goal = tangent.guide, self.asked.goal
        if not goal.any_class or self.asked.classes <= self.candidates + 1:
            return goal.classes(rows, z)
        slopes = Slopes(self.task)
        if self.asked.x_0.shape[1] >= WIDE:
            slopes.ask_hidden_layer(rows, tangent)
        label = self.asked.label[rows, None]
        far = torch.nan_to_num(z.gather(1, label) - z, nan=math.inf) / slopes.expected[rows].to(z.dtype)
        return far.scatter(1, label, math.inf).topk(self.candidates, dim=1, largest=False).indices

    # -- descents ------------------------------------------------------------------------------------------------------

    def _begin(self, rows: Tensor) -> None:
        """The next descent of these samples; those that have none are ended."""
        self._judge_restart(rows)
        self.begun[rows] += 1
        rows = self._search_without_gradients(rows)
        tried = self._tried()
        known = self.best.found(rows)
        for _ in range(tried):  # a class that looks far is passed over once something has fooled
            k = self.begun[rows]
            nearest = self.distance[rows, 0]
            off = self.best.size[rows] / nearest
            limit = torch.where((off < NEAR) & (off > 1 / NEAR), NEAR, FAR)
            far = self.distance[rows, k.clamp(0, tried - 1)] > limit * nearest
            self.begun[rows] += ((k < tried) & far & known).long()
        k = self.begun[rows]
        again = (k > tried) & ((k - tried) % 2 == 1) & known  # every second restart goes to the classes once more
        place = torch.where(again, torch.div(k - tried, 2, rounding_mode="floor") % self.order.shape[1], k)
        direct = (k < tried) & (known | (k == 0))
        refine, kick, lost = known & (k == tried), known & (k > tried) & ~again, ~known & (k > 0)
        nth = place.clamp_max(self.order.shape[1] - 1)
        self.target[rows] = torch.where(direct | again, self.order[rows, nth], torch.full_like(k, -1))
        self.y[rows] = self.asked.x_0[rows]
        self.y[rows[refine]] = self._answer(rows[refine])
        self._kick(rows[kick])
        self._shake(rows[again | lost])
        self.signed[rows] = again
        self.radius[rows], self.rounds[rows], self.predicted[rows] = self.leap[rows], 0, 0
        self.here[rows], self.hits[rows], self.over[rows] = math.inf, 0, False
        self.aim[rows] = torch.where(refine, FINE, AIM).to(self.aim.dtype)
        self.share[rows] = torch.where(refine | kick, HALF, WHOLE).to(self.share.dtype)
        self.first_share[rows] = self.share[rows]
        self.last_share[rows] = torch.where(k < tried, HALF, END).to(self.share.dtype)
        j, k = rows[direct], k[direct]  # the first step from x_0: its gradient is known
        self._climb(j, self.asked.x_0[j], self.slopes[j, k], -self.gaps[j, k])

    def _tried(self) -> int:
        """How many classes are tried before the best point is refined."""
        return min(CLASSES, self.order.shape[1])

    def _judge_restart(self, rows: Tensor) -> None:
        """Whether the restart that is over helped; where several did not, and no budget was given, that is the end."""
        helped = self.before[rows] > STILL * self.best.size[rows]
        counts = self.begun[rows] > self._tried()
        self.quiet[rows] = torch.where(helped | ~counts, torch.zeros_like(self.quiet[rows]), self.quiet[rows] + 1)
        self.before[rows] = self.best.size[rows]
        if self.budget is None:
            self.ended[rows] |= self.quiet[rows] >= QUIET

    def _answer(self, rows: Tensor) -> Tensor:
        """Their best points so far."""
        return self.asked.clamp(rows, self.asked.x_0[rows] + self.best.r[rows])

    def _draw(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """A random half of the features, and random signs, of each sample."""
        shape = (2, self.y.shape[1])
        coins = [torch.rand(shape, generator=self.random[i]) < 0.5 for i in rows.tolist()]
        coin = torch.stack(coins).to(self.y.device)
        return coin[:, 0], 2 * coin[:, 1].to(self.y.dtype) - 1

    def _kick(self, rows: Tensor) -> None:
        """Start from the best point with a random half of it reset: to zero, or in linf to either end."""
        if len(rows) == 0:
            return
        half, sign = self._draw(rows)
        r = self.best.r[rows]
        other = self.best.size[rows, None] * sign if self.p == math.inf else torch.zeros_like(r)
        self._start(rows, torch.where(half, other, r))

    def _shake(self, rows: Tensor) -> None:
        """Start away from x_0: half as far as the best point, by random signs; while nothing has fooled, further and
        further, by random signs or by the same sign everywhere."""
        if len(rows) == 0:
            return
        _, sign = self._draw(rows)
        k, known = self.begun[rows], self.best.found(rows)
        sign = torch.where(((k % 2 == 1) | known)[:, None], sign, sign[:, :1])
        shaken = torch.where(self.distance[rows, 0].isinf(), DEAD, SHAKEN).to(sign.dtype)
        away = (shaken * 2.0 ** torch.div(k - 1, 2, rounding_mode="floor")).clamp_max(1) / LEAP * self.leap[rows]
        near = 0.5 * self.best.size[rows] / norm(torch.ones_like(sign), self.p)
        self._start(rows, torch.where(known, near, away)[:, None] * sign)

    def _start(self, rows: Tensor, r: Tensor) -> None:
        r = r if self.asked.mask is None else r * self.asked.mask[rows]
        self.y[rows] = self.asked.clamp(rows, self.asked.x_0[rows] + r)

    # -- rounds --------------------------------------------------------------------------------------------------------

    def _round(self, rows: Tensor) -> None:
        """Linearise every sample at its point; then climb, or pull back, or slide."""
        fresh = self.over[rows]
        if bool(fresh.any()):
            self._begin(rows[fresh])
            rows = rows[~self.ended[rows]]
            if len(rows) == 0:
                return
        y = self.asked.clamp(rows, self.y[rows])
        z, d, w = self._linearise(rows, y)
        climbing = self.here[rows].isinf()
        fooled = self._report(rows, y, z)
        # The guide has changed sides and the true scores have not, as they saturate or are rounded: further.
        further = torch.maximum(d / 2, OVERSHOOT * self.gaps[rows, 0])
        d = torch.where((d > 0) & ~fooled, -further, d)
        self.sloped[rows] |= (w != 0).any(1)
        self.rounds[rows] += 1
        self.best.iterations[rows] += 1
        arrived = (climbing & fooled).nonzero()[:, 0]
        moved = torch.zeros_like(fooled)
        if len(arrived):
            moved[arrived] = self._pull(rows[arrived], y[arrived])
        a = (climbing & ~fooled).nonzero()[:, 0]
        if len(a):
            self._judge_step(rows[a], y[a], w[a], d[a])
        a = (~moved & ~(climbing & ~fooled)).nonzero()[:, 0]
        if len(a):
            self._slide(rows[a], y[a], w[a], d[a], fooled[a])

    def _linearise(self, rows: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scores at y, and value and gradient of the margin to raise: that of the class the descent is after, and once
        fooled of the best rival; to reach a target, of the target over its best rival."""
        target = self.target[rows]

        def choose(guide: Tensor) -> tuple[Tensor, Tensor]:
            """The class to raise and the class to lower."""
            reached = self.best.is_fooled(rows, guide) | (target < 0)
            return self.asked.goal.pair_towards(rows, guide, target.clamp_min(0), reached)

        z, guide, w = self.model.guided_gradient(rows, y, lambda _, guide: difference(guide, *choose(guide)))
        gain, loss = choose(guide)
        d = (guide.gather(1, gain[:, None]) - guide.gather(1, loss[:, None]))[:, 0]
        return z, torch.nan_to_num(d).to(y.dtype), w

    def _report(self, rows: Tensor, y: Tensor, z: Tensor) -> Tensor:
        """Report the points y; returns which of them fool."""
        r = y - self.asked.x_0[rows]
        fooled = self.best.report(rows, r, z, caution=self.caution, evidence=self.evidence)
        size = norm(r, self.p)
        self.here[rows] = torch.where(fooled, torch.minimum(size, self.here[rows]), self.here[rows])
        new = fooled & self.found_at[rows].isinf()
        self.found_at[rows[new]] = self.model.spent(rows[new]).to(self.found_at.dtype)
        return fooled

    def _climb(self, rows: Tensor, y: Tensor, w: Tensor, d: Tensor) -> None:
        """Newton's step from y to beyond the linearised boundary, or as far as the trust region lets it."""
        beyond = (OVERSHOOT + FURTHER * self.rounds[rows]) * d.abs() + torch.finfo(d.dtype).eps
        height = (w * y).sum(1) - d + beyond
        cube = self._cube(rows, y, self.radius[rows])
        self.y[rows], _ = project(y, w, height, *cube, self.newton)
        a = self.signed[rows].nonzero()[:, 0] if self.newton == 2 else rows[:0]
        if len(a):
            self.y[rows[a]], _ = project(y[a], w[a], height[a], cube[0][a], cube[1][a], math.inf)
        self.last[rows], self.w[rows], self.d[rows] = y, w, d
        self.predicted[rows] = (w * (self.y[rows] - y)).sum(1)

    def _judge_step(self, rows: Tensor, y: Tensor, w: Tensor, d: Tensor) -> None:
        """Accept the last step of a climb or take it back; fit the trust region; take the next, or give up."""
        predicted = self.predicted[rows]
        ratio = torch.where(predicted > 0, (d - self.d[rows]) / predicted, (GOOD + POOR) / 2)  # at first nothing was
        back = ratio < BAD
        factor = torch.where(ratio > GOOD, 2.0, torch.where(ratio < POOR, 0.5, 1.0)).to(d.dtype)
        most = torch.where(self.bounded[rows], self.leap[rows], math.inf)  # in a box, more ends in a corner of it
        self.radius[rows] = torch.minimum(self.radius[rows] * factor, most)
        y, w = (torch.where(back[:, None], old[rows], new) for old, new in ((self.last, y), (self.w, w)))
        d = torch.where(back, self.d[rows], d)
        self._climb(rows, y, w, d)
        slow = self.rounds[rows] >= PATIENCE + MORE * self.begun[rows]
        small = self.radius[rows] < LEAST * self.leap[rows]
        flat = self.predicted[rows] <= torch.finfo(d.dtype).eps * d.abs()
        long = norm(self.y[rows] - self.asked.x_0[rows], self.p) > LONGER * self.best.size[rows]
        self.over[rows] = slow | small | flat | long

    def _pull(self, rows: Tensor, y: Tensor) -> Tensor:
        """Back towards x_0: if PULLED of the way still fools, bisect; returns who moved."""
        r = y - self.asked.x_0[rows]
        low, high = torch.zeros_like(r[:, 0]), torch.ones_like(r[:, 0])
        share = torch.full_like(low, PULLED)
        at = torch.arange(len(rows), device=rows.device)
        for _ in range(PULLS):
            at = at[self._left(rows[at]) >= 1]
            if len(at) == 0:
                break
            trial = self.asked.clamp(rows[at], self.asked.x_0[rows[at]] + share[at, None] * r[at])
            fooled = self._report(rows[at], trial, self.model.look(rows[at], trial))
            high[at], low[at] = torch.where(fooled, share[at], high[at]), torch.where(fooled, low[at], share[at])
            at = at[high[at] < 1]
            share = (low + high) / 2
        self.y[rows] = self.asked.x_0[rows] + high[:, None] * r
        return high < 1

    def _slide(self, rows: Tensor, y: Tensor, w: Tensor, d: Tensor, fooled: Tensor) -> None:
        """Aim, project, shrink: the point nearest to x_0 beyond the linearised boundary, inside the cube."""
        x = self.asked.x_0[rows]
        hits = self.hits[rows]
        self.hits[rows] = torch.where(fooled, hits.clamp_min(0) + 1, hits.clamp_max(0) - 1)
        # Hits in a row: the boundary is as flat as it was taken to be, and the aim far too wide.
        factor = torch.where(fooled, torch.where(self.hits[rows] >= IN_A_ROW, HITS, HIT), MISS).to(d.dtype)
        self.aim[rows] = (self.aim[rows] * factor).clamp(2e-5, 1)
        scale = w.abs().sum(1).clamp_min(torch.finfo(w.dtype).tiny * 1e4)
        w, d = w / scale[:, None], d / scale
        sliding = self.share[rows] < self.first_share[rows]
        w = torch.where(sliding[:, None], INERTIA * self.w[rows] + (1 - INERTIA) * w, w)
        self.w[rows] = w
        boundary = (w * y).sum(1) - d
        height = boundary + self.aim[rows] * (boundary - (w * x).sum(1)).clamp_min(0)
        whole = self.here[rows] if self.p == math.inf else SPREAD[self.p] * norm(y - x, math.inf)
        side = self.share[rows] * whole
        moved, possible = project(x, w, height, *self._cube(rows, y, side), self.p)
        # Not to the far corner of the cube, which moves every feature; only restarts may be so bold.
        away = (~possible | (self.hits[rows] <= -IN_A_ROW)) & (self.begun[rows] <= CLASSES)
        away = away.nonzero()[:, 0]
        if len(away):
            moved[away] = self._reach(rows[away], y[away], w[away], height[away])
        self.y[rows] = torch.where(moved.isfinite(), moved, y)
        self.share[rows] *= KEEP
        late = (self.share[rows] < 0.6 * self.first_share[rows]) & (self.here[rows] > HOPELESS * self.best.size[rows])
        self.over[rows] = late | (self.share[rows] < self.last_share[rows]) | ~self.sloped[rows]

    def _reach(self, rows: Tensor, y: Tensor, w: Tensor, height: Tensor) -> Tensor:
        """Where the cube is too small to get beyond the boundary: from y towards it, by a share of the perturbation."""
        most = self.share[rows] * norm(y - self.asked.x_0[rows], self.newton)
        lower, upper = self.lower[rows], self.upper[rows]
        here = (w * y).sum(1)
        corner = torch.where(w > 0, upper, lower)
        all_ = torch.where(w != 0, w * (corner - y), torch.zeros_like(w)).sum(1)
        gain = torch.minimum(height - here, most * norm(w, dual(self.newton)))
        return project(y, w, here + torch.minimum(gain, 0.9 * all_), lower, upper, self.newton)[0]

    def _cube(self, rows: Tensor, y: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
        """The box, and a cube around y in it."""
        radius = radius[:, None]
        return torch.maximum(self.lower[rows], y - radius), torch.minimum(self.upper[rows], y + radius)

    # -- without gradients ---------------------------------------------------------------------------------------------

    def _search_without_gradients(self, rows: Tensor) -> Tensor:
        """Where no descent has fooled after LOST of them, or gradients are dead at x_0 or everywhere: by scores, and
        where that finds nothing by decisions. Returns who goes on."""
        found, sloped = self.best.found(rows), self.sloped[rows]
        lost = (self.begun[rows] >= LOST) & (~found | self.distance[rows, 0].isinf())
        lost = rows[(lost | (found & ~sloped)) & ~self.searched[rows]]
        if len(lost):
            found = self.best.found(lost)
            left = torch.where(found & self.sloped[lost], self._left(lost).clamp(0, QUERIES // 2), QUERIES)
            search_by_scores(self.task, lost, left.long(), [self.random[i] for i in lost.tolist()])
            self._search_by_decisions(lost[~self.best.found(lost)])
            late = lost[self.best.found(lost) & ~found]
            self.found_at[late] = self.model.spent(late).to(self.found_at.dtype)
            self.begun[lost] = self._tried()  # go on with the refinement
            self.searched[lost] = True
            self.ended[lost] = ~self.best.found(lost) | ~self.sloped[lost]
        return rows[~self.ended[rows]]

    def _search_by_decisions(self, rows: Tensor) -> None:
        if len(rows) == 0:
            return
        y, found, z = search_by_decisions(self.task, rows, QUERIES, self.random[int(rows[0])])
        r = (y - self.asked.x_0[rows])[found]
        self.best.report(rows[found], r, z[found], fooled=found[found], caution=MASKED, evidence=Evidence.DECISIONS)


def _explain(masks: tuple[str, ...]) -> tuple[Evidence, str]:
    """What a perturbation counts as that was found on a model with these masks, and what to say about it."""
    if CUT_OFF in masks:
        return Evidence.SCORES, CAUTION
    names = ", ".join(masks)
    return Evidence.REPAIRED, f"found by gradients past what hides them in this model: {names}"
