"""DDN: Rony, Hafemann, Oliveira, Ben Ayed, Sabourin, Granger, "Decoupling direction and norm for efficient
gradient-based L2 adversarial attacks and defenses" (CVPR 2019).

The direction follows the gradient of the cross-entropy; the norm is set apart from it, a little smaller after each
success and a little larger after each failure, so that the search runs along the boundary from both sides. Points are
not rounded to 8-bit levels, and the last point is tested too.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from deepfool.attacks.shared.adversarial import Adversarial, Status
from deepfool.attacks.shared.answers import NO_DIRECTION
from deepfool.attacks.shared.arguments import check_start
from deepfool.attacks.shared.schedules import cosine
from deepfool.attacks.shared.task import Shared, Task, Unpack, attack, run
from deepfool.classifier import Classifier, Model
from deepfool.norms import norm
from deepfool.values import check_count, check_number


@attack
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
    tighten: bool = False,
    **shared: Unpack[Shared],
) -> Adversarial:
    """The smallest l2 perturbation that DDN meets in `steps` steps.

    Args:
        steps: gradients per sample.
        step_size: the length of the first step, in the units of x; the last is a hundredth of it.
        first_norm: the norm of the first perturbation, in the units of x.
        gamma: by how much the norm shrinks or grows at each step.
        sharpness: what the scores are multiplied by before the softmax of the loss; 1 is the paper. Where many classes
            matter in that softmax, its gradient does not point to the nearest boundary, and the perturbations
            come out too large: with more sharpness only the best rival matters.
        start: points to begin at instead of x, with their own norm; DeepFool's are a good choice.

    The other arguments are those of `deepfool`.

    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.eye(2))
    >>> result = ddn(model, torch.tensor([[3.0, 1.0]]))
    >>> result.fooled.item(), round(result.norm.item(), 2)
    (True, 1.42)
    """
    steps, step_size = check_count(steps, "steps"), check_number(step_size, "step_size", 0, math.inf)
    first_norm, gamma = check_number(first_norm, "first_norm", 0, math.inf), check_number(gamma, "gamma", 0, 1)
    sharpness = check_number(sharpness, "sharpness", 0, math.inf)

    def body(task: Task) -> None:
        _search(task, task.asked.begin_at(check_start(start, x)), steps, step_size, first_norm, gamma, sharpness)

    return run(body, model, x, p=2, tighten=tighten, **shared)


def _search(
    task: Task, start: Tensor, steps: int, step_size: float, first_norm: float, gamma: float, sharpness: float
) -> None:
    asked, model, best = task.asked, task.model, task.best

    def loss(rows: Tensor, z: Tensor) -> Tensor:
        return asked.goal.loss_direction(rows, sharpness * z)

    rows = task.rows
    delta = start[rows]
    length = norm(delta, 2)
    epsilon = torch.where(length > 0, length, first_norm)
    for k in range(steps):
        z, g = model.gradient(rows, asked.x_0[rows] + delta, loss)
        best.iterations[rows] += 1
        fooled = best.report(rows, delta, z)

        g_length = norm(g, 2)
        moving = (g_length > 0) | (norm(delta, 2) > 0)
        best.give_up(rows[~moving], Status.STUCK, NO_DIRECTION)
        rows, delta, epsilon, fooled = (v[moving] for v in (rows, delta, epsilon, fooled))
        if len(rows) == 0:
            return
        g, g_length = g[moving], g_length[moving]

        alpha = cosine(step_size, 0.01 * step_size, k, steps)
        delta = delta + alpha * g / torch.where(g_length > 0, g_length, 1.0)[:, None]
        epsilon = torch.where(fooled, (1 - gamma) * epsilon, (1 + gamma) * epsilon)
        delta = delta * (epsilon / norm(delta, 2).clamp_min(torch.finfo(delta.dtype).tiny))[:, None]
        delta = asked.clip(rows, delta)
    best.report(rows, delta, model.look(rows, asked.x_0[rows] + delta))
    best.give_up(rows, Status.EXHAUSTED, f"nothing fooled in {steps} steps; raise steps, or start at DeepFool's")
