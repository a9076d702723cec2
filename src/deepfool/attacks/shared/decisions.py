"""A search that looks at decisions alone, for samples whose gradients are zero or mislead.

Starts are the other samples of the batch that are classified as wanted, and random points; each is pulled back to the
boundary by bisection. From there the normal of the boundary is estimated from the decisions at random points around
(as in Chen, Jordan, Wainwright: "HopSkipJumpAttack", IEEE S&P 2020), and the point nearest to x_0 on the estimated
hyperplane is tried, while the budget lasts. What it finds is fooled, but need not be near the smallest.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepfool.attacks.shared.task import Task
from deepfool.norms import norm

BISECTIONS = 12
PROBES = 24


def search_by_decisions(
    task: Task, rows: Tensor, budget: int, random: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """For each of `rows`: the best point, whether it is fooled, and the scores there; `budget` forward passes each."""
    x = task.asked.x_0[rows]
    end = task.model.forwards[rows] + budget
    y, found, z = _start(task, rows, random)
    step = torch.full_like(x[:, 0], 0.1)
    for _ in range(budget):  # each round takes passes
        busy = (found & (task.model.forwards[rows] + PROBES + BISECTIONS + 1 <= end)).nonzero()[:, 0]
        if len(busy) == 0:
            break
        who, y_b = rows[busy], y[busy]
        normal = _estimate_normal(task, who, y_b, step[busy], random)
        # Step beyond the boundary along its normal, then pull back straight towards x_0.
        size = norm(y_b - x[busy], 2)
        trial = task.asked.clamp(who, y_b + (step[busy] * size)[:, None] * normal)
        fooled, trial_z = _decide(task, who, trial)
        trial, trial_z = _pull_back(task, who, trial, trial_z)
        better = fooled & (norm(trial - x[busy], task.asked.p) < norm(y_b - x[busy], task.asked.p))
        y[busy] = torch.where(better[:, None], trial, y_b)
        z[busy] = torch.where(better[:, None], trial_z, z[busy])
        step[busy] = torch.where(better, step[busy], step[busy] * 0.6).clamp_min(1e-3)
    return y, found, z


def _start(task: Task, rows: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """A fooled point for each sample, from the batch or at random, pulled back to the boundary."""
    x = task.asked.x_0[rows]
    y, found, z = x.clone(), torch.zeros_like(rows, dtype=torch.bool), task.asked.scores[rows].clone()
    for candidate in _candidates(task, rows, random):
        open_rows = (~found).nonzero()[:, 0]
        if len(open_rows) == 0:
            break
        trial = task.asked.clamp(rows[open_rows], candidate[open_rows])
        fooled, trial_z = _decide(task, rows[open_rows], trial)
        won = open_rows[fooled]
        y[won], z[won] = trial[fooled], trial_z[fooled]
        found[won] = True
    if bool(found.any()):
        y[found], z[found] = _pull_back(task, rows[found], y[found], z[found])
    return y, found, z


def _candidates(task: Task, rows: Tensor, random: torch.Generator) -> list[Tensor]:
    """The nearest samples with another label (or the target's), then random points of growing size."""
    x = task.asked.x_0[rows]
    wanted = task.asked.goal.accepts(rows, task.asked.label)
    far = torch.cdist(x.float(), task.asked.x_0.float()).masked_fill(~wanted, torch.inf)
    order = far.argsort(1)
    points = [task.asked.x_0[order[:, i]] for i in range(min(5, order.shape[1]))]
    spread = (x.amax(1) - x.amin(1)).clamp_min(1e-3)[:, None]
    points += [x + scale * spread * torch.randn(x.shape, generator=random).to(x) for scale in (0.1, 0.3, 1, 3)]
    points += [x + 10 * spread * torch.randn(x.shape, generator=random).sign().to(x) for _ in range(4)]
    if task.asked.mask is not None:
        points = [torch.where(task.asked.mask[rows], point, x) for point in points]
    return points


def _decide(task: Task, rows: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = task.model.look(rows, y)
    return task.best.is_fooled(rows, z), z


def _pull_back(task: Task, rows: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Bisect between x_0 and fooled points; the fooled end is kept."""
    x = task.asked.x_0[rows]
    low, high, z = torch.zeros_like(x[:, 0]), torch.ones_like(x[:, 0]), z.clone()
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        fooled, new_z = _decide(task, rows, x + middle[:, None] * (y - x))
        low, high = torch.where(fooled, low, middle), torch.where(fooled, middle, high)
        z = torch.where(fooled[:, None], new_z, z)
    return task.asked.clamp(rows, x + high[:, None] * (y - x)), z


def _estimate_normal(task: Task, rows: Tensor, y: Tensor, step: Tensor, random: torch.Generator) -> Tensor:
    """A unit vector towards the fooled side: random directions, signed by what the decision says there."""
    radius = (step * norm(y - task.asked.x_0[rows], 2))[:, None]
    votes, directions = [], []
    for _ in range(PROBES):
        u = torch.randn(y.shape, generator=random).to(y)
        if task.asked.mask is not None:
            u = u * task.asked.mask[rows]
        u = u / norm(u, 2).clamp_min(1e-12)[:, None]
        fooled, _ = _decide(task, rows, y + radius * u)
        votes.append(fooled.to(y.dtype))
        directions.append(u)
    vote = torch.stack(votes)
    vote = vote - vote.mean(0)  # what all agree on says nothing about the direction
    normal = (vote[..., None] * torch.stack(directions)).sum(0)
    return normal / norm(normal, 2).clamp_min(1e-12)[:, None]
