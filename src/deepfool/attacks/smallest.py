"""`smallest`: the smallest perturbation that is known after any number of passes, for p = 1, 2 and inf.

This project's own scheme: one search that can be stopped after any pass with its best answer so far. A sample goes
through a fixed sequence of descents, whatever its budget, so that a larger budget continues a smaller one.

    rank        the gradients of the classes at x_0: which boundaries look nearest (`shared.ranking`)
    descents    the nearest classes, one after the other and coarsely; then the best point again, finely, while that
                helps; then for ever, in turn: a class once more, from another start, along the mean normal around x_0,
                from a kick (half of the best perturbation reset) and from a copy of x_0 that is turned and moved
                (`shared.starts`); what is found is refined
    lost        while nothing has fooled, descents start farther and farther away from x_0; at last the scores alone are
                searched, then DeepFool's steps are taken, then the decisions alone are searched, and what they
                find is descended from

A descent climbs until the label changes, is pulled straight back towards x_0, and slides along the boundary, in rounds
that *linearise, aim, project, shrink* (`shared.descents`). Operations that hide gradients are seen through
(`classifier.unmasking`); every point is judged by the true scores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from deepfool.attacks.deepfool import Walk, iterate
from deepfool.attacks.shared.adversarial import Adversarial, Evidence, Status
from deepfool.attacks.shared.decisions import search_by_decisions
from deepfool.attacks.shared.descents import KEEP, Descents
from deepfool.attacks.shared.ranking import rank_classes
from deepfool.attacks.shared.scores import CAUTION, search_by_scores
from deepfool.attacks.shared.starts import LOOKS, Starts
from deepfool.attacks.shared.supports import Supports
from deepfool.attacks.shared.task import Shared, Task, Unpack, attack, run
from deepfool.classifier import Classifier, Model
from deepfool.classifier.unmasking import CUT_OFF
from deepfool.schemas import Schema
from deepfool.subspaces import Subspace
from deepfool.values import check_count, check_optional_count

# Chosen by hand; docs/algorithms/smallest.md names the networks, and says what other values gave there.
LINEARISED = 10
"""Classes whose gradients are taken at x_0, at most."""
CLASSES, FAR, NEAR = 3, 2.5, 1.5
"""Classes that are tried before the best point is refined. Once one has fooled, those that look FAR times as far as the
nearest are passed over; NEAR times, where the nearest was found within that factor of where it looked to be."""
PATIENCE, MORE = 8, 2
"""Climbing: most rounds, and how many more with each descent that came before."""
TURNS = 4
"""Restarts in turn: a class, the mean normal around x_0, a kick, a copy of x_0. Inputs without rows and columns have no
such copy, and noise takes its place; without a box there are only classes and kicks."""
LOST = 9
"""After how many descents gradients are given up, where nothing has fooled or all of them were zero."""
AIM, FINE = 0.3, 0.03
"""Sliding: how far beyond the boundary to aim at first, as a share of the way to it; when refining."""
WHOLE, HALF, END = 1.0, 0.5, 0.01
"""Sliding: the cube's side at first, in the middle and at the end, as a share of the perturbation."""
POLISH, FINEST = 8, 0.001
"""In l2 and linf so many restarts are followed by a finer refinement, down to this share: without it 1000 passes end
some 0.1 % above the local minimum that they found. In l1 it gains nothing."""
SLOW, SLOWER = 0.9, 0.93
"""Sliding in l1: what a round leaves of the cube's side while a dense perturbation is thinned out, for the classes and
for restarts. How slowly that goes decides how sparse a point it leads to. Without a box classes keep to KEEP: on affine
models a slower pace took the second nearest class for the nearest."""
LATE = 0.3
"""What is found late is refined all the same, for this share of the budget."""
QUERIES = 1000
"""Forward passes of the search by scores; half of them, if the budget has them, where only x_0 has no gradient. On
LeNet and FC500 without gradients 500 and 1000 come within 1.22 and 1.10 of the smallest in linf (30 images each)."""
STEPS = 50
"""Steps of DeepFool, to the CLASSES best-scored classes, where neither careful steps nor the scores have fooled."""
STILL, QUIET, MOST = 1.005, 4, 10_000
"""Converged: QUIET restarts in a row made the perturbation less than 0.5 % smaller, or MOST passes were made."""
AGAIN = {1.0: 1.1, 2.0: STILL, math.inf: STILL}
"""What has made the perturbation smaller by this factor is refined (again). In l1 restarts are worth more than that."""

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
    unit: str = "feature",
    subspace: Subspace | Tensor | str | None = None,
    weights: Tensor | Sequence[float] | None = None,
    schema: Schema | str | None = None,
    **shared: Unpack[Shared],
) -> Adversarial:
    """The smallest perturbation that `budget` passes (forwards plus backward rows, per sample) can find.

    Args:
        model, x, bounds, labels, target, goal, mask, subspace, weights, schema, threshold: as for `deepfool`.
        p: 1, 2 or inf; 0 for as few changed features as possible, inside bounds.
        budget: passes per sample; 50 is quick, 100 the default, 1000 for reference values; None for as many as it takes
            until restarts no longer help. A larger budget continues a smaller one, and never gives a larger
            perturbation. What was really used is in the result's `forwards` and `backwards`: it is more where nothing
            fools within the budget, or only at its end.
        candidates: how many classes to linearise at x_0, those that look nearest by their scores and by how steep the
            last hidden layer says they are; None means 10.
        seed: of the random restarts. They depend on the sample, not on the batch it is in.
        unit: what p = 0 counts, "feature" or "pixel"; a pixel counts once, whatever its channels.

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
        search = Supports if task.asked.p == 0 else _Search
        search(task, budget, candidates or LINEARISED, seed).run()

    norms = (0, 1, 2, math.inf)
    return run(
        body, model, x, p=p, norms=norms, classes=True, unmask=True, unit=unit, subspace=subspace, weights=weights,
        schema=schema, **shared,
    )  # fmt: skip


class _Part(NamedTuple):
    """The part of the sequence that some samples have come to: which of them take which."""

    direct: Tensor
    """To a class, straight from x_0."""
    noise: Tensor
    """In place of a class, where the linear picture misled."""
    lost: Tensor
    """While nothing has fooled."""
    refine: Tensor
    polish: Tensor
    """The finer ones of the refinements."""
    turn: Tensor
    """The number of the restart; what it is for, in turn:"""
    again: Tensor
    mean: Tensor
    kick: Tensor
    copy: Tensor

    @property
    def elsewhere(self) -> Tensor:
        """A restart that is after no class."""
        return self.mean | self.kick | self.copy


class _Search:
    """The descents of all samples, each at its own place in the sequence."""

    def __init__(self, task: Task, budget: int | None, candidates: int, seed: int) -> None:
        asked = task.asked
        self.task, self.asked, self.model, self.best = task, asked, task.model, task.best
        self.p, self.budget = asked.p, budget
        self.ranking = rank_classes(task, candidates, keep=candidates)
        self.tried = min(CLASSES, self.ranking.classes)
        """How many classes are tried before the best point is refined."""
        self.dead = self.ranking.distance[:, 0].isinf()
        """(n,): whether no class has a gradient at x_0."""
        found_by = _explain(self.model.masks) if self.model.masks else (Evidence.GRADIENTS, "")
        self.descents = Descents(task, self.ranking.gaps[:, 0], self.dead, self._left, found_by)
        # The sequence: descents begun, whether there is nothing more to do, whether the scores alone were searched.
        self.begun = torch.full_like(asked.label, -1)
        self.starts = Starts(task, self.descents, self.begun, self.dead, seed)
        self.ended = torch.zeros_like(self.dead)
        self.searched = torch.zeros_like(self.dead)
        # What the last restart found, and how many in a row found nothing.
        self.before = torch.full_like(asked.x_0[:, 0], math.inf)
        self.quiet = torch.zeros_like(self.before)
        self.misled = torch.zeros_like(self.dead)
        """Whether the nearest class was not found where it looked to be."""
        self.refining = torch.zeros_like(self.dead)
        """Whether the running descent refines what the one before it has found."""

    def run(self) -> None:
        lost = LOST * (PATIENCE + MORE * LOST)  # rounds before gradients are given up, at most
        for _ in range((self.budget or MOST) + lost):  # a round takes two passes
            rows = self._going()
            fresh = self.descents.over[rows]
            if bool(fresh.any()):
                self._begin(rows[fresh])
                rows = rows[~self.ended[rows]]
            if len(rows) == 0:
                break
            self.descents.round(rows)
        self.best.coarse = self.begun < self.tried
        self.best.give_up(
            self.task.rows,
            Status.STUCK,
            "neither gradients, scores nor decisions led to another label; raise the budget",
        )

    def _going(self) -> Tensor:
        rows = self.task.rows
        return rows[~self.ended[rows] & (self._left(rows) >= 2)]

    def _left(self, rows: Tensor) -> Tensor:
        """Passes that these samples may still make: as many as it takes until something fools."""
        budget = MOST if self.budget is None else self.budget
        late = self.descents.found_at[rows] + LATE * budget  # infinite while nothing has
        return late.clamp_min(budget) - self.model.spent(rows)

    def _begin(self, rows: Tensor) -> None:
        """The next descent of these samples; those that have none are ended."""
        self._judge(rows)
        self.begun[rows] += (~self.refining[rows]).long()
        rows = self._search_without_gradients(rows)
        self._pass_over(rows)
        part = self._find_part(rows)
        self._place(rows, part)
        tried, k, boxed = self.tried, self.begun[rows], self.descents.bounded[rows]
        # Where no class has a gradient at x_0, their order says nothing: whichever rises.
        place = torch.where(part.again, torch.div(part.turn, TURNS, rounding_mode="floor") % self.ranking.classes, k)
        target = self.ranking.order[rows, place.clamp_max(self.ranking.classes - 1)]
        l1 = torch.full_like(part.refine, self.p == 1)
        self.descents.start(
            rows,
            target=torch.where((part.direct | part.again) & ~self.dead[rows], target, torch.full_like(k, -1)),
            patience=PATIENCE + MORE * k,
            signed=part.again,
            short=part.elsewhere & (self.p == 2),
            aim=torch.where(part.refine, FINE, AIM),
            share=torch.where(part.refine | (part.elsewhere & ~l1), HALF, WHOLE),
            last_share=torch.where(part.polish, FINEST, torch.where(k < tried, HALF, END)),
            bold=k > CLASSES,
            thin=((k < tried) | part.elsewhere) & l1,
            pace=torch.where(k < tried, torch.where(boxed, SLOW, KEEP), SLOWER),
        )
        j, k = rows[part.direct], k[part.direct]  # the first step from x_0: its gradient is known
        self.descents.climb(j, self.asked.x_0[j], self.ranking.slopes[j, k], -self.ranking.gaps[j, k])

    def _find_part(self, rows: Tensor) -> _Part:
        """What the descents that begin now are for."""
        tried, k, known = self.tried, self.begun[rows], self.best.found(rows)
        number = k - tried  # of the restart; one in POLISH + 1 refines what the others have found
        polished = torch.div(number, POLISH + 1, rounding_mode="floor") if self.p != 1 else torch.zeros_like(k)
        polish = known & (number == (POLISH + 1) * polished) & (polished > 0) & ~self.refining[rows]
        refine = known & ((k == tried) | self.refining[rows] | polish)
        restart, boxed = known & (k > tried) & ~refine, self.descents.bounded[rows]
        turn = (number - polished - 1) * torch.where(boxed, 1, 2)  # without a box there are only classes and kicks
        again, mean, kick, copy = (restart & (turn % TURNS == place) for place in range(TURNS))
        noise = known & self.misled[rows] & boxed & (k == CLASSES - 1) & (k < tried)
        direct, lost = (k < tried) & (known | (k == 0)) & ~noise, ~known & (k > 0)
        return _Part(direct, noise, lost, refine, polish, turn, again, mean, kick, copy)

    def _place(self, rows: Tensor, part: _Part) -> None:
        """Put them where they start."""
        short = part.mean & (self._left(rows) < 2 * LOOKS + 2)
        self.ended[rows] |= short  # the mean and a round along it no longer fit
        y, starts = self.descents.y, self.starts
        y[rows] = self.asked.x_0[rows]
        for chosen, start in (
            (part.refine, starts.best_point), (part.noise, starts.noise), (part.again | part.lost, starts.shaken),
            (part.mean & ~short, starts.mean_normal), (part.kick, starts.kick), (part.copy, starts.copy),
        ):  # fmt: skip
            if bool(chosen.any()):
                y[rows[chosen]] = start(rows[chosen])

    def _pass_over(self, rows: Tensor) -> None:
        """Once something has fooled, classes that look far are not tried.

        Where the first class was not found where it looked to be, the linear picture misleads, and the classes with the
        best scores come sooner.
        """
        rows = rows[(self.begun[rows] > 0) & (self.begun[rows] < self.tried) & self.best.found(rows)]
        if len(rows) == 0:
            return
        nearest = self.ranking.nearest(rows)
        off = self.best.size[rows] / nearest
        right = (off < NEAR) & (off > 1 / NEAR)
        misled = rows[(self.begun[rows] == 1) & ~right]
        self.misled[misled] = True
        # In l1 the point that fooled first is dense, and says little about sparse ones.
        self.ranking.weave_in_scores(misled, None if self.p == 1 else self.descents.lacking[misled])
        limit = torch.where(right, NEAR, FAR)
        for _ in range(self.tried):
            k = self.begun[rows]
            place = k.clamp_max(self.tried - 1)
            far = self.ranking.distance[rows, place] > limit * nearest
            if self.p != 1:  # in l1 a descent keeps to its class while it thins out
                # The first step to a class with the same gradient is the same, and leads to the same place.
                far |= self.ranking.is_parallel(rows, place)
            self.begun[rows] += ((k < self.tried) & far).long()

    def _judge(self, rows: Tensor) -> None:
        """Whether the descent that is over helped, so that a refinement comes next; where several restarts did not, and
        no budget was given, that is the end."""
        before, size = self.before[rows], self.best.size[rows]
        helped = before > STILL * size
        restart = (self.begun[rows] > self.tried) & ~self.refining[rows]
        self.quiet[rows] = torch.where(helped, torch.zeros_like(self.quiet[rows]), self.quiet[rows] + restart)
        self.before[rows] = size
        self.refining[rows] = (before > AGAIN[self.p] * size) & (self.begun[rows] >= self.tried)
        if self.budget is None:
            self.ended[rows] |= self.quiet[rows] >= QUIET

    def _search_without_gradients(self, rows: Tensor) -> Tensor:
        """Where no descent has fooled after LOST of them, or gradients are dead at x_0 or everywhere: by scores, and
        where that finds nothing by decisions. Returns who goes on."""
        found, sloped = self.best.found(rows), self.descents.sloped[rows]
        # No gradient even at the point that was found: there is nothing to descend by.
        self.ended[rows] |= self.searched[rows] & ~sloped & (self.begun[rows] > self.tried)
        lost = (self.begun[rows] >= LOST) & (~found | self.dead[rows])
        lost = rows[(lost | (found & ~sloped)) & ~self.searched[rows]]
        if len(lost):
            found = self.best.found(lost)
            left = torch.where(found & self.descents.sloped[lost], self._left(lost).clamp(0, QUERIES // 2), QUERIES)
            search_by_scores(self.task, lost, left.long(), [self.starts.random[i] for i in lost.tolist()])
            # Far away and without a box, DeepFool's whole steps arrive where careful ones do not.
            iterate(Walk(self.task, CLASSES), lost[~self.best.found(lost)], STEPS)
            self._search_by_decisions(lost[~self.best.found(lost)])
            late = lost[self.best.found(lost) & ~found]
            self.descents.found_at[late] = self.model.spent(late).to(self.descents.found_at.dtype)
            self.descents.away[late] = True
            self.begun[lost] = self.tried  # go on with the refinement
            self.searched[lost] = True
            self.ended[lost] = ~self.best.found(lost)
        return rows[~self.ended[rows]]

    def _search_by_decisions(self, rows: Tensor) -> None:
        if len(rows) == 0:
            return
        y, found, z = search_by_decisions(self.task, rows, QUERIES, self.starts.random[int(rows[0])])
        r = (y - self.asked.x_0[rows])[found]
        self.best.report(rows[found], r, z[found], fooled=found[found], caution=MASKED, evidence=Evidence.DECISIONS)


def _explain(masks: tuple[str, ...]) -> tuple[Evidence, str]:
    """What a perturbation counts as that was found on a model with these masks, and what to say about it."""
    if CUT_OFF in masks:
        return Evidence.SCORES, CAUTION
    names = ", ".join(masks)
    return Evidence.REPAIRED, f"found by gradients past what hides them in this model: {names}"
