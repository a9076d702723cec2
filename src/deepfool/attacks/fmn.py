"""FMN: Pintor, Roli, Brendel, Biggio, "Fast minimum-norm adversarial attacks through adaptive norm constraints"
(NeurIPS 2021), for the l1, l2 and linf norms.

Steepest ascent on the margin of the scores inside a ball around x_0 whose radius epsilon adapts: until a sample is
first fooled, to the distance that the linearised margin predicts; afterwards smaller after each success and larger
after each failure, by ever less. Two points differ from the paper: the radius also grows by gamma while nothing has
fooled yet (with the predicted distance alone, the search creeps up to the boundary, on an affine classifier stops
right on it, and in a box may never get there, as clipping takes back what was predicted); and the last point is tested
too.
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
from deepfool.norms import distance, norm, project_on_ball
from deepfool.values import check_count, check_number


@attack
def fmn(
    model: Model | Classifier,
    x: Tensor,
    *,
    p: float = 2,
    steps: int = 100,
    step_size: float = 1.0,
    gamma: float = 0.05,
    start: Tensor | Adversarial | None = None,
    tighten: bool = False,
    **shared: Unpack[Shared],
) -> Adversarial:
    """The smallest perturbation that FMN meets in `steps` steps.

    Args:
        p: the norm to keep small: 1, 2 or inf.
        steps: gradients per sample.
        step_size: the l2 length of the first step, in the units of x; the last is a hundredth of it.
        gamma: by how much the radius shrinks or grows at first; in the end by a fiftieth of that.
        start: points to begin at instead of x; DeepFool's are a good choice.

    The other arguments are those of `deepfool`.

    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.eye(2))
    >>> result = fmn(model, torch.tensor([[3.0, 1.0]]), p="inf")
    >>> result.fooled.item(), round(result.norm.item(), 2)
    (True, 1.0)
    """
    steps, step_size = check_count(steps, "steps"), check_number(step_size, "step_size", 0, math.inf)
    gamma = check_number(gamma, "gamma", 0, 1)

    def body(task: Task) -> None:
        _search(task, task.asked.begin_at(check_start(start, x)), steps, step_size, gamma)

    return run(body, model, x, p=p, norms=(1, 2, math.inf), tighten=tighten, **shared)


def _search(task: Task, start: Tensor, steps: int, step_size: float, first_gamma: float) -> None:
    asked, model, best, p = task.asked, task.model, task.best, task.asked.p
    rows = task.rows
    delta = start[rows]
    epsilon = torch.full_like(delta[:, 0], math.inf)
    for k in range(steps):
        alpha = cosine(step_size, 0.01 * step_size, k, steps)
        gamma = cosine(first_gamma, 0.02 * first_gamma, k, steps)
        z, g = model.gradient(rows, asked.x_0[rows] + delta)
        best.iterations[rows] += 1
        fooled_before = best.found(rows)
        fooled = best.report(rows, delta, z)

        g_length = norm(g, 2)
        moving = (g_length > 0) | fooled | fooled_before
        best.give_up(rows[~moving], Status.STUCK, NO_DIRECTION)
        rows, delta, epsilon, z, g, g_length, fooled, fooled_before = (
            v[moving] for v in (rows, delta, epsilon, z, g, g_length, fooled, fooled_before)
        )
        if len(rows) == 0:
            return

        gap = torch.maximum(asked.goal.margin(rows, z).abs(), 2 * model.rounding.tolerance[rows]).to(g.dtype)
        predicted = norm(delta, p) + distance(gap, g, p)
        larger = (1 + gamma) * epsilon
        reaching = predicted if k == 0 else torch.maximum(predicted, larger)
        smaller = torch.minimum((1 - gamma) * epsilon, best.size[rows])
        epsilon = torch.where(fooled, smaller, torch.where(fooled_before, larger, reaching))
        delta = delta + alpha * g / torch.where(g_length > 0, g_length, 1.0)[:, None]
        delta = asked.clip(rows, project_on_ball(delta, epsilon, p))
    best.report(rows, delta, model.look(rows, asked.x_0[rows] + delta))
    best.give_up(rows, Status.EXHAUSTED, f"nothing fooled in {steps} steps; raise steps, or start at DeepFool's")
