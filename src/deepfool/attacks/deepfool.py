"""DeepFool: Algorithms 1 and 2 of Moosavi-Dezfooli, Fawzi, Frossard (CVPR 2016), any p-norm.

The classifier is linearised at the current point, the perturbation steps to the nearest boundary of that linear
picture, and so on until the label changes. Algorithm 1 (a single score, decided by its sign) is Algorithm 2 on the
two scores (0, f). Where the paper is silent:

- the point that is tested is the one that is returned, x_0 + (1 + overshoot) * sum of r_i; the linearisation is
  taken at x_0 + sum of r_i, without the overshoot (where a step was cut short, see below, that is the point tested);
- inside bounds each step is the smallest one that stays in the box, the first two are cut short (`IN_BOX`), and the
  overshoot is cut at the box;
- a class whose gradient difference is zero, not finite, or that the box puts out of reach is passed over for the
  next-nearest; where none is left the sample is STUCK;
- a tie (equal scores) is a boundary at distance zero: the step is then as long as the smallest margin that counts.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from deepfool.attacks.shared.adversarial import Adversarial, Status
from deepfool.attacks.shared.arguments import (
    Bounds,
    Candidates,
    Labels,
    check_candidates,
    check_count,
    check_flag,
    check_inputs,
    check_overshoot,
    check_threshold,
)
from deepfool.attacks.shared.problem import Problem, pose
from deepfool.attacks.tighten import shorten
from deepfool.classifier import Classifier, Model
from deepfool.classifier.jacobian import Tangent
from deepfool.norms import check_p, dual, norm, reach, step

FIRST, AGAIN = 3, 1
"""How many classes "auto" takes gradients for before it looks which others can be nearer: at x_0, and later."""
SMALL, CHEAP = 8, 2**19
"""So many samples at least (if there are) go together, whatever they lack, or as many as have CHEAP bytes of gradients:
smaller rounds cost more than they save."""
WIDE = 64
"""Features from which on "auto" leaves classes out."""
TRUST = 1.4
"""By how much the slope of a class that was not looked at may exceed what the last hidden layer and the steepest of
those that were lead to expect; more where those that were disagree by more (docs/benchmarks/speed.md)."""
MANY, AT_ONCE, MOST = 50, 8, 24
"""Of MANY classes or more AT_ONCE are looked at before the bar is lowered to what they showed, and MOST in all at one
point: where the margin leaves more, those that look nearest are taken."""
IN_BOX = (0.6, 0.7)
"""Inside bounds, how much of the first steps is taken before the classifier is linearised anew. Features that stop at a
bound hand their share to others that the linear picture knows less of: whole first steps end 5 to 9 % farther out, on
the networks of the zoo. Where the classifier is affine the sum of the steps is the same. Not for p < 2, where a step of
all classes' gradients costs too much to be taken twice more."""


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
    mask: Tensor | None = None,
    tighten: bool = False,
    threshold: float | None = None,
    outputs: str = "auto",
) -> Adversarial:
    """The smallest perturbation that DeepFool finds for each sample of a batch.

    Args:
        model: anything that maps a batch to class scores (see `Classifier`); left as it was found.
        x: the inputs, any shape after the batch dimension, floating point.
        p: the norm to keep small, in [1, inf].
        overshoot: eta of the paper, how far beyond the boundary to go, relative to the perturbation.
        max_iter: steps after which a sample is given up as EXHAUSTED.
        candidates: "auto" considers all classes, but takes gradients only for those that can be nearest, where the
            model has a last hidden layer that every path to the scores passes through, and otherwise for all;
            "all" (or None) takes all of them, exactly as in the paper; a number considers that many of the
            best-scored ones, chosen again at each iteration.
        bounds: (lowest, highest), numbers or tensors per feature; steps are exact inside that box.
        labels: the true labels; samples that the model gets wrong are then returned untouched, MISCLASSIFIED.
        target: a class to reach (one for all, or one per sample) instead of any other.
        mask: which features may change (true or non-zero), one mask for all or one per sample.
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
    p = check_p(p)
    check_inputs(x)
    max_iter = check_count(max_iter, "max_iter")
    candidates = check_candidates(candidates)
    overshoot = check_overshoot(overshoot)
    tighten = check_flag(tighten, "tighten")
    threshold = check_threshold(threshold)
    if len(x) == 0:
        return Adversarial.empty(x, p)
    with pose(
        model,
        x,
        p=p,
        bounds=bounds,
        labels=labels,
        target=target,
        mask=mask,
        threshold=threshold,
        outputs=outputs,
        linearise=True,
    ) as problem:
        run_deepfool(problem, problem.running, None, overshoot, max_iter, candidates)
        if tighten:
            shorten(problem)
        return problem.result()


def run_deepfool(
    problem: Problem, rows: Tensor, start: Tensor | None, overshoot: float, max_iter: int, candidates: Candidates
) -> tuple[Tensor, Tensor]:
    """The loop of Algorithm 2 over these samples at once, from x_0 + start; those that are done leave the batch.

    Returns the rows that were fooled, and by what.
    """
    walk = Walk(problem, candidates, overshoot, start)
    going = rows
    for i in range(max_iter):
        if len(going) == 0:
            break
        going = walk.test(walk.step(going, whole=i == max_iter - 1))
    problem.end(
        going, Status.EXHAUSTED, f"the label did not change within {max_iter} iterations; raise max_iter or overshoot"
    )
    won = rows[walk.fooled[rows]]
    return won, walk.reached(won)


class Walk:
    """Algorithm 2 on its way: how far each sample has come. Can be left and taken up again."""

    def __init__(
        self,
        problem: Problem,
        candidates: Candidates | Tensor,
        overshoot: float = 0.02,
        start: Tensor | None = None,
        slopes: Slopes | None = None,
    ) -> None:
        self.problem, self.candidates, self.overshoot, self.start = problem, candidates, overshoot, start
        self.slopes = slopes or Slopes(problem)
        self.r = torch.zeros_like(problem.x_0)
        """(n, d): the sum of r_i so far."""
        self.taken = torch.zeros_like(problem.label)
        """(n,): how many steps that were (as many as there are shares, once a whole one was asked for)."""
        self.fooled = torch.zeros_like(problem.label, dtype=torch.bool)
        shares = IN_BOX if problem.lower is not None and start is None and problem.p >= 2 else ()
        self.shares = torch.tensor([*shares, 1.0], dtype=problem.x_0.dtype, device=problem.x_0.device)
        self.rest = torch.zeros_like(problem.x_0) if shares else None
        """(n, d): what was left out of the last step."""

    def reached(self, rows: Tensor) -> Tensor:
        """r^ of these samples: the perturbation that is tested and returned."""
        r_hat = (1 + self.overshoot) * self.problem.of(rows, self.r)
        return r_hat if self.start is None else self.start[rows] + r_hat

    def advance(self, rows: Tensor, r_i: Tensor, *, whole: bool = False) -> None:
        """Add a step, or the share of it that is taken."""
        if self.rest is not None and not whole:
            share = self.shares[self.taken[rows].clamp_max(len(self.shares) - 1), None]
            self.rest[rows] = (1 - share) * r_i
            r_i = share * r_i
        self.r[rows] += r_i
        self.taken[rows] = len(self.shares) if whole else self.taken[rows] + 1
        self.problem.iterations[rows] += 1

    def step(self, rows: Tensor, *, whole: bool = False) -> Tensor:
        """Lines 6 to 11 for these samples; returns those that have moved. `whole`: whatever `shares` says."""
        problem = self.problem
        here = problem.of(rows, self.r) if self.start is None else self.start[rows] + self.r[rows]
        if self.start is None and not bool(self.taken.any()):
            tangent = problem.open(rows)
        else:
            tangent = problem.tangent(rows, problem.of(rows, problem.x_0) + here)
        classes = self.candidates[rows] if isinstance(self.candidates, Tensor) else self.candidates
        r_i, why_not = descend(problem, rows, here, classes, self.slopes, tangent)
        staying = torch.zeros_like(rows, dtype=torch.bool)
        if self.rest is not None:  # the steps that were cut short were not tested: this pass has the scores there
            cut = self._were_cut(rows).nonzero()[:, 0]
            staying[cut] = problem.improve(rows[cut], here[cut], tangent.scores[cut])
            self.fooled[rows[staying]] = True
            self.r[rows[staying]] /= 1 + self.overshoot  # so that `reached` is the point that was seen to fool
        if any(why_not):
            stuck = torch.tensor([bool(why) for why in why_not], device=rows.device) & ~staying
            self._finish_step(rows[stuck])
            for j in stuck.nonzero()[:, 0].tolist():
                problem.end(rows[j : j + 1], Status.STUCK, why_not[j])
            staying |= stuck
        if bool(staying.any()):
            rows, r_i = rows[~staying], r_i[~staying]
        self.advance(rows, r_i, whole=whole)
        return rows

    def test(self, rows: Tensor) -> Tensor:
        """Look where these samples have come to, if their last step was a whole one; returns those not fooled."""
        problem = self.problem
        tested, waiting = rows, rows[:0]
        if self.rest is not None:
            cut = self._were_cut(rows)
            tested, waiting = rows[~cut], rows[cut]
        if len(tested) == 0:
            return waiting
        r_hat = self.reached(tested)
        z = problem.look(tested, problem.of(tested, problem.x_0) + r_hat)
        fooled = problem.improve(tested, r_hat, z)
        problem.show(tested[~fooled], r_hat[~fooled], z[~fooled])
        self.fooled[tested[fooled]] = True
        return torch.cat([waiting, tested[~fooled]])

    def _finish_step(self, rows: Tensor) -> None:
        """Where there is no way on from a step that was cut short, take the rest of it, and look."""
        if self.rest is None:
            return
        cut = rows[self._were_cut(rows)]
        self.r[cut] += self.rest[cut]
        self.taken[cut] = len(self.shares)
        self.test(cut)

    def _were_cut(self, rows: Tensor) -> Tensor:
        """Whether the last step of these samples was cut short."""
        return (self.taken[rows] > 0) & (self.taken[rows] < len(self.shares))


def descend(
    problem: Problem,
    rows: Tensor,
    r: Tensor,
    candidates: Candidates | Tensor,
    slopes: Slopes,
    tangent: Tangent,
) -> tuple[Tensor, list[str]]:
    """Lines 6 to 11 of Algorithm 2: linearise at x_0 + r, find the nearest class, step to its boundary.

    `candidates` may also be the classes themselves, (k, m). `slopes` is what "auto" knows from earlier iterations,
    `tangent` the linearisation there. Returns the steps, and for each sample why there is none (an
    empty text where there is one).
    """
    x_i = problem.clamp(rows, problem.of(rows, problem.x_0) + r)
    linear = _Linearization(problem, rows, x_i, tangent.scores)
    everyone = torch.arange(len(rows), device=rows.device)
    if isinstance(candidates, Tensor):
        linear.consider(everyone, candidates, tangent)
    elif candidates == "auto" and _can_prune(problem):
        _search_nearest(linear, everyone, slopes, tangent)
    else:
        linear.consider(everyone, choose_classes(problem, rows, tangent.scores, candidates), tangent)
    return linear.r_i, linear.explain()


def _can_prune(problem: Problem) -> bool:
    """Whether "auto" may leave classes out: only behind a last hidden layer that says how steep they are, and where
    that was measured (docs/benchmarks/speed.md).

    Elsewhere it takes all: with few features, a mask, or for norms whose dual looks at few features, slopes differ
    more from class to class than that layer knows, and with few classes there is nothing to save.
    """
    enough = problem.classes > FIRST + 1 and problem.x_0.shape[1] >= WIDE
    plain = problem.p >= 2 and problem.target is None and problem.mask is None
    return enough and plain and problem.f.neck is not None


class _Linearization:
    """The linear picture of a batch at x_i, and the nearest boundary among the classes considered so far."""

    def __init__(self, problem: Problem, rows: Tensor, x_i: Tensor, z: Tensor) -> None:
        self.problem, self.rows, self.x_i, self.z = problem, rows, x_i, z
        f_prime = z - z.gather(1, problem.label[rows, None])
        # Never aim at less than twice the margin that counts: a tie, or a boundary touched exactly, would stop there.
        gap = torch.maximum(f_prime.abs(), 2 * problem.tolerance[rows, None]).clamp_min(torch.finfo(z.dtype).tiny * 1e4)
        self.gap = gap.to(x_i.dtype)
        """(k, c): how much each class has to gain."""
        self.nearest = torch.full((len(rows),), math.inf, dtype=x_i.dtype, device=x_i.device)
        self.r_i = torch.zeros_like(x_i)
        self.finite = torch.zeros_like(self.nearest, dtype=torch.bool)
        self.sloped = torch.zeros_like(self.finite)

    def consider(self, at: Tensor, classes: Tensor, tangent: Tangent) -> Tensor:
        """Step to the nearest of these classes (m, k) if it is nearer than what is known, for the samples `at` (m,).

        `tangent` is the linearisation of just those samples. Returns the dual norms (m, k) of the gradients.
        """
        problem, rows = self.problem, self.rows[at]
        gap = self.gap[at].gather(1, classes)
        lengths = []
        for columns, w_prime in tangent.difference_rows(classes, problem.label[rows]):
            problem.count(rows, backwards=w_prime.shape[1])
            w_prime = whole = w_prime.to(self.x_i.dtype)
            if problem.mask is not None:
                w_prime = w_prime * problem.mask[rows].unsqueeze(1)
            length = norm(w_prime, dual(problem.p))
            free = reach(gap[:, columns], length)
            nearest = whole[torch.arange(len(at), device=at.device), free.argmin(1)]
            problem.allow_for_rounding(rows, self.x_i[at], nearest)
            lengths.append(length)
            self.sloped[at] |= free.isfinite().any(1)
            self.finite[at] |= length.isfinite().any(1)
            if problem.lower is None:
                self._improve(at, gap[:, columns], w_prime, free)
            else:
                self._improve_in_box(at, gap[:, columns], w_prime, free)
        return torch.cat(lengths, 1)

    def _improve(self, at: Tensor, gap: Tensor, w: Tensor, free: Tensor) -> None:
        far, l_hat = free.min(1)
        here = (far < self.nearest[at]).nonzero()[:, 0]
        l_hat = l_hat[here]
        self.r_i[at[here]] = step(gap[here, l_hat], w[here, l_hat], self.problem.p)
        self.nearest[at[here]] = far[here]

    def _improve_in_box(self, at: Tensor, gap: Tensor, w: Tensor, free: Tensor) -> None:
        """A step in the box is never shorter than the free one, so classes are tried in the order of their free
        distances, and a sample is done as soon as the next free distance is no smaller than what it has."""
        problem = self.problem
        order = free.argsort(1)
        for turn in range(free.shape[1]):
            column = order[:, turn]
            here = (free.gather(1, column[:, None])[:, 0] < self.nearest[at]).nonzero()[:, 0]
            if len(here) == 0:
                return
            k, who = column[here], at[here]
            r_k, possible = problem.step_to_plane(self.rows[who], self.x_i[who], gap[here, k], w[here, k])
            size = norm(r_k, problem.p)
            closer = possible & (size < self.nearest[who])
            self.nearest[who[closer]] = size[closer]
            self.r_i[who[closer]] = r_k[closer]

    def explain(self) -> list[str]:
        """For each sample why there is no step to take, or an empty text."""
        scored = self.z.isfinite().all(1)
        usable = self.nearest.isfinite() & norm(self.r_i, math.inf).isfinite() & scored
        if bool(usable.all()):
            return [""] * len(usable)
        facts = zip(usable.tolist(), scored.tolist(), self.finite.tolist(), self.sloped.tolist(), strict=True)
        return ["" if ok else _explain(*why) for ok, *why in facts]


class Slopes:
    """What "auto" remembers of each sample: how steep its score differences were when last looked at."""

    def __init__(self, problem: Problem) -> None:
        self.expected = torch.ones(problem.scores.shape, dtype=problem.x_0.dtype, device=problem.x_0.device)
        """(n, c): what the last hidden layer said of ||w'_k|| at x_0, but for a factor per sample; 1 if nothing."""
        self.margin = torch.full_like(self.expected[:, :1], math.inf)
        """(n, 1): how far to trust that; infinite where that layer says nothing, and no class may be left out."""
        self.label = problem.label
        self.factor = torch.full_like(self.expected, math.nan)
        """(n, c): ||w'_k||_q over what was expected, NaN where class k was never looked at."""

    def expect(self, rows: Tensor, tangent: Tangent) -> bool:
        """Ask the last hidden layer, if there is one; says whether there is."""
        relative = tangent.relative_slopes(self.label[rows])
        if relative is None:
            return False
        relative = relative.to(self.expected.dtype)
        steepest = relative.amax(1, keepdim=True)
        # What is nearly flat there may still have another way to the scores.
        relative = torch.maximum(relative / steepest, torch.full_like(relative, 0.25))
        known = steepest.isfinite() & (steepest > 0)
        self.expected[rows] = torch.where(known, relative, torch.ones_like(relative))
        self.margin[rows] = torch.where(known, TRUST, math.inf).to(self.margin.dtype)
        return True

    def learn(self, rows: Tensor, classes: Tensor, slopes: Tensor) -> None:
        """Classes (k, m) of these samples are this steep; that of the label itself says nothing."""
        factor = slopes / self.expected[rows].gather(1, classes)
        self.factor[rows[:, None], classes] = torch.where(classes == self.label[rows, None], math.nan, factor)

    def guess(self, rows: Tensor) -> Tensor:
        """(k, c): the slopes as far as they are known, or as steep as the steepest known one lets expect."""
        factor = self.factor[rows]
        steepest = self._steepest(factor)
        rest = torch.where(steepest > 0, steepest, torch.ones_like(steepest))
        return torch.where(factor.isfinite() & (factor > 0), factor, rest) * self.expected[rows]

    def limit(self, rows: Tensor) -> Tensor:
        """(k, c): how steep the classes that were not looked at can be."""
        steepest = self._steepest(self.factor[rows])
        limit = self._margin(rows) * steepest * self.expected[rows]
        return torch.where((steepest > 0) & limit.isfinite(), limit, math.inf)

    def few_suffice(self, rows: Tensor) -> Tensor:
        """(k, 1): whether the layer has told the slopes so well that of very many classes the nearest few will do."""
        return self._margin(rows) <= TRUST

    def _margin(self, rows: Tensor) -> Tensor:
        """As much as the layer misjudged the steepest of the classes that were looked at, it may misjudge another."""
        factor = self.factor[rows]
        usual = torch.where(factor > 0, factor, math.nan).nanmedian(1, keepdim=True).values
        return torch.maximum(self.margin[rows], torch.nan_to_num(self._steepest(factor) / usual, 0.0, math.inf))

    @staticmethod
    def _steepest(factor: Tensor) -> Tensor:
        return torch.nan_to_num(factor, 0.0, 0.0).amax(1, keepdim=True)


def _search_nearest(linear: _Linearization, everyone: Tensor, slopes: Slopes, tangent: Tangent) -> None:
    """The nearest of all classes, with gradients for those only that can be it.

    First the few classes that look nearest by their scores and expected slopes; then all whose boundary would still be
    nearer if its slope were as steep as `Slopes.limit` allows, of many classes the MOST that look nearest. The answer
    for one sample does not depend on the others in its batch. Each round looks at a class that some sample has not
    seen yet, so there are no more rounds than pairs of a sample and a class.
    """
    problem, rows = linear.problem, linear.rows
    own = problem.label[rows, None]
    gap = torch.nan_to_num(linear.gap, nan=math.inf).scatter(1, own, math.inf)
    fresh = bool(slopes.factor[rows].isnan().all())
    if fresh:
        slopes.expect(rows, tangent)
    classes = (gap / slopes.guess(rows)).topk(FIRST if fresh else AGAIN, dim=1, largest=False).indices
    at = everyone
    together = max(SMALL, CHEAP // max(1, problem.f.row_bytes or CHEAP))
    seen = torch.zeros_like(gap, dtype=torch.bool).scatter_(1, own, True)
    for _ in range(gap.numel()):
        slopes.learn(rows[at], classes, linear.consider(at, classes, tangent))
        seen[at[:, None], classes] = True
        bar = torch.where(linear.nearest.isfinite()[:, None], slopes.limit(rows) * linear.nearest[:, None], math.inf)
        open_ = (gap < bar) & ~seen
        if problem.classes >= MANY:
            open_ &= (seen.sum(1, keepdim=True) <= MOST) | ~slopes.few_suffice(rows)
        need = open_.sum(1)
        lacking = need.nonzero()[:, 0]
        if len(lacking) == 0:
            return
        # Rows are taken for a whole batch at once: those that lack the fewest go first, together with as many as make
        # the round worth its forward pass.
        few = need[lacking].clamp_max(AT_ONCE).sort().values[min(together, len(lacking)) - 1]
        at = lacking[need[lacking].clamp_max(AT_ONCE) <= few]
        width = min(int(need[at].max()), AT_ONCE)
        classes = nearest_open(open_[at], gap[at] / slopes.guess(rows[at]), own[at], width)
        tangent = problem.tangent(rows[at], linear.x_i[at])


def nearest_open(open_: Tensor, distance: Tensor, own: Tensor, width: int) -> Tensor:
    """(k, width): of the classes marked in `open_` (k, c) those at the smallest distance.

    Where fewer are open the row is filled up with the label itself, `own` (k, 1), which is never nearest: which classes
    a sample looks at must not depend on its neighbours.

    >>> nearest_open(torch.tensor([[False, True, True]]), torch.tensor([[0.0, 2.0, 1.0]]), torch.tensor([[0]]), 3)
    tensor([[2, 1, 0]])
    """
    # An open class may be infinitely far (a slope that is next to nothing): it comes last, but before those not open.
    far = torch.nan_to_num(distance, nan=math.inf).clamp_max(torch.finfo(distance.dtype).max)
    classes = torch.where(open_, far, math.inf).topk(width, dim=1, largest=False).indices
    return torch.where(open_.gather(1, classes), classes, own)


def choose_classes(problem: Problem, rows: Tensor, z: Tensor, candidates: Candidates) -> Tensor:
    """(k, m) classes to consider for each sample: the target, all others, or the best-scored others."""
    if problem.target is not None:
        return problem.target[rows, None]
    label = problem.label[rows]
    c = z.shape[1]
    if not isinstance(candidates, int) or candidates >= c - 1:
        others = torch.arange(c - 1, device=z.device).expand(len(rows), c - 1)
        return others + (others >= label[:, None])  # 0..c-1 without the label
    ranked = torch.nan_to_num(z, nan=-math.inf).scatter(1, label[:, None], -math.inf)
    return ranked.topk(candidates, dim=1).indices


def _explain(scores_finite: bool, gradient_finite: bool, sloped: bool) -> str:
    if not scores_finite:
        return "the scores became NaN or infinite on the way"
    if not gradient_finite:
        return "the gradients are NaN or infinite; look for a division by zero or a square root of zero in the model"
    if not sloped:
        return "the gradients are zero; is the model saturated, quantised, or masked on all that it looks at?"
    return "the bounds leave no room to cross any linearised boundary"
