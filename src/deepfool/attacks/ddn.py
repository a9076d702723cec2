"""DDN: Rony, Hafemann, Oliveira, Ben Ayed, Sabourin, Granger, "Decoupling direction and norm for efficient
gradient-based L2 adversarial attacks and defenses" (CVPR 2019).

The direction follows the gradient of the cross-entropy; the norm is set apart from it, a little smaller after each
success and a little larger after each failure, so that the search runs along the boundary from both sides. Points are
not rounded to 8-bit levels, and the last point is tested too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepfool.attacks.shared.adversarial import Adversarial, Status
from deepfool.attacks.shared.arguments import (
    Bounds,
    Labels,
    check_count,
    check_flag,
    check_inputs,
    check_number,
    check_start,
    check_threshold,
)
from deepfool.attacks.shared.problem import NO_DIRECTION, Problem, pose
from deepfool.attacks.shared.schedules import cosine
from deepfool.attacks.tighten import shorten
from deepfool.classifier import Classifier, Model
from deepfool.norms import norm


def ddn(
    model: Model | Classifier,
    x: Tensor,
    *,
    steps: int = 100,
    step_size: float = 1.0,
    first_norm: float = 1.0,
    gamma: float = 0.05,
    sharpness: float = 1.0,
    start: Tensor | Adversarial | None = None,
    bounds: Bounds | None = None,
    labels: Labels | None = None,
    target: int | Labels | None = None,
    mask: Tensor | None = None,
    tighten: bool = False,
    threshold: float | None = None,
    outputs: str = "auto",
) -> Adversarial:
    """The smallest l2 perturbation that DDN meets in `steps` steps.

    Args:
        steps: gradients per sample.
        step_size: the length of the first step, in the units of x; the last is a hundredth of it.
        first_norm: the norm of the first perturbation, in the units of x.
        gamma: by how much the norm shrinks or grows at each step.
        sharpness: what the scores are multiplied by before the softmax of the loss; 1 is the paper. Where many classes
            have a say in that softmax, its gradient does not point to the nearest boundary, and the perturbations
            come out too large: more sharpness leaves the say to the best rival.
        start: points to begin at instead of x, with their own norm; DeepFool's are a good choice.

    The other arguments are those of `deepfool`.

    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.eye(2))
    >>> result = ddn(model, torch.tensor([[3.0, 1.0]]))
    >>> result.fooled.item(), round(result.norm.item(), 2)
    (True, 1.42)
    """
    check_inputs(x)
    steps = check_count(steps, "steps")
    step_size = check_number(step_size, "step_size", 0, float("inf"))
    first_norm = check_number(first_norm, "first_norm", 0, float("inf"))
    gamma = check_number(gamma, "gamma", 0, 1)
    sharpness = check_number(sharpness, "sharpness", 0, float("inf"))
    check_start(start, x)
    tighten = check_flag(tighten, "tighten")
    threshold = check_threshold(threshold)
    if len(x) == 0:
        return Adversarial.empty(x, 2)
    with pose(
        model, x, p=2, bounds=bounds, labels=labels, target=target, mask=mask, threshold=threshold, outputs=outputs
    ) as problem:
        _run(problem, problem.begin_at(start), steps, step_size, first_norm, gamma, sharpness)
        if tighten:
            shorten(problem)
        return problem.result()


def _run(
    problem: Problem, start: Tensor, steps: int, step_size: float, first_norm: float, gamma: float, sharpness: float
) -> None:
    def seeds(rows: Tensor, z: Tensor) -> Tensor:
        return problem.by_loss(rows, sharpness * z)

    rows = problem.running
    if len(rows) == 0:
        return
    delta = start[rows]
    length = norm(delta, 2)
    epsilon = torch.where(length > 0, length, first_norm)
    for k in range(steps):
        z, g = problem.look_and_climb(rows, problem.x_0[rows] + delta, seeds)
        problem.iterations[rows] += 1
        fooled = problem.improve(rows, delta, z)
        problem.show(rows[~fooled], delta[~fooled], z[~fooled])

        g_length = norm(g, 2)
        moving = (g_length > 0) | (norm(delta, 2) > 0)
        problem.end(rows[~moving], Status.STUCK, NO_DIRECTION)
        rows, delta, epsilon, fooled = (v[moving] for v in (rows, delta, epsilon, fooled))
        if len(rows) == 0:
            return
        g, g_length = g[moving], g_length[moving]

        alpha = cosine(step_size, 0.01 * step_size, k, steps)
        delta = delta + alpha * g / torch.where(g_length > 0, g_length, 1.0)[:, None]
        epsilon = torch.where(fooled, (1 - gamma) * epsilon, (1 + gamma) * epsilon)
        delta = delta * (epsilon / norm(delta, 2).clamp_min(torch.finfo(delta.dtype).tiny))[:, None]
        delta = problem.clip(rows, delta)
    z = problem.look(rows, problem.x_0[rows] + delta)
    problem.improve(rows, delta, z)
    problem.end(rows, Status.EXHAUSTED, f"nothing fooled in {steps} steps; raise steps, or start at DeepFool's")
