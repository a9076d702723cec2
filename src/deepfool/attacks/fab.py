"""FAB: Croce, Hein, "Minimally distorted adversarial examples with a fast adaptive boundary attack" (ICML 2020), for
the l1, l2 and linf norms.

Each step linearises at x_i, projects both x_i and x_0 on the nearest boundary of that picture inside the box, goes a
little beyond (eta), and mixes the two: the share alpha of x_0's projection draws the search back towards x_0. After a
success it restarts nearer to x_0 (beta). The paper's final search along the ray is `tighten=True`.

Three points differ from the paper: which boundary is nearest is judged by the distance inside the box rather than the
free one; the step back comes before clipping; and with a target the boundary is that between it and its best rival.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from deepfool.attacks.deepfool import choose_classes
from deepfool.attacks.shared.adversarial import Adversarial, Status
from deepfool.attacks.shared.arguments import (
    Bounds,
    Labels,
    check_count,
    check_flag,
    check_inputs,
    check_number,
    check_optional_count,
    check_threshold,
)
from deepfool.attacks.shared.problem import NO_DIRECTION, Problem, pose
from deepfool.attacks.tighten import shorten
from deepfool.classifier import Classifier, Model
from deepfool.classifier.jacobian import Tangent
from deepfool.errors import InputError
from deepfool.norms import check_p, distance, norm


def fab(
    model: Model | Classifier,
    x: Tensor,
    *,
    p: float = 2,
    steps: int = 100,
    alpha_max: float = 0.1,
    beta: float = 0.9,
    eta: float = 1.05,
    candidates: int | None = None,
    one_by_one: int | None = None,
    bounds: Bounds | None = None,
    labels: Labels | None = None,
    target: int | Labels | None = None,
    mask: Tensor | None = None,
    tighten: bool = True,
    threshold: float | None = None,
    outputs: str = "auto",
) -> Adversarial:
    """The smallest perturbation that FAB meets in `steps` steps.

    Args:
        p: the norm to keep small: 1, 2 or inf.
        steps: linearisations per sample (each with a gradient row for every class considered).
        alpha_max: the largest share of the projection of x_0 in the next point.
        beta: how much of a perturbation that fools is kept for the next point.
        eta: how far beyond the boundary a projection goes.
        candidates: None for all classes, or how many of the best-scored ones to consider, chosen anew at each step.
        one_by_one: search towards each of this many best-scored classes by itself, with one gradient row a step, and
            keep the smallest (known as FAB-T), instead of towards the nearest of all.

    The other arguments are those of `deepfool`.

    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.eye(2))
    >>> fab(model, torch.tensor([[3.0, 1.0]]), p="inf", steps=20).r
    tensor([[-1.0000, 1.0000]])
    """
    p = check_p(p)
    if p not in (1, 2, math.inf):
        raise InputError(f"fab works in the norms p = 1, 2 and inf, got {p!r}.", hint="deepfool takes any p.")
    check_inputs(x)
    steps = check_count(steps, "steps")
    alpha_max = check_number(alpha_max, "alpha_max", 0, 1)
    beta = check_number(beta, "beta", 0, 1)
    eta = check_number(eta, "eta", 1 - 1e-12, math.inf)
    candidates = check_optional_count(candidates, "candidates")
    one_by_one = check_optional_count(one_by_one, "one_by_one")
    tighten = check_flag(tighten, "tighten")
    threshold = check_threshold(threshold)
    if len(x) == 0:
        return Adversarial.empty(x, p)
    with pose(
        model, x, p=p, bounds=bounds, labels=labels, target=target, mask=mask, threshold=threshold, outputs=outputs
    ) as problem:
        if one_by_one is None:
            _run(problem, None, candidates, steps, alpha_max, beta, eta)
        else:
            everyone = torch.arange(len(x), device=problem.x_0.device)
            for goal in choose_classes(problem, everyone, problem.scores, min(one_by_one, problem.classes - 1)).T:
                _run(problem, goal, None, steps, alpha_max, beta, eta)
        if tighten:
            shorten(problem)
        return problem.result()


def _run(
    problem: Problem, goal: Tensor | None, candidates: int | None, steps: int, alpha_max: float, beta: float, eta: float
) -> None:
    """The search from x_0: towards one goal per sample, or towards the nearest of all classes or candidates."""
    rows = problem.running
    if len(rows) == 0:
        return
    r_i = torch.zeros_like(problem.x_0[rows])  # x_i = x_0 + r_i
    for _ in range(steps):
        gap, w, d_1 = _nearest_boundary(problem, rows, r_i, goal, candidates)
        problem.iterations[rows] += 1
        usable = gap.isfinite() & d_1.isfinite().all(1)
        problem.end(rows[~usable], Status.STUCK, NO_DIRECTION)
        rows, r_i, gap, w, d_1 = (v[usable] for v in (rows, r_i, gap, w, d_1))
        if len(rows) == 0:
            return
        d_2, _ = problem.step_to_plane(rows, problem.x_0[rows], gap + (w * r_i).sum(1), w)
        length_1, length_2 = norm(d_1, problem.p), norm(d_2, problem.p)
        tiny = torch.finfo(length_1.dtype).tiny
        alpha = (length_1 / (length_1 + length_2).clamp_min(tiny)).clamp_max(alpha_max)[:, None]
        r_i = (1 - alpha) * (r_i + eta * d_1) + alpha * (eta * d_2)
        z = problem.look(rows, problem.x_0[rows] + r_i)
        fooled = problem.improve(rows, r_i, z)
        problem.show(rows[~fooled], r_i[~fooled], z[~fooled])
        # Clipping before the step back, as the paper does, would leave features near their bounds behind the others.
        r_i = problem.clip(rows, torch.where(fooled[:, None], beta * r_i, r_i))
    problem.end(rows, Status.EXHAUSTED, f"nothing fooled in {steps} steps; raise steps")


def _nearest_boundary(
    problem: Problem, rows: Tensor, r_i: Tensor, goal: Tensor | None, candidates: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Linearise at x_0 + r_i: the plane {y: w . (y - x_i) = gap} nearest to x_i in the box, and the step to it.

    The gap is negative where x_i lies beyond that boundary, and infinite where no class has a usable gradient.
    """
    x_i = problem.clamp(rows, problem.x_0[rows] + r_i)
    tangent = Tangent(problem.f, problem.inputs(rows, x_i))
    problem.count(rows, forwards=1)
    z = tangent.scores
    classes = choose_classes(problem, rows, z, candidates) if goal is None else goal[rows, None]
    reference = problem.label[rows]
    if problem.target is not None:
        reference = z.scatter(1, problem.target[rows, None], -torch.inf).argmax(1)
    gaps = z.gather(1, reference[:, None]) - z.gather(1, classes)
    least = (2 * problem.tolerance[rows, None]).clamp_min(torch.finfo(z.dtype).tiny * 1e4)
    gaps = torch.where(gaps.abs() < least, least, gaps).to(x_i.dtype)  # on the boundary itself: step off it

    gap, nearest = torch.full_like(x_i[:, 0], math.inf), torch.full_like(x_i[:, 0], math.inf)
    w, d = torch.zeros_like(x_i), torch.zeros_like(x_i)
    for columns, w_all in tangent.difference_rows(classes, reference):
        problem.count(rows, backwards=w_all.shape[1])
        w_all = w_all.to(x_i.dtype)
        problem.allow_for_rounding(rows, x_i, w_all[:, 0])
        if problem.mask is not None:
            w_all = w_all * problem.mask[rows].unsqueeze(1)
        free, order = distance(gaps[:, columns].abs(), w_all, problem.p).sort(1)
        for turn in range(free.shape[1]):
            # No step in the box is shorter than the free one: done once the next free distance is no smaller.
            here = (free[:, turn] < nearest).nonzero()[:, 0]
            if len(here) == 0:
                break
            gap_k, w_k = gaps[:, columns][here, order[here, turn]], w_all[here, order[here, turn]]
            d_k, possible = problem.step_to_plane(rows[here], x_i[here], gap_k, w_k)
            size = torch.where(possible, norm(d_k, problem.p), math.inf)
            # A plane out of the box's reach is better than none: its step goes as far as it can.
            closer = (size < nearest[here]) | gap[here].isinf()
            chosen = here[closer]
            nearest[chosen], gap[chosen] = size[closer], gap_k[closer]
            w[chosen], d[chosen] = w_k[closer], d_k[closer]
    return gap, w, d
