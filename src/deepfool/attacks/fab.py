"""FAB: Croce, Hein, "Minimally distorted adversarial examples with a fast adaptive boundary attack" (ICML 2020), for
the l1, l2 and linf norms.

Each step linearises at x_i, projects both x_i and x_0 on the nearest boundary of that picture inside the box, goes a
little beyond (eta), and mixes the two: the share alpha of x_0's projection pulls the search back towards x_0. After a
success it restarts nearer to x_0 (beta). The paper's final search along the ray is `tighten=True`.

Three points differ from the paper: which boundary is nearest is judged by the distance inside the box rather than the
free one; the step back comes before clipping; and with a target the boundary is that between it and its best rival.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from deepfool.attacks.shared.adversarial import Adversarial, Status
from deepfool.attacks.shared.answers import NO_DIRECTION
from deepfool.attacks.shared.boundaries import Linearisation, NearestBoundary, step_to_boundary
from deepfool.attacks.shared.task import Shared, Task, Unpack, attack, run
from deepfool.classifier import Classifier, Model
from deepfool.norms import norm
from deepfool.values import check_count, check_number, check_optional_count


@attack
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
    tighten: bool = True,
    **shared: Unpack[Shared],
) -> Adversarial:
    """The smallest perturbation that FAB meets in `steps` steps.

    Args:
        p: the norm to keep small: 1, 2 or inf.
        steps: linearisations per sample (each with a gradient row for every class considered).
        alpha_max: the largest share of the projection of x_0 in the next point.
        beta: how much of a perturbation that fools is kept for the next point.
        eta: how far beyond the boundary a projection goes.
        candidates: None for all classes, or how many of the best-scored ones to consider, chosen again at each step.
        one_by_one: search towards each of this many best-scored classes by itself, with one gradient row a step, and
            keep the smallest (known as FAB-T), instead of towards the nearest of all.

    The other arguments are those of `deepfool`.

    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.eye(2))
    >>> fab(model, torch.tensor([[3.0, 1.0]]), p="inf", steps=20).r
    tensor([[-1.0000, 1.0000]])
    """
    steps, alpha_max = check_count(steps, "steps"), check_number(alpha_max, "alpha_max", 0, 1)
    beta, eta = check_number(beta, "beta", 0, 1), check_number(eta, "eta", 1 - 1e-12, math.inf)
    candidates = check_optional_count(candidates, "candidates")
    one_by_one = check_optional_count(one_by_one, "one_by_one")

    def body(task: Task) -> None:
        asked = task.asked
        if one_by_one is None:
            _search(task, None, candidates, steps, alpha_max, beta, eta)
            return
        most = min(one_by_one, asked.classes - 1)
        for k in asked.goal.classes(asked.everyone, asked.scores, most).T:
            _search(task, k, None, steps, alpha_max, beta, eta)

    return run(body, model, x, p=p, norms=(1, 2, math.inf), tighten=tighten, **shared)


def _search(
    task: Task, k: Tensor | None, candidates: int | None, steps: int, alpha_max: float, beta: float, eta: float
) -> None:
    """The search from x_0: towards one class k (n,) per sample, or towards the nearest of all classes or candidates."""
    asked, model, best = task.asked, task.model, task.best
    rows = task.rows
    r_i = torch.zeros_like(asked.x_0[rows])  # x_i = x_0 + r_i
    for _ in range(steps):
        plane = _nearest_boundary(task, rows, r_i, k, candidates)
        gap, w, d_1 = plane.gap, plane.w, plane.step
        best.iterations[rows] += 1
        usable = gap.isfinite() & d_1.isfinite().all(1)
        best.give_up(rows[~usable], Status.STUCK, NO_DIRECTION)
        rows, r_i, gap, w, d_1 = (v[usable] for v in (rows, r_i, gap, w, d_1))
        if len(rows) == 0:
            return
        d_2, _ = step_to_boundary(asked.x_0[rows], gap + (w * r_i).sum(1), w, *asked.box(rows), asked.p)
        length_1, length_2 = norm(d_1, asked.p), norm(d_2, asked.p)
        tiny = torch.finfo(length_1.dtype).tiny
        alpha = (length_1 / (length_1 + length_2).clamp_min(tiny)).clamp_max(alpha_max)[:, None]
        r_i = (1 - alpha) * (r_i + eta * d_1) + alpha * (eta * d_2)
        fooled = best.report(rows, r_i, model.look(rows, asked.x_0[rows] + r_i))
        # Clipping before the step back, as the paper does, would leave features near their bounds behind the others.
        r_i = asked.clip(rows, torch.where(fooled[:, None], beta * r_i, r_i))
    best.give_up(rows, Status.EXHAUSTED, f"nothing fooled in {steps} steps; raise steps")


def _nearest_boundary(
    task: Task, rows: Tensor, r_i: Tensor, k: Tensor | None, candidates: int | None
) -> NearestBoundary:
    """Linearise at x_0 + r_i: the plane {y: w . (y - x_i) = gap} nearest to x_i in the box, and the step to it."""
    asked = task.asked
    x_i = asked.clamp(rows, asked.x_0[rows] + r_i)
    tangent = task.model.linearise(rows, x_i)
    z = tangent.scores
    reference = asked.goal.pair(rows, z)[1]
    gap = z.gather(1, reference[:, None]) - z
    least = (2 * task.model.rounding.tolerance[rows, None]).clamp_min(torch.finfo(z.dtype).tiny * 1e4)
    gap = torch.where(gap.abs() < least, least, gap).to(x_i.dtype)  # on the boundary itself: step off it
    linear = Linearisation(task, rows, x_i, z, gap, reference, stretch=True)
    classes = asked.goal.classes(rows, z, candidates) if k is None else k[rows, None]
    linear.consider(linear.everyone, classes, tangent)
    return linear.nearest
