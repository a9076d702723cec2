"""Classifiers whose exact answer is known, and an independent solver for the boxed affine problem."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import torch
from scipy.optimize import linprog, minimize
from torch import nn


def affine_case(c: int, d: int, n: int, seed: int) -> tuple[nn.Linear, torch.Tensor]:
    """A random affine classifier in float64 and n points in the unit cube."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Linear(d, c).double()
    model.weight.data = torch.randn(c, d, generator=generator, dtype=torch.float64)
    model.bias.data = torch.randn(c, generator=generator, dtype=torch.float64)
    return model, torch.rand(n, d, generator=generator, dtype=torch.float64)


def score_differences(model: nn.Linear, x: np.ndarray) -> tuple[int, np.ndarray, np.ndarray]:
    """The label of x, and for all other classes k the rows w_k - w_label and the gaps f_label - f_k, in NumPy."""
    weight, bias = model.weight.detach().numpy(), model.bias.detach().numpy()
    if len(weight) == 1:
        weight, bias = np.concatenate([0 * weight, weight]), np.concatenate([0 * bias, bias])
    scores = weight @ x + bias
    label = int(scores.argmax())
    others = [k for k in range(len(scores)) if k != label]
    return label, weight[others] - weight[label], scores[label] - scores[others]


def free_distances(w: np.ndarray, gap: np.ndarray, p: float) -> np.ndarray:
    """Hoelder's bound, which a free step attains."""
    q = math.inf if p == 1 else 1.0 if p == math.inf else p / (p - 1)
    return gap / np.linalg.norm(w, q, axis=1)


def boxed_distance(model: nn.Linear, x: np.ndarray, p: float, lower: float, upper: float) -> float:
    """The distance to the nearest class inside the box, by solvers that share nothing with the package.

    Classes are tried in the order of their free distances; the free distance is a lower bound, so the search can
    stop once it exceeds what was found.
    """
    _, w, gap = score_differences(model, x)
    free = free_distances(w, gap, p)
    best = math.inf
    for k in free.argsort():
        if free[k] >= best:
            break
        best = min(best, solve_boxed(w[k], gap[k], lower - x, upper - x, p))
    return best


def solve_boxed(w: np.ndarray, gap: float, low: np.ndarray, high: np.ndarray, p: float) -> float:
    """min ||r||_p subject to w.r >= gap, low <= r <= high; infinite where there is no such r."""
    d = len(w)
    if np.maximum(w * low, w * high).sum() < gap:
        return math.inf
    if p == 1:  # r = u - v
        eye = np.hstack([np.eye(d), -np.eye(d)])
        answer = linprog(np.ones(2 * d), np.vstack([-np.concatenate([w, -w])[None], eye, -eye]),
                         np.concatenate([[-gap], high, -low]))  # fmt: skip
        return float(answer.fun)
    if p == math.inf:  # -t <= r_i <= t
        eye, ones = np.eye(d), np.ones((d, 1))
        constraints = np.vstack([np.append(-w, 0)[None], np.hstack([eye, -ones]), np.hstack([-eye, -ones])])
        answer = linprog(np.append(np.zeros(d), 1), constraints, np.append(-gap, np.zeros(2 * d)),
                         bounds=[*zip(low, high, strict=True), (0, None)])  # fmt: skip
        return float(answer.fun)
    # Solve in units of the free distance, or of the way into the box where that is longer.
    length = np.linalg.norm(w) or 1.0
    scale = max(gap / length, np.maximum(low, -high).max(), 1e-12)
    answer = minimize(
        lambda s: (np.abs(s) ** p).sum(), np.clip(w / length, low / scale, high / scale),
        jac=lambda s: p * np.abs(s) ** (p - 1) * np.sign(s), method="SLSQP",
        bounds=[*zip(low / scale, high / scale, strict=True)],
        constraints={"type": "ineq", "fun": lambda s: (w @ s - gap / scale) / length, "jac": lambda s: w / length},
        options={"maxiter": 1000, "ftol": 1e-14},
    )  # fmt: skip
    return float(scale * np.linalg.norm(answer.x, p))


def mlp(sizes: tuple[int, ...], activation: type[nn.Module], seed: int = 0, gain: float = 1.0) -> nn.Sequential:
    """A small dense network in float64; the larger the gain, the more it bends."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), activation()]
    for layer in layers:
        if isinstance(layer, nn.Linear):
            layer.weight.data *= gain
    return nn.Sequential(*layers[:-1]).double()
