"""The algorithm of Moosavi-Dezfooli, Fawzi, Fawzi and Frossard, "Universal adversarial perturbations" (CVPR 2017).

Algorithm 1 of that paper goes through the images x_i. Where v does not fool x_i yet, it finds the smallest extra
perturbation that does, by DeepFool at x_i + v,

    Delta v_i = argmin ||r||  subject to  k(x_i + v + r) != k(x_i),

and updates v <- P_{p,xi}(v + Delta v_i), the projection on the ball. It goes through all images again until the wanted
share of them is fooled. Where the paper is silent, or left to its authors' code:

- DeepFool ends after 10 steps, and what has not changed the decision by then is passed over, as in that code;
- the images of a batch share one call of DeepFool, at the v before the batch. They are then gone through one by one:
  whoever is fooled by now is passed over. A batch of one image is the algorithm to the letter;
- with a target, DeepFool reaches for it, and x_i is fooled where it is the decision.
"""

from __future__ import annotations

from torch import Tensor

from deepfool.attacks.deepfool import deepfool
from deepfool.attacks.shared.goals import Reach
from deepfool.universals.images import Images

MAX_ITER = 10
"""Steps of DeepFool, as in the authors' code."""


def step(images: Images, v: Tensor, rows: Tensor) -> Tensor:
    """v after these images.

    >>> import torch
    >>> from deepfool.classifier import Classifier
    >>> from deepfool.datasets import load
    >>> from deepfool.universals.ball import Ball
    >>> f = Classifier(lambda x: torch.cat([0.5 - x, x - 0.5], 1))
    >>> images = Images(f, load((torch.tensor([[0.6], [0.9]]), [1, 1])), [0, 1], Ball(2, 0.3), outputs_on="cpu")
    >>> step(images, torch.zeros(1), torch.tensor([0]))  # to 0.5 and 2 % beyond
    tensor([-0.1020])
    """
    rows = rows[~images.is_fooled(rows, v)]
    if not len(rows):
        return v
    goal, ball = images.goal, images.ball
    target = goal.target[rows.to(images.device)] if isinstance(goal, Reach) else None
    delta = deepfool(
        images.f, ball.move(images.batch(rows), v), p=ball.p, max_iter=MAX_ITER, bounds=ball.bounds, mask=ball.mask,
        target=target,
    )  # fmt: skip
    moved = False
    for k in delta.fooled.nonzero()[:, 0].tolist():
        if moved and bool(images.is_fooled(rows[k : k + 1], v)[0]):
            continue
        v, moved = ball.project(v + delta.r[k].view(v.shape).to(v)), True
    return v
