"""`tighten`: the ray search (see `shared/ray.py`) on the result of any attack.

Every attack can end with it (`tighten=True`); this is the same search for a result that is already there.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from deepfool.attacks.shared.adversarial import Adversarial, Status
from deepfool.attacks.shared.aims import Aim, read_goal
from deepfool.attacks.shared.arguments import (
    Bounds,
    Labels,
    check_adversarial,
    check_bounds,
    check_inputs,
    check_threshold,
    count_channels,
    spread_target,
)
from deepfool.attacks.shared.ray import PRECISION, STEPS, search, touching
from deepfool.attacks.shared.task import prepare
from deepfool.classifier import Classifier, Model
from deepfool.values import check_count, check_number


def tighten(
    model: Model | Classifier,
    x: Tensor,
    adversarial: Adversarial,
    *,
    bounds: Bounds | None = None,
    target: int | Labels | None = None,
    goal: str | Aim | None = None,
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
        goal: the attack's own, if it had one (see `deepfool`).
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
    steps, precision = check_count(steps, "steps"), check_number(precision, "precision", 0, 1)
    threshold = check_threshold(threshold)
    aim, target = read_goal(goal, target)
    wanted = None if target is None else spread_target(target, len(x), x.device)
    rows = adversarial.fooled.nonzero()[:, 0]
    if len(rows) == 0:
        return adversarial
    before = adversarial.rows(rows)
    held = _find_held(before, x, rows, bounds)
    corners = (torch.minimum(x[rows], before.x), torch.maximum(x[rows], before.x))  # rounding never leads out of these
    wanted = None if wanted is None else wanted[rows]
    with prepare(
        model, x[rows], p=before.p, bounds=corners, target=wanted, goal=aim, threshold=threshold, outputs=outputs,
        channels=count_channels(before.unit, before.p, x),
    ) as task:  # fmt: skip
        x_0, who, best = task.asked.x_0, task.rows, task.best
        r = before.r.reshape(x_0.shape).to(x_0.dtype)[who]
        task.model.gradient(who, x_0[who])  # says how much may be rounding
        z = task.model.look(who, x_0[who] + r)
        # What is changed by no more than rounding is at the boundary already.
        changed = task.asked.goal.margin(who, z) > 0
        best.report(who, r, z, fooled=changed)
        best.give_up(who, Status.EXHAUSTED, "the point to shorten does not fool this model")
        search(task, held, steps, precision)
        found = task.result()
        after = replace(
            found,
            iterations=before.iterations,
            forwards=before.forwards + found.forwards,
            backwards=before.backwards + found.backwards,
            reason=tuple(new or old for new, old in zip(found.reason, before.reason, strict=True)),  # keep a caution
        )
    rest = (~adversarial.fooled).nonzero()[:, 0]
    return Adversarial.concatenate([adversarial.rows(rest), after]).rows(torch.cat([rest, rows]).argsort())


def _find_held(before: Adversarial, x: Tensor, rows: Tensor, bounds: Bounds | None) -> Tensor | None:
    """The features that were taken exactly to their bound, (k, d); None without bounds."""
    flat = x.detach().reshape(len(x), -1).to(torch.promote_types(x.dtype, torch.float32))
    lower, upper = check_bounds(bounds, x, flat)
    if lower is None or upper is None:
        return None
    return touching(before.r.reshape(len(rows), -1), flat[rows], lower[rows], upper[rows])
