"""sigma-zero: Cina, Villani, Pintor, Schonherr, Biggio, Pelillo, "sigma-zero: gradient-based optimization of l0-norm
adversarial examples" (ICLR 2025).

The number of changed features has no gradient, so it is replaced with a smooth count,

    l0_hat(delta) = sum of delta_i^2 / (delta_i^2 + sigma),

and the loss max(-margin, 0) + l0_hat(delta) / d is descended: the gradient is scaled to a largest entry of 1, Adam
takes the step, and entries below a threshold tau are set to zero. After a success tau rises, after a failure it falls.
Where the paper's algorithm and its authors' code differ (Adam, and a step that ends at a tenth of its first length),
this is the code. Steps and thresholds are in units of the box, so that [0, 255] gives what [0, 1] does. Pixels are
counted by the l2 norm of their channels, and cut off by the largest of them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from deepfool.attacks.shared.adversarial import Adversarial, Status
from deepfool.attacks.shared.arguments import check_count, check_number
from deepfool.attacks.shared.schedules import cosine
from deepfool.attacks.shared.task import Shared, Task, Unpack, attack, run
from deepfool.classifier import Classifier, Model
from deepfool.norms import by_unit, norm

BETA_1, BETA_2, TINY = 0.9, 0.999, 1e-8
"""Adam's own constants."""


@attack
def sigma_zero(
    model: Model | Classifier,
    x: Tensor,
    *,
    steps: int = 1000,
    step_size: float = 1.0,
    sigma: float = 1e-3,
    first_cut: float = 0.3,
    cut_step: float = 0.01,
    unit: str = "feature",
    **shared: Unpack[Shared],
) -> Adversarial:
    """The fewest changed features that sigma-zero meets in `steps` steps. It needs bounds.

    Args:
        steps: gradients per sample.
        step_size: the first step of Adam, as a share of the box; the last is a tenth of it.
        sigma: how sharp the smooth count is: a change of sqrt(sigma) counts as half a feature.
        first_cut: tau at first: entries below it are set to zero, as a share of the box.
        cut_step: by how much tau rises after a success and falls after a failure, times the step size.
        unit: what is counted, "feature" or "pixel"; a pixel counts once, whatever its channels.

    The other arguments are those of `deepfool`.

    >>> model = torch.nn.Linear(3, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.5]]))
    >>> result = sigma_zero(model, torch.tensor([[0.6, 0.6, 0.2]]), bounds=(0, 1), steps=100)
    >>> result.fooled.item(), result.norm.item()
    (True, 1.0)
    """
    steps, step_size = check_count(steps, "steps"), check_number(step_size, "step_size", 0, math.inf)
    sigma, first_cut = check_number(sigma, "sigma", 0, math.inf), check_number(first_cut, "first_cut", 0, 1)
    cut_step = check_number(cut_step, "cut_step", 0, 1)

    def body(task: Task) -> None:
        _search(task, steps, step_size, sigma, first_cut, cut_step)

    return run(body, model, x, p=0, norms=(0,), unit=unit, **shared)


def _search(task: Task, steps: int, first_eta: float, sigma: float, first_tau: float, t: float) -> None:
    asked, model, best, rows = task.asked, task.model, task.best, task.rows
    lower, upper = asked.walls(rows)
    x, width, channels = asked.x_0[rows], upper - lower, asked.channels
    delta = torch.zeros_like(x)  # in units of the box
    mean, square = torch.zeros_like(x), torch.zeros_like(x)
    tau = torch.full_like(x[:, 0], first_tau)
    for i in range(steps):
        z, g = model.gradient(rows, x + delta * width)
        fooled = best.report(rows, delta * width, z)
        best.iterations[rows] += 1

        loss = torch.where(fooled[:, None], 0.0, -g * width) + _slope_of_count(delta, sigma, channels) / x.shape[1]
        loss = asked.masked(rows, loss)
        loss = loss / norm(loss, math.inf).clamp_min(1e-12)[:, None]
        mean = BETA_1 * mean + (1 - BETA_1) * loss
        square = BETA_2 * square + (1 - BETA_2) * loss**2
        eta = cosine(first_eta, 0.1 * first_eta, i, steps)
        adam = mean / (1 - BETA_1 ** (i + 1)) / ((square / (1 - BETA_2 ** (i + 1))).sqrt() + TINY)
        delta = (delta - eta * adam).clamp(_share(lower - x, width), _share(upper - x, width))

        tau = (tau + torch.where(fooled, t * eta, -t * eta)).clamp(0, 1)
        largest = by_unit(delta.abs(), channels).amax(-2)
        delta = torch.where((largest < tau[:, None]).repeat(1, channels), 0.0, delta)
    best.report(rows, delta * width, model.look(rows, x + delta * width))
    best.give_up(rows, Status.EXHAUSTED, f"nothing fooled in {steps} steps; raise steps")


def _slope_of_count(delta: Tensor, sigma: float, channels: int) -> Tensor:
    """The gradient of l0_hat: of a unit's u^2 / (u^2 + sigma), with u^2 the sum of squares of its channels."""
    u_square = by_unit(delta**2, channels).sum(-2).repeat(1, channels)
    return 2 * sigma * delta / (u_square + sigma) ** 2


def _share(move: Tensor, width: Tensor) -> Tensor:
    """A move in units of the box; zero where the box has no width."""
    return move / torch.where(width > 0, width, torch.ones_like(width))
