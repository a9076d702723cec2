"""DeepFool on one input, step by step: which boundary was nearest, and how long the step to it was."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from deepfool.attacks.deepfool import Walk, iterate
from deepfool.attacks.shared.adversarial import Adversarial
from deepfool.attacks.shared.task import Shared, Task, Unpack, run
from deepfool.classifier import Classifier, Model
from deepfool.norms import norm

OVERSHOOT, MAX_ITER = 0.02, 50
"""As in the paper."""


@dataclass(frozen=True)
class Step:
    """One iteration of Algorithm 2."""

    nearest: int
    """The class whose linearised boundary was nearest."""
    length: float
    """The p-norm of r_i."""
    r: Tensor
    """(d,): the sum of r_i so far, without the overshoot."""


def trace(
    model: Model | Classifier, x: Tensor, *, p: float, **shared: Unpack[Shared]
) -> tuple[Adversarial, list[Step]]:
    """`deepfool` with its defaults on a batch of one, and the steps that it took.

    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.eye(2))
    >>> found, steps = trace(model, torch.tensor([[3.0, 1.0]]), p=2)
    >>> found.r, [(step.nearest, round(step.length, 3)) for step in steps]
    (tensor([[-1.0200,  1.0200]]), [(1, 1.414)])
    """
    steps: list[Step] = []

    def note(walk: Walk) -> None:
        before = steps[-1].r if steps else torch.zeros_like(walk.r[0])
        if int(walk.i[0]) > len(steps):  # not where the last step was found to have fooled already
            r_i = (walk.r[0] - before).unsqueeze(0)
            steps.append(Step(int(walk.l_hat[0]), float(norm(r_i, p)[0]), walk.r[0].clone()))

    def body(task: Task) -> None:
        iterate(Walk(task, "auto", OVERSHOOT), task.rows, MAX_ITER, note)

    return run(body, model, x, p=p, classes=True, **shared), steps
