"""The ray search that any attack can end with: back towards x_0, as far as the label stays changed.

Most attacks go a little beyond the boundary to be sure of the change. What of that is not needed is taken back here:
the perturbation r is scaled by the smallest t in (0, 1] that is found to fool, with a root search on the margin along
t -> x_0 + t r. Features that touch the bounds stay there while the others go back (the smallest perturbation in a box
keeps them there), and follow only later. The upper end of the bracket is always a point that a forward pass has shown
to be fooled, so nothing can get lost or larger. Where the ray crosses several boundaries, one of them is found.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from deepfool.attacks.shared.adversarial import Adversarial, Status
from deepfool.attacks.shared.arguments import (
    Bounds,
    Labels,
    check_adversarial,
    check_bounds,
    check_count,
    check_inputs,
    check_number,
    check_threshold,
    spread_target,
)
from deepfool.attacks.shared.problem import Problem, pose
from deepfool.classifier import Classifier, Model
from deepfool.norms import norm

PRECISION = 1e-5
STEPS = 30
FIRST = 0.95
"""The first point looked at: DeepFool's overshoot, and that of most others, lies above it."""
HOLD = 1.25
"""How much longer a feature at its bound is made before it is clipped there: it stays down to t = 1 / HOLD."""


def tighten(
    model: Model | Classifier,
    x: Tensor,
    adversarial: Adversarial,
    *,
    bounds: Bounds | None = None,
    target: int | Labels | None = None,
    steps: int = STEPS,
    precision: float = PRECISION,
    threshold: float | None = None,
    outputs: str = "auto",
) -> Adversarial:
    """Shorten the perturbations that an attack found for x, each along its own direction.

    Args:
        model: the model that was attacked.
        x: the inputs that were attacked.
        adversarial: the attack's result for them; rows that are not fooled are passed on as they are.
        bounds: the attack's own, if it had any; nothing leaves them in any case, but knowing them gives smaller
            perturbations.
        target: the class to stay in, if the attack had one; otherwise any class but the predicted one will do.
        steps: forward passes per sample at most.
        precision: how close to come to the boundary, relative to the perturbation.
        threshold: where a single-score model decides (0 unless given).

    Returns:
        The same result with smaller perturbations; its passes are added to those of the attack. A row whose point
        does not fool this model (another model, other inputs) comes back as EXHAUSTED.

    >>> from deepfool import deepfool
    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.eye(2))
    >>> x = torch.tensor([[3.0, 1.0]])
    >>> found = deepfool(model, x, overshoot=0.5)
    >>> found.r, tighten(model, x, found).r
    (tensor([[-1.5000, 1.5000]]), tensor([[-1.0000, 1.0000]]))
    """
    check_inputs(x)
    check_adversarial(adversarial, x)
    steps = check_count(steps, "steps")
    precision = check_number(precision, "precision", 0, 1)
    threshold = check_threshold(threshold)
    goal = None if target is None else spread_target(target, len(x), x.device)
    rows = adversarial.fooled.nonzero()[:, 0]
    if len(rows) == 0:
        return adversarial
    before = adversarial.rows(rows)
    corners = (torch.minimum(x[rows], before.x), torch.maximum(x[rows], before.x))  # rounding never leads out of these
    flat = x.detach().reshape(len(x), -1).to(torch.promote_types(x.dtype, torch.float32))
    lower, upper = check_bounds(bounds, x, flat)
    held = None
    if lower is not None and upper is not None:
        held = _touching(before.r.reshape(len(rows), -1), flat[rows], lower[rows], upper[rows])
    goal = None if goal is None else goal[rows]
    with pose(model, x[rows], p=before.p, bounds=corners, target=goal, threshold=threshold, outputs=outputs) as problem:
        everyone = problem.running
        r = before.r.reshape(problem.x_0.shape).to(problem.x_0.dtype)[everyone]
        problem.look_and_climb(everyone, problem.x_0[everyone], problem.by_margin)  # says how far rounding may reach
        z = problem.look(everyone, problem.x_0[everyone] + r)
        fooled = problem.improve(everyone, r, z)
        changed = problem.margin(everyone, z) > 0
        problem.give_up(everyone[~changed], Status.EXHAUSTED, "the point to shorten does not fool this model")
        # What is changed by no more than rounding is at the boundary already.
        close = everyone[changed & ~fooled]
        problem.finish(close, r[changed & ~fooled], z[changed & ~fooled].argmax(1))
        _search(problem, held, steps, precision)
        after = replace(
            problem.result(),
            iterations=before.iterations,
            forwards=before.forwards + problem.forwards,
            backwards=before.backwards + problem.backwards,
            reason=tuple(new or old for new, old in zip(problem.reason, before.reason, strict=True)),  # keep a caution
        )
    rest = (~adversarial.fooled).nonzero()[:, 0]
    return Adversarial.concatenate([adversarial.rows(rest), after]).rows(torch.cat([rest, rows]).argsort())


def shorten(problem: Problem) -> None:
    """Scale down what an attack has found for the samples that it fooled."""
    if problem.lower is None or problem.upper is None:
        _search(problem, None, STEPS, PRECISION)
    else:
        _search(problem, _touching(problem.r, problem.x_0, problem.lower, problem.upper), STEPS, PRECISION)


def _touching(r: Tensor, x: Tensor, lower: float | Tensor, upper: float | Tensor) -> Tensor:
    """Which features r takes exactly to their bound (beyond it, they were not clipped and are no longer than meant)."""
    room = torch.where(r > 0, torch.as_tensor(upper).to(x) - x, x - torch.as_tensor(lower).to(x))
    return (r != 0) & ((r.abs() - room).abs() <= 1e-6 * room)


def _search(problem: Problem, held: Tensor | None, steps: int, precision: float) -> None:
    """The root search along all rays at once, with the features `held` (n, d) at their bounds; done samples leave."""
    rows = (problem.status == Status.FOOLED).nonzero()[:, 0]
    if len(rows) == 0:
        return
    r = problem.r[rows].clone()
    if held is not None:
        r = torch.where(held[rows], HOLD * r, r)
    low, high = torch.zeros_like(r[:, 0]), torch.ones_like(r[:, 0])
    # The last two points that were looked at, and what they lack (negative) or have in excess of being fooled.
    t_a, t_b = low, FIRST * high
    f_a = f_b = (problem.margin(rows, problem.scores[rows]) - problem.tolerance[rows]).to(r.dtype)
    for turn in range(steps):
        t = t_b if turn == 0 else _next_point(t_a, f_a, t_b, f_b, low, high, precision, bisect=turn % 3 == 2)
        z = problem.look(rows, problem.x_0[rows] + t[:, None] * r)
        fooled = problem.is_fooled(rows, z)
        problem.finish(rows[fooled], t[fooled, None] * r[fooled], z[fooled].argmax(1))
        low, high = torch.where(fooled, low, t), torch.where(fooled, t, high)
        if turn > 0:
            t_a, f_a = t_b, f_b
        t_b, f_b = t, (problem.margin(rows, z) - problem.tolerance[rows]).to(r.dtype)
        wide = high - low > precision * high
        rows, r, low, high, t_a, f_a, t_b, f_b = (v[wide] for v in (rows, r, low, high, t_a, f_a, t_b, f_b))
        if len(rows) == 0:
            break
    everyone = (problem.status == Status.FOOLED).nonzero()[:, 0]
    problem.best[everyone] = norm(problem.settled(everyone, problem.r[everyone]), problem.p)


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
