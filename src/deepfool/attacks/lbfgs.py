"""L-BFGS: Szegedy, Zaremba, Sutskever, Bruna, Erhan, Goodfellow, Fergus, "Intriguing properties of neural networks"
(ICLR 2014).

For a class t to reach, minimise c * ||r||_2^2 + J(x + r, t) over the box, J the cross-entropy, with L-BFGS-B; and
search for the largest c (the weight of the norm) whose minimiser still fools. The optimiser is SciPy's, in float64;
the model runs in its own precision. It is one problem per sample and class, so nothing is batched here.

Lengths are measured in units of J / ||grad J|| at x, and the loss in units of J there: the search over c then starts
from the same place for any model and any range of inputs.
"""

from __future__ import annotations

import math

import numpy as np
import scipy  # type: ignore[import-untyped]  # its parts are imported when they are first used: they take a while
import torch
from torch import Tensor

from deepfool.attacks.shared.adversarial import Adversarial, Status
from deepfool.attacks.shared.answers import NO_DIRECTION
from deepfool.attacks.shared.task import Shared, Task, Unpack, attack, run
from deepfool.classifier import Classifier, Model
from deepfool.classifier.jacobian import cross_entropy
from deepfool.values import check_count, check_number

FACTOR = 4.0
"""By how much c changes while it is being bracketed."""


@attack
def lbfgs(
    model: Model | Classifier,
    x: Tensor,
    *,
    candidates: int = 3,
    max_iter: int = 50,
    brackets: int = 10,
    bisections: int = 6,
    sharpness: float = 1.0,
    tighten: bool = False,
    **shared: Unpack[Shared],
) -> Adversarial:
    """The smallest l2 perturbation met while solving Szegedy's penalised problem for better and better penalties.

    Args:
        target: a class to reach (one for all, or one per sample).
        candidates: without a target, how many of the best-scored other classes to try in turn; the smallest
            perturbation that changes the label is kept.
        max_iter: iterations of L-BFGS for each c.
        brackets: how often c may be multiplied or divided by 4 to find one that fools and one that does not.
        bisections: how often to halve (geometrically) the bracket of c.
        sharpness: what the scores are multiplied by before the softmax of the loss; 1 is the paper. See `ddn`.

    The other arguments are those of `deepfool`.

    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.eye(2))
    >>> result = lbfgs(model, torch.tensor([[3.0, 1.0]]))
    >>> result.fooled.item(), round(result.norm.item(), 2)
    (True, 1.42)
    """
    candidates, max_iter = check_count(candidates, "candidates"), check_count(max_iter, "max_iter")
    brackets, bisections = check_count(brackets, "brackets"), check_count(bisections, "bisections", least=0)
    sharpness = check_number(sharpness, "sharpness", 0, math.inf)

    def body(task: Task) -> None:
        asked, best, rows = task.asked, task.best, task.rows
        goals = asked.goal.classes(rows, asked.scores[rows], min(candidates, asked.classes - 1))
        for row, goals_of_row in zip(rows[:, None], goals[:, :, None], strict=True):
            tries = [_Penalised(task, row, goal, sharpness) for goal in goals_of_row]
            for one in tries:
                one.search(max_iter, brackets, bisections)
            if any(one.solvable for one in tries):
                best.give_up(row, Status.EXHAUSTED, "no penalty led to another label; raise brackets or candidates")
            else:
                best.give_up(row, Status.STUCK, NO_DIRECTION)

    return run(body, model, x, p=2, tighten=tighten, **shared)


class _Penalised:
    """The penalised problem of one sample and one class to reach, in scaled units."""

    def __init__(self, task: Task, row: Tensor, goal: Tensor, sharpness: float) -> None:
        self.task, self.row, self.goal, self.sharpness = task, row, goal, sharpness
        asked = task.asked
        self.free = torch.ones_like(asked.x_0[0], dtype=torch.bool) if asked.mask is None else asked.mask[row][0]
        self.unit = self.loss_0 = 1.0
        self.u = np.zeros(int(self.free.sum()))  # r / unit on the features that may change
        loss, g = self.loss_and_gradient(self.u)
        slope = float(np.linalg.norm(g))  # 0 where no feature may change
        self.solvable = slope > 0 and math.isfinite(loss) and math.isfinite(slope)
        if self.solvable:
            self.loss_0, self.unit = loss, loss / slope

    def search(self, max_iter: int, brackets: int, bisections: int) -> None:
        """Bracket c between one that fools and one that does not, then halve the bracket."""
        if not self.solvable:
            return
        c, fools, fails = 0.5, 0.0, math.inf
        for _ in range(brackets):
            if self.minimiser_fools(c, max_iter):
                fools, c = c, c * FACTOR
            else:
                fails, c = c, c / FACTOR
            if fools and fails < math.inf:
                break
        else:
            return
        for _ in range(bisections):
            c = math.sqrt(fools * fails)
            fools, fails = (c, fails) if self.minimiser_fools(c, max_iter) else (fools, c)

    def minimiser_fools(self, c: float, max_iter: int) -> bool:
        """Minimise c * ||u||^2 + J / J_0 from where the last c ended, and look at what comes out."""

        def objective(u: np.ndarray) -> tuple[float, np.ndarray]:
            loss, g = self.loss_and_gradient(u)
            return c * float(u @ u) + loss / self.loss_0, 2 * c * u + g * self.unit / self.loss_0

        # Below the rounding of the model's own precision there is nothing to descend.
        options = {"maxiter": max_iter, "ftol": max(2e-9, 8 * torch.finfo(self.task.asked.like.dtype).eps)}
        found = scipy.optimize.minimize(
            objective, self.u, jac=True, method="L-BFGS-B", bounds=self.box(), options=options
        )
        self.u = found.x
        self.task.best.iterations[self.row] += int(found.nit)
        r = self.r(self.u)
        z = self.task.model.look(self.row, self.task.asked.x_0[self.row] + r)
        return bool(self.task.best.report(self.row, r, z))

    def loss_and_gradient(self, u: np.ndarray) -> tuple[float, np.ndarray]:
        """J(x + r, t) and its gradient with respect to r; anything that fools on the way is kept."""
        task, r = self.task, self.r(u)

        loss = math.nan

        def seeds(_: Tensor, z: Tensor) -> Tensor:
            nonlocal loss
            losses, weight, direction = cross_entropy(self.sharpness * z, self.goal)
            loss = losses.item()
            return self.sharpness * weight[:, None] * direction

        z, g = task.model.gradient(self.row, task.asked.x_0[self.row] + r, seeds)
        task.best.report(self.row, r, z)
        if not math.isfinite(loss):  # a wall that the line search turns back from
            return 1e30, np.zeros_like(u)
        return loss, g[0, self.free].double().cpu().numpy()

    def r(self, u: np.ndarray) -> Tensor:
        asked = self.task.asked
        r = torch.zeros_like(asked.x_0[self.row])
        r[0, self.free] = torch.as_tensor(u * self.unit, dtype=r.dtype, device=r.device)
        return asked.clip(self.row, r)

    def box(self) -> list[tuple[float, float]] | None:
        asked = self.task.asked
        lower, upper = asked.box(self.row)
        if lower is None or upper is None:
            return None
        x_0 = asked.x_0[self.row]
        low, high = ((v - x_0)[0, self.free].double().cpu().numpy() for v in (lower, upper))
        return list(zip(low / self.unit, high / self.unit, strict=True))
