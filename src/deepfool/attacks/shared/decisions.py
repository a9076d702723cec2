"""A search that looks at decisions alone, for samples whose gradients are zero or mislead.

Starts are the other samples of the batch that are classified as wanted, and random points; each is pulled back to the
boundary by bisection. From there the normal of the boundary is estimated from the decisions at random points around
(as in Chen, Jordan, Wainwright: "HopSkipJumpAttack", IEEE S&P 2020), and the point nearest to x_0 on the estimated
hyperplane is tried, while the budget lasts. What it finds is fooled, but need not be near the smallest.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepfool.attacks.shared.problem import Problem
from deepfool.norms import norm

BISECTIONS = 12
PROBES = 24


def search_by_decisions(
    problem: Problem, rows: Tensor, budget: int, random: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """For each of `rows`: the best point, whether it is fooled, and its label. Each may use `budget` forward passes."""
    x = problem.x_0[rows]
    end = problem.forwards[rows] + budget
    y, found, label = _start(problem, rows, random)
    step = torch.full_like(x[:, 0], 0.1)
    for _ in range(budget):  # each round takes passes
        busy = (found & (problem.forwards[rows] + PROBES + BISECTIONS + 1 <= end)).nonzero()[:, 0]
        if len(busy) == 0:
            break
        who, y_b = rows[busy], y[busy]
        normal = _estimate_normal(problem, who, y_b, step[busy], random)
        # Step beyond the boundary along its normal, then pull back straight towards x_0.
        size = norm(y_b - x[busy], 2)
        trial = problem.clamp(who, y_b + (step[busy] * size)[:, None] * normal)
        fooled, trial_label = _decide(problem, who, trial)
        trial, trial_label = _pull_back(problem, who, trial, trial_label)
        better = fooled & (norm(trial - x[busy], problem.p) < norm(y_b - x[busy], problem.p))
        y[busy] = torch.where(better[:, None], trial, y_b)
        label[busy] = torch.where(better, trial_label, label[busy])
        step[busy] = torch.where(better, step[busy], step[busy] * 0.6).clamp_min(1e-3)
    return y, found, label


def _start(problem: Problem, rows: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """A fooled point for each sample, from the batch or at random, pulled back to the boundary."""
    x = problem.x_0[rows]
    y, found, label = x.clone(), torch.zeros_like(rows, dtype=torch.bool), problem.label[rows].clone()
    for candidate in _candidates(problem, rows, random):
        open_rows = (~found).nonzero()[:, 0]
        if len(open_rows) == 0:
            break
        trial = problem.clamp(rows[open_rows], candidate[open_rows])
        fooled, trial_label = _decide(problem, rows[open_rows], trial)
        won = open_rows[fooled]
        y[won], label[won] = trial[fooled], trial_label[fooled]
        found[won] = True
    if bool(found.any()):
        y[found], label[found] = _pull_back(problem, rows[found], y[found], label[found])
    return y, found, label


def _candidates(problem: Problem, rows: Tensor, random: torch.Generator) -> list[Tensor]:
    """The nearest samples with another label (or the target's), then random points of growing size."""
    x = problem.x_0[rows]
    wanted = problem.label[None, :] != problem.label[rows, None]
    if problem.target is not None:
        wanted = problem.label[None, :] == problem.target[rows, None]
    far = torch.cdist(x.float(), problem.x_0.float()).masked_fill(~wanted, torch.inf)
    order = far.argsort(1)
    points = [problem.x_0[order[:, i]] for i in range(min(5, order.shape[1]))]
    spread = (x.amax(1) - x.amin(1)).clamp_min(1e-3)[:, None]
    points += [x + scale * spread * torch.randn(x.shape, generator=random).to(x) for scale in (0.1, 0.3, 1, 3)]
    points += [x + 10 * spread * torch.randn(x.shape, generator=random).sign().to(x) for _ in range(4)]
    if problem.mask is not None:
        points = [torch.where(problem.mask[rows], point, x) for point in points]
    return points


def _decide(problem: Problem, rows: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = problem.look(rows, y)
    return problem.is_fooled(rows, z), z.argmax(1)


def _pull_back(problem: Problem, rows: Tensor, y: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """Bisect between x_0 and fooled points; the fooled end is kept."""
    x = problem.x_0[rows]
    low, high, label = torch.zeros_like(x[:, 0]), torch.ones_like(x[:, 0]), label.clone()
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        fooled, new_label = _decide(problem, rows, x + middle[:, None] * (y - x))
        low, high = torch.where(fooled, low, middle), torch.where(fooled, middle, high)
        label = torch.where(fooled, new_label, label)
    return problem.clamp(rows, x + high[:, None] * (y - x)), label


def _estimate_normal(problem: Problem, rows: Tensor, y: Tensor, step: Tensor, random: torch.Generator) -> Tensor:
    """A unit vector towards the fooled side: random directions, signed by what the decision says there."""
    radius = (step * norm(y - problem.x_0[rows], 2))[:, None]
    votes, directions = [], []
    for _ in range(PROBES):
        u = torch.randn(y.shape, generator=random).to(y)
        if problem.mask is not None:
            u = u * problem.mask[rows]
        u = u / norm(u, 2).clamp_min(1e-12)[:, None]
        fooled, _ = _decide(problem, rows, y + radius * u)
        votes.append(fooled.to(y.dtype))
        directions.append(u)
    vote = torch.stack(votes)
    vote = vote - vote.mean(0)  # what all agree on says nothing about the direction
    normal = (vote[..., None] * torch.stack(directions)).sum(0)
    return normal / norm(normal, 2).clamp_min(1e-12)[:, None]
