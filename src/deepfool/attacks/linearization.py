"""DeepFool: Algorithms 1 and 2 of Moosavi-Dezfooli, Fawzi, Frossard (CVPR 2016), any p-norm.

The classifier is linearised at the current point, the perturbation steps to the nearest boundary of that linear
picture, and so on until the label changes. Algorithm 1 (a single score, decided by its sign) is Algorithm 2 on the
two scores (0, f). Where the paper is silent:

- the point that is tested is the one that is returned, x_0 + (1 + overshoot) * sum of r_i; the linearisation is
  taken at x_0 + sum of r_i, without the overshoot;
- inside bounds each step is the smallest one that stays in the box, and the overshoot is cut at the box;
- a class whose gradient difference is zero, not finite, or that the box puts out of reach is passed over for the
  next-nearest; where none is left the sample is STUCK;
- a tie (equal scores) is a boundary at distance zero: the step is then as long as the smallest margin that counts.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from deepfool.attacks.adversarial import Adversarial, Status
from deepfool.attacks.arguments import Bounds, Labels, check_count, check_inputs, check_overshoot
from deepfool.attacks.problem import Problem, pose
from deepfool.attacks.ray_search import shorten
from deepfool.classifier import Classifier, Model
from deepfool.jacobian import Tangent
from deepfool.norms import check_p, distance, norm, step


def deepfool(
    model: Model | Classifier,
    x: Tensor,
    *,
    p: float = 2,
    overshoot: float = 0.02,
    max_iter: int = 50,
    candidates: int | None = None,
    bounds: Bounds | None = None,
    labels: Labels | None = None,
    target: int | Labels | None = None,
    mask: Tensor | None = None,
    tighten: bool = False,
    threshold: float | None = None,
) -> Adversarial:
    """The smallest perturbation that DeepFool finds for each sample of a batch.

    Args:
        model: anything that maps a batch to class scores (see `Classifier`); left as it was found.
        x: the inputs, any shape after the batch dimension, floating point.
        p: the norm to keep small, in [1, inf].
        overshoot: eta of the paper, how far beyond the boundary to go, relative to the perturbation.
        max_iter: steps after which a sample is given up as EXHAUSTED.
        candidates: None for all classes (the paper), or how many of the best-scored ones to consider, chosen anew
            at each iteration.
        bounds: (lowest, highest), numbers or tensors per feature; steps are exact inside that box.
        labels: the true labels; samples that the model gets wrong are then returned untouched, MISCLASSIFIED.
        target: a class to reach (one for all, or one per sample) instead of any other.
        mask: which features may change (true or non-zero), one mask for all or one per sample.
        tighten: end with a ray search back towards x, which takes back what is not needed of the overshoot.
        threshold: where a single-score model decides (0 unless given).

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
    check_count(max_iter, "max_iter")
    if candidates is not None:
        check_count(candidates, "candidates")
    check_overshoot(overshoot)
    if len(x) == 0:
        return Adversarial.empty(x, p)
    with pose(model, x, p=p, bounds=bounds, labels=labels, target=target, mask=mask, threshold=threshold) as problem:
        run_deepfool(problem, problem.running, torch.zeros_like(problem.x_0), overshoot, max_iter, candidates)
        if tighten:
            shorten(problem)
        return problem.result()


def run_deepfool(
    problem: Problem, rows: Tensor, start: Tensor, overshoot: float, max_iter: int, candidates: int | None
) -> tuple[Tensor, Tensor]:
    """The loop of Algorithm 2 over these samples at once, from x_0 + start; those that are done leave the batch.

    Returns the rows that were fooled, and by what.
    """
    r = torch.zeros_like(problem.x_0)  # the sum of r_i so far
    won, won_by = [rows[:0]], [r[:0]]
    for _ in range(max_iter):
        if len(rows) == 0:
            break
        r_i, why_not = descend(problem, rows, start[rows] + r[rows], candidates)
        moving = torch.tensor([not why for why in why_not], device=rows.device)
        for i in (~moving).nonzero()[:, 0].tolist():
            problem.end(rows[i : i + 1], Status.STUCK, why_not[i])
        rows, r_i = rows[moving], r_i[moving]
        if len(rows) == 0:
            break
        r[rows] += r_i
        problem.iterations[rows] += 1
        r_hat = start[rows] + (1 + overshoot) * r[rows]
        z = problem.look(rows, problem.x_0[rows] + r_hat)
        fooled = problem.improve(rows, r_hat, z)
        problem.show(rows[~fooled], r_hat[~fooled], z[~fooled])
        won, won_by = [*won, rows[fooled]], [*won_by, r_hat[fooled]]
        rows = rows[~fooled]
    problem.end(
        rows, Status.EXHAUSTED, f"the label did not change within {max_iter} iterations; raise max_iter or overshoot"
    )
    return torch.cat(won), torch.cat(won_by)


def descend(problem: Problem, rows: Tensor, r: Tensor, candidates: int | Tensor | None) -> tuple[Tensor, list[str]]:
    """Lines 6 to 11 of Algorithm 2: linearise at x_0 + r, find the nearest class, step to its boundary.

    `candidates` may also be the classes themselves, (k, m). Returns the steps, and for each sample why there is none
    (an empty text where there is one).
    """
    x_i = problem.clamp(rows, problem.x_0[rows] + r)
    tangent = Tangent(problem.f, problem.inputs(rows, x_i))
    problem.count(rows, forwards=1)
    if isinstance(candidates, Tensor):
        classes = candidates
    else:
        classes = choose_classes(problem, rows, tangent.scores, candidates)
    label = problem.label[rows]
    z = tangent.scores
    f_prime = z.gather(1, classes) - z.gather(1, label[:, None])
    # Never aim at less than twice the margin that counts: a tie, or a boundary touched exactly, would stop there.
    gap = torch.maximum(f_prime.abs(), 2 * problem.tolerance[rows, None]).clamp_min(torch.finfo(z.dtype).tiny * 1e4)
    gap = gap.to(x_i.dtype)

    nearest = torch.full((len(rows),), math.inf, dtype=x_i.dtype, device=x_i.device)
    r_i = torch.zeros_like(x_i)
    finite = torch.zeros_like(nearest, dtype=torch.bool)
    sloped = torch.zeros_like(finite)
    for columns, w_prime in tangent.difference_rows(classes, label):
        problem.count(rows, backwards=w_prime.shape[1])
        w_prime = w_prime.to(x_i.dtype)
        if problem.mask is not None:
            w_prime = w_prime * problem.mask[rows].unsqueeze(1)
        free = distance(gap[:, columns], w_prime, problem.p)
        sloped |= free.isfinite().any(1)
        finite |= w_prime.isfinite().all(2).any(1)
        if problem.lower is None:
            reach, l_hat = free.min(1)
            closer = reach < nearest
            here = closer.nonzero()[:, 0]
            w_l = w_prime[here, l_hat[here]]
            r_i[here] = step(gap[:, columns][here, l_hat[here]], w_l, problem.p)
            nearest = torch.where(closer, reach, nearest)
        else:
            _improve_in_box(problem, rows, x_i, gap[:, columns], w_prime, free, nearest, r_i)
    usable = nearest.isfinite() & r_i.isfinite().all(1) & z.isfinite().all(1)
    why_not = ["" if ok else _explain(*facts) for ok, *facts in zip(
        usable.tolist(), z.isfinite().all(1).tolist(), finite.tolist(), sloped.tolist(), strict=True
    )]  # fmt: skip
    return r_i, why_not


def choose_classes(problem: Problem, rows: Tensor, z: Tensor, candidates: int | None) -> Tensor:
    """(k, m) classes to consider for each sample: the target, all others, or the best-scored others."""
    if problem.target is not None:
        return problem.target[rows, None]
    label = problem.label[rows]
    c = z.shape[1]
    if candidates is None or candidates >= c - 1:
        others = torch.arange(c - 1, device=z.device).expand(len(rows), c - 1)
        return others + (others >= label[:, None])  # 0..c-1 without the label
    ranked = torch.nan_to_num(z, nan=-math.inf).scatter(1, label[:, None], -math.inf)
    return ranked.topk(candidates, dim=1).indices


def _improve_in_box(
    problem: Problem, rows: Tensor, x_i: Tensor, gap: Tensor, w: Tensor, free: Tensor, nearest: Tensor, r_i: Tensor
) -> None:
    """Update `nearest` and `r_i` in place with the smallest boxed steps among these classes.

    A step in the box is never shorter than the free one, so classes are tried in the order of their free distances,
    and a sample is done as soon as the next free distance is no smaller than what it has.
    """
    order = free.argsort(1)
    for turn in range(free.shape[1]):
        column = order[:, turn]
        everyone = torch.arange(len(rows), device=rows.device)
        here = (free[everyone, column] < nearest).nonzero()[:, 0]
        if len(here) == 0:
            return
        k = column[here]
        r_k, possible = problem.step_to_plane(rows[here], x_i[here], gap[here, k], w[here, k])
        size = norm(r_k, problem.p)
        closer = possible & (size < nearest[here])
        nearest[here[closer]] = size[closer]
        r_i[here[closer]] = r_k[closer]


def _explain(scores_finite: bool, gradient_finite: bool, sloped: bool) -> str:
    if not scores_finite:
        return "the scores became NaN or infinite on the way"
    if not gradient_finite:
        return "the gradients are NaN or infinite; look for a division by zero or a square root of zero in the model"
    if not sloped:
        return "the gradients are zero; is the model saturated, quantised, or masked on all that it looks at?"
    return "the bounds leave no room to cross any linearised boundary"
