"""The ray search: back towards x_0, as far as the label stays changed.

Most attacks go a little beyond the boundary to be sure of the change. What of that is not needed is taken back here:
the perturbation r is scaled by the smallest t in (0, 1] that is found to fool, with a root search on the margin along
t -> x_0 + t r. Features that touch the bounds stay there while the others go back (the smallest perturbation in a box
keeps them there), and follow only later. The upper end of the bracket is always a point that a forward pass has shown
to be fooled, so nothing can get lost or larger. Where the ray crosses several boundaries, one of them is found.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepfool.attacks.shared.adversarial import Status
from deepfool.attacks.shared.task import Task

PRECISION = 1e-5
STEPS = 30
FIRST = 0.95
"""The first point looked at: DeepFool's overshoot, and that of most others, lies above it."""
HOLD = 1.25
"""How much longer a feature at its bound is made before it is clipped there: it stays down to t = 1 / HOLD."""


def shorten(task: Task) -> None:
    """Scale down what an attack has found for the samples that it fooled."""
    asked = task.asked
    if asked.lower is None or asked.upper is None:
        search(task, None, STEPS, PRECISION)
    else:
        search(task, touching(task.best.r, asked.x_0, asked.lower, asked.upper), STEPS, PRECISION)


def touching(r: Tensor, x: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Which features r takes exactly to their bound (beyond it, they were not clipped and are no longer than meant)."""
    room = torch.where(r > 0, upper - x, x - lower)
    return (r != 0) & ((r.abs() - room).abs() <= 1e-6 * room)


def search(task: Task, held: Tensor | None, steps: int, precision: float) -> None:
    """The root search along all rays at once, with the features `held` (n, d) at their bounds; done samples leave."""
    asked, model, best = task.asked, task.model, task.best

    def excess(rows: Tensor, z: Tensor) -> Tensor:
        """What the margin has in excess of counting as fooled; negative where it is short of it."""
        return (asked.goal.margin(rows, z) - model.rounding.tolerance[rows]).to(asked.x_0.dtype)

    rows = (best.status == Status.FOOLED).nonzero()[:, 0]
    if len(rows) == 0:
        return
    r = best.r[rows].clone()
    if held is not None:
        r = torch.where(held[rows], HOLD * r, r)
    low, high = torch.zeros_like(r[:, 0]), torch.ones_like(r[:, 0])
    t_a, t_b = low, FIRST * high  # the last two points that were looked at
    f_a = f_b = excess(rows, asked.scores[rows])
    for turn in range(steps):
        t = t_b if turn == 0 else _next_point(t_a, f_a, t_b, f_b, low, high, precision, bisect=turn % 3 == 2)
        z = model.look(rows, asked.x_0[rows] + t[:, None] * r)
        fooled = best.report(rows, t[:, None] * r, z, replace=True)
        low, high = torch.where(fooled, low, t), torch.where(fooled, t, high)
        if turn > 0:
            t_a, f_a = t_b, f_b
        t_b, f_b = t, excess(rows, z)
        wide = high - low > precision * high
        rows, r, low, high, t_a, f_a, t_b, f_b = (v[wide] for v in (rows, r, low, high, t_a, f_a, t_b, f_b))
        if len(rows) == 0:
            break


def _next_point(
    t_a: Tensor, f_a: Tensor, t_b: Tensor, f_b: Tensor, low: Tensor, high: Tensor, precision: float, *, bisect: bool
) -> Tensor:
    """Where the straight line through the last two points crosses zero, or the middle; never right at an end."""
    middle = (low + high) / 2
    if bisect:
        return middle
    crossing = t_b - f_b * ((t_b - t_a) / (f_b - f_a))
    # A little beyond the crossing is fooled, a little before is not: with one of each the bracket is closed.
    away = torch.minimum(precision * high / 3, (high - low) / 4)
    nearby = torch.minimum(torch.maximum(crossing + away, low + away), high - away)
    return torch.where(crossing.isfinite(), nearby, middle)
