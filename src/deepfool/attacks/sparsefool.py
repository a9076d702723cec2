"""SparseFool: Algorithms 1 and 2 of Modas, Moosavi-Dezfooli, Frossard, "SparseFool: a few pixels make a big difference"
(CVPR 2019).

Where the boundary is nearly flat, a sparse perturbation can be found by its linear approximation. DeepFool (l2, no box)
gives a point x_B of the boundary and the normal w there. The linear solver then goes from x to that plane by as few
features as it can: the one with the largest |w_j| as far as the plane or the box asks for, then the next. At the point
it ends at, the label may be the old one, as the boundary is not flat: then all is repeated from there.

- lambda > 1 pushes the plane away from x, to x + lambda (x_B - x): fewer rounds, more features.
- The solver is the l1 projection on the half space beyond the plane, inside the box (`boxes.project`).
- As in the authors' code, the point that is tested and returned is stretched by the overshoot, inside the box.
- With pixels, all channels of a pixel go to their bounds together, those that gain most per pixel first.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from deepfool.attacks.deepfool import Walk, iterate
from deepfool.attacks.shared.adversarial import Adversarial, Status
from deepfool.attacks.shared.answers import NO_DIRECTION, Answers
from deepfool.attacks.shared.counting import CountedModel
from deepfool.attacks.shared.task import Shared, Task, Unpack, attack, run
from deepfool.boxes import project, step_in_box
from deepfool.classifier import Classifier, Model
from deepfool.values import check_count, check_number, check_overshoot


@attack
def sparsefool(
    model: Model | Classifier,
    x: Tensor,
    *,
    max_iter: int = 20,
    push: float = 1.0,
    overshoot: float = 0.02,
    inner_iter: int = 50,
    unit: str = "feature",
    **shared: Unpack[Shared],
) -> Adversarial:
    """The first sparse perturbation that SparseFool finds for each sample. It needs bounds.

    Args:
        max_iter: rounds of DeepFool and the linear solver, after which a sample is given up as EXHAUSTED.
        push: lambda of the paper: how far along DeepFool's step the plane is moved; 1 is its own point. With more there
            are fewer rounds and more features (torchattacks has 3).
        overshoot: how much longer than the solver's the returned perturbation is, inside the box.
        inner_iter: steps of DeepFool in a round, at most.
        unit: what is counted, "feature" or "pixel"; a pixel counts once, whatever its channels.

    The other arguments are those of `deepfool`.

    >>> model = torch.nn.Linear(3, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.5]]))
    >>> result = sparsefool(model, torch.tensor([[0.6, 0.6, 0.2]]), bounds=(0, 1), push=1)
    >>> result.fooled.item(), result.norm.item()
    (True, 1.0)
    """
    max_iter, inner_iter = check_count(max_iter, "max_iter"), check_count(inner_iter, "inner_iter")
    push, overshoot = check_number(push, "push", 0, math.inf), check_overshoot(overshoot)

    def body(task: Task) -> None:
        _iterate(task, max_iter, push, overshoot, inner_iter)

    return run(body, model, x, p=0, norms=(0,), unit=unit, **shared)


def _iterate(task: Task, max_iter: int, push: float, overshoot: float, inner_iter: int) -> None:
    """Algorithm 2."""
    asked, best, rows = task.asked, task.best, task.rows
    x_i = asked.x_0.clone()
    for _ in range(max_iter):
        if len(rows) == 0:
            break
        rows, r_adv, w = _find_plane(task, rows, x_i, inner_iter)
        x = x_i[rows]
        x_i[rows] = _solve(task, rows, x, w, push * (w * r_adv).sum(1))
        best.iterations[rows] += 1
        r = asked.clip(rows, (1 + overshoot) * (x_i[rows] - asked.x_0[rows]))
        fooled = best.report(rows, r, task.model.look(rows, asked.x_0[rows] + r))
        rows = rows[~fooled]
    why = f"the label did not change within {max_iter} rounds; raise max_iter or push"
    best.give_up(rows, Status.EXHAUSTED, why)


def _find_plane(task: Task, rows: Tensor, x_i: Tensor, inner_iter: int) -> tuple[Tensor, Tensor, Tensor]:
    """DeepFool from x_i: its perturbation r_adv, and the normal w of the boundary at x_B = x_i + r_adv.

    DeepFool works in l2 and without the box, on a task of its own, whose passes are counted with ours. Samples without
    a direction to go are STUCK, and left out.
    """
    free = replace(task.asked, p=2, lower=None, upper=None, channels=1)
    model = CountedModel(task.model.f, free, task.model.rounding, None)
    model.forwards, model.backwards = task.model.forwards, task.model.backwards
    inner = Task(free, model, Answers(free, model), rows)
    walk = Walk(inner, "auto", start=x_i - free.x_0)
    iterate(walk, rows, inner_iter)
    r_b = inner.best.r[rows]
    _, w = model.gradient(rows, free.x_0[rows] + r_b)
    steep = (w != 0).any(1)
    task.best.give_up(rows[~steep], Status.STUCK, NO_DIRECTION)
    rows, w, r_b = rows[steep], w[steep], r_b[steep]
    return rows, r_b - (x_i - free.x_0)[rows], w


def _solve(task: Task, rows: Tensor, x: Tensor, w: Tensor, gap: Tensor) -> Tensor:
    """Algorithm 1: from x to the plane w . (y - x) = gap, or as near to it as the box lets it."""
    lower, upper = task.asked.walls(rows)
    if task.asked.channels == 1:
        return project(x, w, (w * x).sum(1) + gap, lower, upper, 1)[0]
    room = torch.where(w > 0, upper - x, x - lower).clamp_min(0)
    return x + step_in_box(gap, w, room, 0, task.asked.channels)[0]
