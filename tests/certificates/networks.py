"""Small networks of every kind that can be certified, and what is known about them by other means."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

from tests.milp import Layers, read_layers
from tests.oracles import mlp


class Residual(nn.Module):
    """Two branches, one of them the input itself, and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.a(2 * x - 0.5)) + x
        return self.c(nn.functional.leaky_relu(self.b(h), 0.2) - h / 2)


def small_networks() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    """Networks in float32 with the shapes of their inputs; weights from torch's seed."""
    torch.manual_seed(1)
    normed = nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)
    )
    normed[1].running_mean.uniform_(-0.2, 0.2)
    normed[1].running_var.uniform_(0.5, 1.5)
    networks: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
        "dense": (nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 4)), (6,)),
        "leaky": (nn.Sequential(nn.Linear(6, 10), nn.LeakyReLU(0.1), nn.Linear(10, 3)), (6,)),
        "one logit": (nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 1)), (6,)),
        "residual": (Residual(), (6,)),
        "clamped": (nn.Sequential(nn.Linear(6, 8), nn.ReLU6(), nn.Linear(8, 8), nn.Hardtanh(), nn.Linear(8, 3)), (6,)),
        "tanh": (nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)), (6,)),
        "sigmoid": (nn.Sequential(nn.Linear(6, 8), nn.Sigmoid(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8),
                                  nn.Sigmoid(), nn.Linear(8, 3)), (6,)),
        "normed": (normed.eval(), (2, 6, 6)),
        "grouped": (
            nn.Sequential(
                nn.Conv2d(2, 4, (3, 2), padding=(2, 0), dilation=(2, 1), groups=2), nn.ReLU(),
                nn.AvgPool2d(3, 2, 1, ceil_mode=True), nn.Flatten(), nn.Linear(48, 3),
            ), (2, 6, 6),
        ),
        "pooled": (
            nn.Sequential(
                nn.Conv2d(1, 3, 3), nn.MaxPool2d(2), nn.Conv2d(3, 4, 3), nn.ReLU(),
                nn.MaxPool2d(3, 2, 1, ceil_mode=True), nn.Flatten(), nn.Linear(16, 3),
            ), (1, 12, 12),
        ),
    }  # fmt: skip
    for name in ("tanh", "sigmoid"):  # so that their curves are seen
        for parameter in networks[name][0].parameters():
            parameter.data *= 4
    for model, shape in networks.values():
        balance(model, shape)
    return networks


@torch.no_grad()
def balance(model: nn.Module, shape: tuple[int, ...]) -> None:
    """Shift the last layer's scores so that no class wins everywhere in the unit cube."""
    *_, last = (module for module in model.modules() if isinstance(module, nn.Linear))
    points = torch.rand(500, *shape, dtype=last.weight.dtype, generator=torch.Generator().manual_seed(0))
    last.bias -= model(points).mean(0)


def tiny(seed: int, sizes: tuple[int, ...] = (3, 4, 4, 3)) -> nn.Sequential:
    """A random network whose decision changes within the unit cube."""
    model = mlp(sizes, nn.ReLU, seed, gain=2.0).requires_grad_(False)
    balance(model, sizes[:1])
    return model


def enumerate_patterns(model: nn.Sequential, x: np.ndarray, low: float, high: float) -> float:
    """The smallest l2 perturbation that changes the class inside [low, high], by every pattern of active units.

    Under a pattern the network is affine, and the points that have it form a polytope: a quadratic program each.
    """
    layers = read_layers(model)
    label = int(_scores(layers, x).argmax())
    best = math.inf
    for pattern in itertools.product((0.0, 1.0), repeat=sum(len(b) for _, b in layers[:-1])):
        g, h, slope, offset = _region(layers, np.array(pattern))
        for k in range(len(layers[-1][1])):
            if k == label:
                continue
            w = layers[-1][0][k] - layers[-1][0][label]
            rows = np.vstack([g, w @ slope])
            heights = np.append(h, w @ offset + layers[-1][1][k] - layers[-1][1][label])
            best = min(best, _nearest(x, rows, heights, low, high))
    return best


def _scores(layers: Layers, x: np.ndarray) -> np.ndarray:
    for weight, bias in layers[:-1]:
        x = np.maximum(weight @ x + bias, 0)
    return layers[-1][0] @ x + layers[-1][1]


def _region(layers: Layers, pattern: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """rows y + heights >= 0 where the units are as the pattern says; the last hidden layer as slope y + offset."""
    n = layers[0][0].shape[1]
    slope, offset, rows, heights, at = np.eye(n), np.zeros(n), [], [], 0
    for weight, bias in layers[:-1]:
        active = pattern[at : at + len(bias)]
        at += len(bias)
        slope, offset = weight @ slope, weight @ offset + bias
        sign = 2 * active - 1
        rows.append(sign[:, None] * slope)
        heights.append(sign * offset)
        slope, offset = active[:, None] * slope, active * offset
    return np.concatenate(rows), np.concatenate(heights), slope, offset


def _nearest(x: np.ndarray, rows: np.ndarray, heights: np.ndarray, low: float, high: float) -> float:
    """The l2 distance from x to {rows y + heights >= 0} in the box."""
    answer = minimize(
        lambda y: ((y - x) ** 2).sum(), x, jac=lambda y: 2 * (y - x), method="SLSQP", bounds=[(low, high)] * len(x),
        constraints={"type": "ineq", "fun": lambda y: rows @ y + heights, "jac": lambda y: rows},
        options={"maxiter": 200, "ftol": 1e-12},
    )  # fmt: skip
    feasible = (rows @ answer.x + heights).min() > -1e-7
    return float(np.linalg.norm(answer.x - x)) if feasible else math.inf
