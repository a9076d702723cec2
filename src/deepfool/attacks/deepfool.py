"""DeepFool: Algorithms 1 and 2 of Moosavi-Dezfooli, Fawzi, Frossard (CVPR 2016), any p-norm.

The classifier is linearised at the current point, the perturbation steps to the nearest boundary of that linear
picture, and so on until the label changes. Algorithm 1 (a single score, decided by its sign) is Algorithm 2 on the
two scores (0, f). Where the paper is silent:

- the point that is tested is the one that is returned, x_0 + (1 + overshoot) * sum of r_i; the linearisation is
  taken at x_0 + sum of r_i, without the overshoot;
- inside bounds each step is the smallest one that stays in the box, the first two are shortened (`IN_BOX`), and the
  overshoot is cut at the box. There the linearisation is taken at the overshot point, so that no overshoot is left of
  the steps before the last one, and the answer is about 1 % smaller. Where no boundary can be reached in the box, the
  step goes as far as the box allows;
- a class whose gradient difference is zero or not finite is passed over for the next-nearest; where none is left the
  sample is STUCK;
- a tie (equal scores) is a boundary at distance zero: the step is then as long as the smallest margin that counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from deepfool import norms
from deepfool.attacks.shared.adversarial import Adversarial, Status
from deepfool.attacks.shared.aims import Aim
from deepfool.attacks.shared.arguments import Bounds, Candidates, Labels, check_candidates
from deepfool.attacks.shared.boundaries import Linearisation
from deepfool.attacks.shared.pruning import Slopes, can_prune, consider_nearest
from deepfool.attacks.shared.rows import pick, put
from deepfool.attacks.shared.task import Task, attack, run
from deepfool.classifier import Classifier, Model
from deepfool.schemas import Schema
from deepfool.subspaces import Subspace
from deepfool.values import check_count, check_overshoot

IN_BOX = (0.6, 0.9)
"""Inside bounds, how much of the first steps is taken before the classifier is linearised again. Features that stop at
a bound hand their share to others that the linear picture knows less of: whole first steps end 5 to 9 % farther out on
the networks of the zoo (docs/benchmarks/speed.md, also for other shares). Where the classifier is affine, the overshoot
aside, the sum of the steps is the same. Not for p < 2, where a step takes the gradients of all classes and costs too
much to be taken twice more."""


@attack
def deepfool(
    model: Model | Classifier,
    x: Tensor,
    *,
    p: float = 2,
    overshoot: float = 0.02,
    max_iter: int = 50,
    candidates: Candidates = "auto",
    bounds: Bounds | None = None,
    labels: Labels | None = None,
    target: int | Labels | None = None,
    goal: str | Aim | None = None,
    mask: Tensor | None = None,
    subspace: Subspace | Tensor | str | None = None,
    weights: Tensor | Sequence[float] | None = None,
    schema: Schema | str | None = None,
    tighten: bool = False,
    threshold: float | None = None,
    outputs: str = "auto",
) -> Adversarial:
    """The smallest perturbation that DeepFool finds for each sample of a batch.

    Args:
        model: anything that maps a batch to class scores (see `Classifier`); left as it was found.
        x: the inputs, any shape after the batch dimension, floating point.
        p: the norm to keep small, in [1, inf].
        overshoot: eta of the paper, how far beyond the boundary to go, relative to the perturbation; inside bounds
            (p >= 2) relative to the last step.
        max_iter: steps after which a sample is given up as EXHAUSTED.
        candidates: "auto" considers all classes, but takes gradients only for those that can be nearest, where the
            model has a last hidden layer that every path to the scores passes through, and otherwise for all;
            "all" (or None) takes all of them, exactly as in the paper; a number considers that many of the
            best-scored ones, chosen again at each iteration.
        bounds: (lowest, highest), numbers or tensors per feature; steps are exact inside that box.
        labels: the true labels; samples that the model gets wrong are then returned untouched, MISCLASSIFIED.
        target: a class to reach (one for all, or one per sample) instead of any other.
        goal: what counts as a changed decision: "other" label (the default), "target:3", "top:5", "margin:2",
            "confidence:0.9"; for a model with one score per label "labels" (any flips) or "label:4"; for a regression
            model "within:0.5" (it leaves y ± 0.5) or "passes:3". See docs/howto/goals.md. The true `labels` are then
            those of the goal: (n, c) zeros and ones, or the true values.
        mask: which features may change (true or non-zero), one mask for all or one per sample.
        subspace: the directions in which an input may change (`deepfool.subspaces`, a text such as "band:1/8", or an
            orthonormal basis (d, m)), in l2. With bounds the answer is clipped to them, and leaves the subspace where
            it is. Single features hold in every norm, and with bounds exactly.
        weights: what each feature counts, one positive number each: the norm is that of weights * r, in `norm` too.
        schema: what the features of a table are and how they may change, a `Schema` or its file (docs/howto/schema.md):
            the answer is a valid row, the smallest that is found. For p = 1, 2 and inf.
        tighten: end with a ray search back towards x, which takes back what is not needed of the overshoot.
        threshold: where a single-score model decides (0 unless given; 0.5 where it returns a probability).
        outputs: what the model returns: "logits", "probabilities", or "auto" to find out (see `Classifier`).

    Returns:
        An `Adversarial`, one row per sample.

    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    >>> result = deepfool(model, torch.tensor([[3.0, 1.0]]))
    >>> result.label, result.adv_label, result.r
    (tensor([0]), tensor([1]), tensor([[-1.0200, 1.0200]]))
    """
    max_iter, candidates = check_count(max_iter, "max_iter"), check_candidates(candidates)
    overshoot = check_overshoot(overshoot)

    def body(task: Task) -> None:
        iterate(Walk(task, candidates, overshoot), task.rows, max_iter)

    return run(
        body, model, x, p=p, tighten=tighten, classes=True, bounds=bounds, labels=labels, target=target, goal=goal,
        mask=mask, subspace=subspace, weights=weights, schema=schema, threshold=threshold, outputs=outputs,
    )  # fmt: skip


def iterate(walk: Walk, rows: Tensor, max_iter: int, on_step: Callable[[Walk], None] = lambda _: None) -> None:
    """The loop of Algorithm 2 over a batch: samples leave it as soon as they are fooled."""
    for i in range(max_iter):
        if len(rows) == 0:
            break
        rows = walk.step(rows, last=i == max_iter - 1)
        on_step(walk)
    why = f"the label did not change within {max_iter} iterations; raise max_iter or overshoot"
    walk.task.best.give_up(rows, Status.EXHAUSTED, why)


class Walk:
    """Algorithm 2 under way: how far each sample has come. It can be left and resumed."""

    def __init__(
        self,
        task: Task,
        candidates: Candidates | Tensor,
        overshoot: float = 0.02,
        start: Tensor | None = None,
        slopes: Slopes | None = None,
    ) -> None:
        """`candidates` may also be the classes themselves, (n, m); `start` (n, d) is where to begin instead of x_0."""
        asked = task.asked
        self.task, self.candidates, self.eta = task, candidates, overshoot
        self.slopes = slopes or Slopes(task)
        self.start = start
        self.r = torch.zeros_like(asked.x_0)
        """(n, d): the sum of r_i so far."""
        self.i = torch.zeros_like(asked.label)
        """(n,): how many r_i that are."""
        self.l_hat = torch.full_like(asked.label, -1)
        """(n,): the class whose boundary was nearest when the last step was found; -1 before the first."""
        self._begun = False
        self.fooled = torch.zeros_like(asked.label, dtype=torch.bool)
        in_box = asked.lower is not None and start is None and asked.p >= 2
        self.shares = torch.tensor([*IN_BOX, 1.0]).to(asked.x_0) if in_box else None
        self.stretch = 1 + overshoot if in_box else 1.0
        """The classifier is linearised at x_0 + stretch * r: in the box, at the point that is returned."""
        self.rest = torch.zeros_like(self.r) if in_box else self.r
        """(n, d): what was left out of a shortened step."""

    def step(self, rows: Tensor, *, last: bool = False) -> Tensor:
        """One round of the loop; returns the samples that are not fooled yet. The `last` step is never shortened."""
        rows, r_i = self.find_step(rows)
        return self.advance(rows, r_i, last=last)

    def find_step(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Lines 5 to 11: linearise at x_i, find the nearest boundary l^ and the step r_i to it.

        Samples that have no step to take (STUCK), or turn out to be fooled at x_i already, are left out.
        """
        task, asked = self.task, self.task.asked
        r = self.at(rows, self.stretch)
        x_i = asked.clamp(rows, asked.of(rows, asked.x_0) + r)
        begin = self.start is None and not self._begun
        pruned = not isinstance(self.candidates, Tensor) and self.candidates == "auto" and can_prune(task)
        tangent = task.model.linearise_inputs(rows) if begin else task.model.linearise(rows, x_i, hidden=pruned)
        z = tangent.scores
        k_hat = asked.goal.reference(rows, z)  # the paper's k^(x_0); on the way to a target, its best rival
        f_prime = z - z.gather(1, k_hat[:, None])
        linear = Linearisation(task, rows, x_i, z, self._gap(rows, f_prime), k_hat, stretch=True, ahead=True)
        if isinstance(self.candidates, Tensor):
            linear.consider(linear.everyone, self.candidates[rows], tangent)
        elif pruned:
            consider_nearest(linear, self.slopes, tangent)
        else:
            linear.consider(linear.everyone, asked.goal.classes(rows, z, self.candidates), tangent)
        self.l_hat[rows] = linear.nearest.l_hat
        going = self._look_back(rows, r, z)
        stuck = going & ~linear.has_step()
        stuck = stuck & ~self._take_rest(rows, stuck, linear)
        going = going & ~stuck
        left, lost = torch.stack([going.logical_not().any(), stuck.any()]).tolist()  # one look at the numbers
        if lost:
            linear.give_up(stuck)
        if not left:
            return rows, linear.nearest.step
        here = going.nonzero()[:, 0]
        return rows[here], linear.nearest.step.index_select(0, here)

    def advance(self, rows: Tensor, r_i: Tensor, *, last: bool = False) -> Tensor:
        """Lines 12 and 13: add the step and test the overshot point; returns the samples that are not fooled yet."""
        task, asked = self.task, self.task.asked
        tested = rows
        if self.shares is not None and not last:
            share = self.shares[self.i[rows].clamp_max(len(self.shares) - 1)]
            put(self.rest, rows, (1 - share)[:, None] * r_i)
            r_i, tested = share[:, None] * r_i, rows[share == 1]  # the others are seen by the next linearisation
        self._begun = self._begun or len(rows) > 0
        self.r.index_add_(0, rows, r_i)
        self.i[rows] += 1
        task.best.iterations[rows] += 1
        if len(tested):
            r_hat = self.at(tested, 1 + self.eta)
            z = task.model.look(tested, asked.of(tested, asked.x_0) + r_hat)
            put(self.fooled, tested, task.best.report(tested, r_hat, z, once=True))
        return rows[~self.fooled[rows]]

    def at(self, rows: Tensor, stretch: float) -> Tensor:
        """The perturbation that these samples have reached, with the sum of r_i stretched."""
        r = self.task.asked.of(rows, self.r)
        r = r if stretch == 1 else stretch * r
        return r if self.start is None else self.start[rows] + r

    def _gap(self, rows: Tensor, f_prime: Tensor) -> Tensor:
        """|f'_k|, but at least twice the margin that counts: a tie, or a boundary just touched, would end there."""
        least = 2 * self.task.model.rounding.tolerance[rows, None]
        gap = torch.maximum(f_prime.abs(), least).clamp_min(torch.finfo(f_prime.dtype).tiny * 1e4)
        return gap.to(self.r.dtype)

    def _look_back(self, rows: Tensor, r: Tensor, z: Tensor) -> Tensor:
        """Which samples continue: after a shortened step, which was not tested, a sample may be fooled already."""
        going = torch.ones_like(rows, dtype=torch.bool)
        if self.shares is not None:
            seen = self._shortened(rows).nonzero()[:, 0]
            if len(seen):
                who = pick(rows, seen)
                fooled = self.task.best.report(who, pick(r, seen), pick(z, seen), once=True)
                put(self.fooled, who, fooled)
                put(going, seen, ~fooled)
        return going

    def _take_rest(self, rows: Tensor, stuck: Tensor, linear: Linearisation) -> Tensor:
        """Where there is no way on from a shortened step, the rest of it is the next one; returns where that is so."""
        if self.shares is None or (rows.device.type in norms.ON_THE_HOST and not bool(stuck.any())):
            return torch.zeros_like(stuck)
        rest = stuck & self._shortened(rows)
        linear.nearest.step = torch.where(rest[:, None], self.task.asked.of(rows, self.rest), linear.nearest.step)
        self.i[rows] = torch.where(rest, len(self.shares), self.i[rows])
        return rest

    def _shortened(self, rows: Tensor) -> Tensor:
        """Whether the last step of these samples was shortened."""
        assert self.shares is not None
        return (self.i[rows] > 0) & (self.i[rows] < len(self.shares))
