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
from deepfool.attacks.shared.question import Question
from deepfool.attacks.shared.schedules import cosine
from deepfool.attacks.shared.task import Shared, Task, Unpack, attack, run
from deepfool.classifier import Classifier, Model
from deepfool.norms import by_unit, norm
from deepfool.values import check_count, check_number

BETA_1, BETA_2, TINY = 0.9, 0.999, 1e-8
"""Adam's own constants."""
LAST = 0.1
"""The last step, as a share of the first."""


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


def _search(task: Task, steps: int, step_size: float, sigma: float, first_cut: float, cut_step: float) -> None:
    asked, model, best, rows = task.asked, task.model, task.best, task.rows
    smooth = Smooth(asked, sigma, cut_step)
    smooth.start(rows, first_cut)
    y = asked.x_0.clone()
    for i in range(steps):
        z, g = model.gradient(rows, y[rows])
        fooled = best.report(rows, y[rows] - asked.x_0[rows], z)
        best.iterations[rows] += 1
        eta = torch.full_like(y[rows, 0], cosine(step_size, LAST * step_size, i, steps))
        y[rows] = smooth.step(rows, y[rows], g, fooled, eta)
    best.report(rows, y[rows] - asked.x_0[rows], model.look(rows, y[rows]))
    best.give_up(rows, Status.EXHAUSTED, f"nothing fooled in {steps} steps; raise steps")


class Smooth:
    """The step of sigma-zero, with what it remembers of each sample: Adam's averages, and the threshold tau."""

    def __init__(self, asked: Question, sigma: float, cut_step: float) -> None:
        self.asked, self.sigma, self.t, self.channels = asked, sigma, cut_step, asked.channels
        self.mean, self.square = torch.zeros_like(asked.x_0), torch.zeros_like(asked.x_0)
        self.i, self.tau = torch.zeros_like(asked.x_0[:, 0]), torch.zeros_like(asked.x_0[:, 0])

    def start(self, rows: Tensor, first_cut: float) -> None:
        """Forget these samples."""
        self.mean[rows], self.square[rows], self.i[rows], self.tau[rows] = 0, 0, 0, first_cut

    def step(self, rows: Tensor, y: Tensor, g: Tensor, fooled: Tensor, eta: Tensor) -> Tensor:
        """The next points of these samples; `g` is the gradient of the margin at their points y, `eta` the step."""
        (lower, upper), x = self.asked.walls(rows), self.asked.x_0[rows]
        width = upper - lower
        unit = torch.where(width > 0, width, torch.ones_like(width))
        delta = (y - x) / unit
        loss = torch.where(fooled[:, None], 0.0, -g * width) + self._slope_of_count(delta) / delta.shape[1]
        loss = self.asked.masked(rows, loss)
        loss = loss / norm(loss, math.inf).clamp_min(1e-12)[:, None]

        self.i[rows] += 1
        mean = self.mean[rows] = BETA_1 * self.mean[rows] + (1 - BETA_1) * loss
        square = self.square[rows] = BETA_2 * self.square[rows] + (1 - BETA_2) * loss**2
        i = self.i[rows, None]
        adam = mean / (1 - BETA_1**i) / ((square / (1 - BETA_2**i)).sqrt() + TINY)
        delta = (delta - eta[:, None] * adam).clamp((lower - x) / unit, (upper - x) / unit)

        tau = self.tau[rows] = (self.tau[rows] + torch.where(fooled, self.t * eta, -self.t * eta)).clamp(0, 1)
        small = by_unit(delta.abs(), self.channels).amax(-2) < tau[:, None]
        return torch.where(small.repeat(1, self.channels), x, x + delta * unit)

    def _slope_of_count(self, delta: Tensor) -> Tensor:
        """The gradient of l0_hat: of a unit's u^2 / (u^2 + sigma), with u^2 the sum of squares of its channels."""
        u_square = by_unit(delta**2, self.channels).sum(-2).repeat(1, self.channels)
        return 2 * self.sigma * delta / (u_square + self.sigma) ** 2
