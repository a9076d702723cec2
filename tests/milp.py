"""The smallest linf perturbation of a small ReLU network inside [0, 1], by mixed-integer programming.

Shares nothing with the attacks that it judges. HiGHS, which scipy brings along, is not asked for the smallest radius,
which takes it far longer, but whether there is a point of another class within a radius. If there is, the radius
shrinks to it. If there is none, of no class, just below the smallest radius that is known, that one is the minimum.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

import numpy as np
import torch
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import csr_matrix
from torch import nn

GAP = 1e-3
"""How far below the smallest radius that is known nothing may be found: minima are exact to 0.1 %."""
BEYOND = 1e-6
"""How far beyond the boundary points are put, in units of the scores: HiGHS keeps constraints to 1e-7 only."""

Layers = list[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Minimum:
    """`radius` is that of a point of another class; `proved` says that none is nearer than (1 - GAP) of it."""

    radius: float
    proved: bool
    seconds: float


class Answer(Enum):
    """Whether there is a point of a class within a radius."""

    YES, NO, UNKNOWN = range(3)


def find_minimum(model: nn.Sequential, x: torch.Tensor, start: torch.Tensor, seconds: float) -> Minimum:
    """The smallest linf perturbation of one image x in [0, 1] that changes its class.

    `start` is a point of another class, from any attack; `seconds` is the most that HiGHS gets for one question.
    """
    begun, layers = time.perf_counter(), read_layers(model)
    x, y = (each.detach().double().flatten().numpy() for each in (x, start))
    label = int(_scores(layers, x).argmax())
    radius = min(_radius(layers, x, y, label), _descend(layers, x, y, label))
    if radius == math.inf:
        raise ValueError("start is of the same class as x, or outside [0, 1]")
    others = np.argsort(-_scores(layers, y))  # the class of the start first: it shrinks the radius for all others
    proved, left = True, [int(k) for k in others if k != label]
    while left:
        answer, y = _ask(layers, x, (1 - GAP) * radius, label, left[0], seconds)
        nearer = math.inf if y is None else min(_radius(layers, x, y, label), _descend(layers, x, y, label))
        if nearer < (1 - GAP / 2) * radius:
            radius = nearer  # and the same class again; those that were ruled out at a larger radius stay so
            continue
        proved = proved and answer == Answer.NO
        left.pop(0)
    return Minimum(radius, proved, time.perf_counter() - begun)


def train_digits(width: int, images: int) -> tuple[nn.Sequential, torch.Tensor]:
    """A network 64-width-width-10 on scikit-learn's digits, trained in a second, and images that it gets right.

    In double: training magnifies rounding errors, and in single every CPU would end in another network.
    """
    from sklearn.datasets import load_digits

    generator = torch.Generator().manual_seed(0)
    data, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(data / 16), torch.tensor(labels)
    sizes = (64, width, width, 10)
    linear = [nn.Linear(a, b).double() for a, b in pairwise(sizes)]
    for layer in linear:
        layer.weight.data = torch.randn(layer.weight.shape, generator=generator).double() * layer.in_features**-0.5
        layer.bias.data.zero_()
    net = nn.Sequential(linear[0], nn.ReLU(), linear[1], nn.ReLU(), linear[2])
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[:1200]), y[:1200]).backward()
        optimizer.step()
    right = net(x[1200:]).argmax(1) == y[1200:]
    return net.eval().requires_grad_(False), x[1200:][right][:images]


def read_layers(model: nn.Sequential) -> Layers:
    """Weights and biases, in double, of a network of linear layers with a ReLU between any two."""
    kinds = [type(module) for module in model if not isinstance(module, nn.Flatten)]
    if len(kinds) % 2 == 0 or set(kinds[::2]) != {nn.Linear} or set(kinds[1::2]) - {nn.ReLU}:
        raise ValueError(f"not linear layers with a ReLU between any two: {kinds}")
    linear = [module for module in model if isinstance(module, nn.Linear)]
    return [(m.weight.detach().double().numpy(), m.bias.detach().double().numpy()) for m in linear]


def _scores(layers: Layers, x: np.ndarray) -> np.ndarray:
    for weight, bias in layers[:-1]:
        x = np.maximum(weight @ x + bias, 0)
    return layers[-1][0] @ x + layers[-1][1]


def _radius(layers: Layers, x: np.ndarray, y: np.ndarray, label: int) -> float:
    """The distance of y, infinite if the network itself does not give it another class."""
    scores = _scores(layers, y)
    fools = np.delete(scores, label).max() > scores[label] and y.min() >= 0 and y.max() <= 1
    return float(np.abs(y - x).max()) if fools else math.inf


def _descend(layers: Layers, x: np.ndarray, y: np.ndarray, label: int) -> float:
    """The smallest radius of another class where the same units are active as at y: a linear program in (y, radius)."""
    n, rows, heights = len(x), [], []
    slope, offset = np.eye(n), np.zeros(n)
    for weight, bias in layers[:-1]:
        slope, offset = weight @ slope, weight @ offset + bias
        active = slope @ y + offset > 0
        side = np.where(active, -1.0, 1.0)
        rows.append(side[:, None] * slope)
        heights.append(-side * offset)
        slope, offset = active[:, None] * slope, active * offset
    scores = _scores(layers, y)
    scores[label] = -math.inf
    k = int(scores.argmax())
    w, b = layers[-1][0][k] - layers[-1][0][label], layers[-1][1][k] - layers[-1][1][label]
    rows.append(-(w @ slope)[None])
    heights.append(np.array([w @ offset + b - BEYOND]))
    within = np.concatenate([np.eye(n), -np.eye(n)])  # |y - x| <= radius
    a = np.block([[np.concatenate(rows), np.zeros((sum(map(len, rows)), 1))], [within, -np.ones((2 * n, 1))]])
    answer = linprog(
        np.append(np.zeros(n), 1.0), A_ub=a, b_ub=np.concatenate([*heights, x, -x]), bounds=[(0, 1)] * n + [(0, 1)]
    )
    return _radius(layers, x, answer.x[:n].clip(0, 1), label) if answer.status == 0 else math.inf


def _ask(
    layers: Layers, x: np.ndarray, radius: float, label: int, k: int, seconds: float
) -> tuple[Answer, np.ndarray | None]:
    """Is there a point within the radius where class k scores at least as high as the label? If so, one of them.

    A unit that may be active or not is h = max(z, 0), with a binary d that says which, and bounds low <= z <= high:
    h >= 0, h >= z, h <= high d, h <= z - low (1 - d).
    """
    n, (weight, bias) = len(x), layers[-1]
    layers = [*layers[:-1], (weight[[k]] - weight[label], bias[[k]] - bias[label])]
    low, high = np.maximum(x - radius, 0), np.minimum(x + radius, 1)
    bounds = _bound_units(layers, low, high)
    if bounds[-1][1][0] < 0:
        return Answer.NO, None
    columns = n + 3 * sum(len(bias) for _, bias in layers[:-1])  # the image; z, h and d of each unit
    units, binary = np.zeros(columns - n), np.zeros(columns)
    box = Bounds(np.append(low, units), np.append(high, units))
    rows: list[np.ndarray] = []
    limits: list[tuple[float, float]] = []

    def limit(at: object, values: object, least: float, most: float) -> None:
        """least <= the sum of values times the columns at <= most."""
        row = np.zeros(columns)
        row[at] = values
        rows.append(row)
        limits.append((least, most))

    before, end = np.arange(n), n
    for (weight, bias), (low, high) in zip(layers[:-1], bounds[:-1], strict=True):
        for i in range(len(bias)):
            z, h, d = end + 3 * i, end + 3 * i + 1, end + 3 * i + 2
            box.lb[z], box.ub[z], box.ub[h] = low[i], high[i], max(high[i], 0)
            limit([*before, z], [*weight[i], -1], -bias[i], -bias[i])
            if low[i] >= 0:
                limit([h, z], [1, -1], 0, 0)
            elif high[i] > 0:
                box.ub[d] = binary[d] = 1
                limit([h, z], [1, -1], 0, math.inf)
                limit([h, d], [1, -high[i]], -math.inf, 0)
                limit([h, z, d], [1, -1, -low[i]], -math.inf, -low[i])
        before, end = end + 3 * np.arange(len(bias)) + 1, end + 3 * len(bias)
    weight, bias = layers[-1]
    limit(before, weight[0], -bias[0], math.inf)
    # Any point will do. But HiGHS searches better if it is told what to raise.
    found = milp(
        -rows[-1], integrality=binary, bounds=box, options={"time_limit": seconds, "mip_rel_gap": 1e9},
        constraints=LinearConstraint(csr_matrix(np.stack(rows)), *np.array(limits).T),
    )  # fmt: skip
    answer = Answer.NO if found.status == 2 else Answer.YES if found.x is not None else Answer.UNKNOWN
    return answer, None if found.x is None else found.x[:n].clip(box.lb[:n], box.ub[:n])


def _bound_units(layers: Layers, low: np.ndarray, high: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Between what the inputs of the units of each layer lie, and the last layer's scores, for low <= x <= high.

    The nearer of interval arithmetic and of linear bounds traced back to the image, where a unit that may be active or
    not lies between two lines. Intervals alone leave more units undecided, and HiGHS takes many times longer.
    """
    bounds: list[tuple[np.ndarray, np.ndarray]] = []
    ends = low, high
    for depth, (weight, bias) in enumerate(layers):
        z = _bound(weight, bias, *ends)
        below = -_trace(layers[:depth], bounds, -weight, -bias, low, high)
        z = np.maximum(z[0], below), np.minimum(z[1], _trace(layers[:depth], bounds, weight, bias, low, high))
        bounds.append(z)
        ends = np.maximum(z[0], 0), np.maximum(z[1], 0)
    return bounds


def _trace(
    layers: Layers, bounds: list[tuple[np.ndarray, np.ndarray]], weight: np.ndarray, bias: np.ndarray,
    low: np.ndarray, high: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """No more than this is W h + b, where h are the units after the given layers."""
    for (back, offset), (least, most) in zip(layers[::-1], bounds[::-1], strict=True):
        torn = (least < 0) & (most > 0)
        # Above: the line from (least, 0) to (most, most). Below: 0 or z, whichever leaves less room.
        chord = np.where(torn, most / np.where(torn, most - least, 1), least >= 0)
        tangent = np.where(torn, most > -least, least >= 0)
        up, down = np.maximum(weight, 0), np.minimum(weight, 0)
        bias = bias - up @ np.where(torn, chord * least, 0)
        weight = up * chord + down * tangent
        weight, bias = weight @ back, bias + weight @ offset
    return _bound(weight, bias, low, high)[1]


def _bound(weight: np.ndarray, bias: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Interval arithmetic: between what W h + b lies for low <= h <= high."""
    middle, half = weight @ (low + high) / 2 + bias, np.abs(weight) @ (high - low) / 2
    return middle - half, middle + half
