"""The smallest l1 perturbation of a tiny ReLU network, minimised by a mixed-integer program directly."""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from torch import nn

from tests.milp import read_layers


def smallest_l1(model: nn.Sequential, x: np.ndarray, low: float, high: float) -> float:
    """min ||y - x||_1 over y in [low, high] of another class; h = max(z, 0) by a binary and a large constant."""
    layers = read_layers(model)
    label = int(_run(layers, x).argmax())
    return min(_towards(layers, x, low, high, label, k) for k in range(len(layers[-1][1])) if k != label)


def _run(layers: list[tuple[np.ndarray, np.ndarray]], x: np.ndarray) -> np.ndarray:
    for weight, bias in layers[:-1]:
        x = np.maximum(weight @ x + bias, 0)
    return layers[-1][0] @ x + layers[-1][1]


def _towards(
    layers: list[tuple[np.ndarray, np.ndarray]], x: np.ndarray, low: float, high: float, label: int, k: int
) -> float:
    n, big = len(x), 1e3
    units = sum(len(b) for _, b in layers[:-1])
    columns = 2 * n + 2 * units  # y, |y - x|, h and a binary of each unit
    rows, least = [], []

    def at_least(entries: dict[int, float], value: float) -> None:
        row = np.zeros(columns)
        for place, coefficient in entries.items():
            row[place] += coefficient
        rows.append(row)
        least.append(value)

    for i in range(n):  # |y - x| is at least either difference
        at_least({n + i: 1.0, i: -1.0}, -x[i])
        at_least({n + i: 1.0, i: 1.0}, x[i])
    before, start = list(range(n)), 2 * n
    for weight, bias in layers[:-1]:
        after = []
        for j in range(len(bias)):
            h, d = start, start + 1
            start += 2
            after.append(h)
            z = dict(zip(before, weight[j], strict=True))
            at_least({h: 1.0, **{i: -w for i, w in z.items()}}, bias[j])  # h >= z
            at_least({h: -1.0, d: big}, 0.0)  # h <= big d
            at_least({h: -1.0, **z, d: -big}, -bias[j] - big)  # h <= z + big (1 - d)
        before = after
    w, b = layers[-1][0][k] - layers[-1][0][label], layers[-1][1][k] - layers[-1][1][label]
    at_least(dict(zip(before, w, strict=True)), -b)
    lower, upper, whole = np.zeros(columns), np.full(columns, big), np.zeros(columns)
    lower[:n], upper[:n] = low, high
    whole[2 * n + 1 :: 2] = 1
    upper[2 * n + 1 :: 2] = 1
    cost = np.zeros(columns)
    cost[n : 2 * n] = 1
    answer = milp(
        cost, integrality=whole, bounds=Bounds(lower, upper), options={"mip_rel_gap": 1e-6},
        constraints=LinearConstraint(np.stack(rows), np.array(least), np.inf),
    )  # fmt: skip
    return float(answer.fun) if answer.status == 0 else math.inf
