"""Figures 2 to 5: DeepFool in two dimensions, computed by the algorithm itself on small classifiers.

The points are what `affine` and `deepfool` return; the iterates are the results of max_iter = 1, 2, 3, ...
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from deepfool.attacks.affine import affine
from deepfool.attacks.deepfool import deepfool
from deepfool.experiments.session import Session

MOST = 6
"""The most iterates to compute; these classifiers need fewer."""
NEAR = 0.01
"""A shorter step is invisible; without overshoot the last iterates approach the boundary and never cross it."""

LINE = torch.tensor([1.0, 0.6]), torch.tensor(-0.7)
"""Figure 2: w and b of f(x) = w . x + b."""
FROM_LINE = (-0.6, 0.2)

PLANES = torch.tensor([[1.2, 0.5], [-0.9, 1.0], [0.1, -1.3], [0.0, 0.0]]), torch.tensor([-0.9, -1.0, -0.9, 0.35])
"""Figure 4: four classes; the last is the class of x_0, as in the paper."""
FROM_PLANES = (0.15, -0.1)


class Bowl(nn.Module):
    """Figure 3: one score with a curved zero level, f(x) = 0.1 (x1^2 + 0.7 x2^2)^2 + 0.25 x1 - 0.6.

    >>> Bowl()(torch.tensor([[2.0, 0.0]]))
    tensor([[1.5000]])
    """

    def forward(self, x: Tensor) -> Tensor:
        return (0.1 * (x[:, 0] ** 2 + 0.7 * x[:, 1] ** 2) ** 2 + 0.25 * x[:, 0] - 0.6)[:, None]


FROM_BOWL = (1.8, 1.8)


class Curved(nn.Module):
    """Figure 5: the four classes of Figure 4, bent.

    >>> Curved()(torch.tensor([FROM_CURVED])).argmax().item()
    3
    """

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = PLANES
        across, up = x[:, 0], x[:, 1]
        bends = [0.4 * (up - 0.4) ** 2, 0.2 * across**2, 0.3 * ((across + 0.3) ** 2 + up**2), 0 * up]
        found: Tensor = x @ weight.to(x).T + bias.to(x) - torch.stack(bends, dim=1)
        return found


FROM_CURVED = (-0.6, -0.2)


def make(session: Session) -> dict[str, Any]:
    """The points of the four figures."""
    session.report("geometry")
    line = affine(*LINE, torch.tensor([FROM_LINE]))
    planes = affine(*PLANES, torch.tensor([FROM_PLANES]))
    return {
        "figure2": {"x0": FROM_LINE, "r": line.r[0].tolist(), "distance": line.norm[0].item()},
        "figure3": {"points": follow(Bowl(), FROM_BOWL)},
        "figure4": {
            "x0": FROM_PLANES, "r": planes.r[0].tolist(), "distance": planes.norm[0].item(),
            "nearest": int(planes.nearest_label[0]),
        },
        "figure5": {"points": follow(Curved(), FROM_CURVED)},
    }  # fmt: skip


def follow(model: nn.Module, start: tuple[float, float]) -> list[list[float]]:
    """x_0, x_1, ... up to the boundary, without overshoot, in float64.

    >>> points = follow(Bowl(), FROM_BOWL)
    >>> len(points), round(Bowl()(torch.tensor([points[-1]])).item(), 2)
    (6, 0.0)
    """
    x_0 = torch.tensor([start], dtype=torch.float64)
    points = [list(start)]
    for steps in range(1, MOST + 1):
        found = deepfool(model, x_0, max_iter=steps, overshoot=0.0)
        points.append(found.x[0].tolist())
        if bool(found.fooled[0]) or math.dist(*points[-2:]) < NEAR:
            break
    return points


def linearize(model: nn.Module, point: list[float]) -> tuple[Tensor, Tensor]:
    """The scores at a point and their gradients (c, 2): DeepFool's linear model of the classifier there."""
    x = torch.tensor([point], dtype=torch.float64)
    gradients = torch.func.jacrev(lambda each: model(each[None])[0])(x[0])
    return model(x)[0].detach(), gradients.detach()
