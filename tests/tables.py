"""Random tables with schemas, and the exact smallest valid change of an affine model: by HiGHS, or by trying all."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from scipy.optimize import Bounds, LinearConstraint, milp
from torch import nn

from deepfool import Feature, Schema

CLASSES = 3


def draw_table(rng: np.random.Generator, *, small: bool = False) -> tuple[Schema, torch.Tensor, nn.Linear]:
    """A schema of all kinds of features, two valid rows, and an affine model of its inputs, in float64."""
    features: list[Feature] = []
    table: dict[str, list[object]] = {}
    rows = 2
    for i in range(rng.integers(0, 3 if small else 6)):
        low = float(rng.uniform(-3, 0))
        features.append(Feature(f"c{i}", "continuous", low, low + 4, _change(rng), _cost(rng), *_scaling(rng)))
        table[f"c{i}"] = rng.uniform(low, low + 4, rows).tolist()
    for i in range(rng.integers(1, 3 if small else 7)):
        low, high = int(rng.integers(-4, 1)), int(rng.integers(1, 3 if small else 9))
        features.append(Feature(f"i{i}", "integer", low, high, _change(rng), _cost(rng), *_scaling(rng)))
        table[f"i{i}"] = rng.integers(low, high + 1, rows).tolist()
    for i in range(rng.integers(0, 2 if small else 4)):
        names = [f"k{k}" for k in range(rng.integers(2, 4 if small else 6))]
        rest = "other" if rng.random() < 0.3 else None
        scaled = rng.random() < 0.5
        many = {"shift": rng.uniform(0, 1, len(names)).tolist(), "scale": rng.uniform(0.2, 1, len(names)).tolist()}
        change = "none" if rng.random() < 0.1 else "any"
        features.append(Feature(f"g{i}", "one-hot", change=change, cost=_cost(rng), categories=names, rest=rest,
                                **(many if scaled else {})))  # fmt: skip
        table[f"g{i}"] = rng.choice([*names, *([rest] if rest else [])], rows).tolist()
    schema = Schema([features[i] for i in rng.permutation(len(features))])
    model = nn.Linear(schema.columns, CLASSES).double()
    model.weight.data = torch.tensor(rng.normal(size=model.weight.shape) / schema.scale * 0.5)
    model.bias.data = torch.tensor(rng.normal(size=CLASSES))
    return schema, schema.encode(table).double(), model


def _change(rng: np.random.Generator) -> str:
    return str(rng.choice(["any", "any", "any", "none", "up", "down"]))


def _cost(rng: np.random.Generator) -> float | None:
    return float(np.exp(rng.normal())) if rng.random() < 0.8 else None


def _scaling(rng: np.random.Generator) -> tuple[float, float]:
    return (float(rng.normal()), float(np.exp(rng.normal()))) if rng.random() < 0.5 else (0.0, 1.0)


def list_pairs(model: nn.Linear, x: np.ndarray) -> list[tuple[np.ndarray, float]]:
    """What each other class has to gain: (g, gap)."""
    weight, bias = model.weight.detach().numpy(), model.bias.detach().numpy()
    scores = weight @ x + bias
    label = int(scores.argmax())
    return [(weight[k] - weight[label], scores[label] - scores[k]) for k in range(len(scores)) if k != label]


def solve_milp(schema: Schema, x: np.ndarray, g: np.ndarray, gap: float, p: float) -> float:
    """The smallest weighted norm (p = 1 or inf) of a valid change with g . r >= gap; infinite if there is none.

    Variables: the inputs in the units of the schema, whole ones and categories as integers, and what they cost.
    """
    d, values = schema.columns, schema.measure(x[None])[0]
    low, high, whole = np.empty(d), np.empty(d), np.zeros(d)
    rows: list[np.ndarray] = []
    limits: list[tuple[float, float]] = []
    costs = 1 if p == math.inf else d
    for feature, at in schema.places:
        if feature.kind == "one-hot":
            low[at], high[at], whole[at] = 0, 1, 1
            row = np.zeros(d + costs)
            row[at] = 1
            rows.append(row)
            limits.append((0 if feature.rest else 1, 1))
        else:
            low[at], high[at], whole[at] = feature.low, feature.high, feature.kind == "integer"
        if feature.change in ("none", "up"):
            low[at] = np.where(whole[at], values[at].round(), values[at])
        if feature.change in ("none", "down"):
            high[at] = np.where(whole[at], values[at].round(), values[at])
    weights = np.ones(d) if schema.weights is None else np.array(schema.weights)
    each = weights / schema.scale  # what a unit of the schema costs
    rows.append(np.append(g / schema.scale, np.zeros(costs)))
    limits.append((gap + float((g / schema.scale) @ values), math.inf))
    for j in range(d):
        for sign in (1, -1):  # sign * (value - now) * each <= cost
            row = np.zeros(d + costs)
            row[j], row[d + (0 if costs == 1 else j)] = sign * each[j], -1
            rows.append(row)
            limits.append((-math.inf, sign * each[j] * values[j]))
    found = milp(
        np.append(np.zeros(d), np.ones(costs)), integrality=np.append(whole, np.zeros(costs)),
        bounds=Bounds(np.append(np.minimum(low, values), np.zeros(costs)),
                      np.append(np.maximum(high, values), np.full(costs, np.inf))),
        constraints=LinearConstraint(np.stack(rows), *np.array(limits).T), options={"mip_rel_gap": 1e-9},
    )  # fmt: skip
    return float(found.fun) if found.status == 0 else math.inf


def list_rows(schema: Schema, x: np.ndarray) -> np.ndarray:
    """All valid rows that x may become, where nothing is continuous, as inputs of the model."""
    values, parts = schema.measure(x[None])[0], []
    for feature, at in schema.places:
        now = values[at].round()
        if feature.kind == "one-hot":
            options = [*np.eye(feature.columns), *([np.zeros(feature.columns)] if feature.rest else [])]
            parts.append([now] if feature.change == "none" else options)
            continue
        assert feature.kind == "integer"
        low = now[0] if feature.change in ("none", "up") else feature.low
        high = now[0] if feature.change in ("none", "down") else feature.high
        parts.append([np.array([v]) for v in np.arange(low, high + 1)])
    rows = np.array([np.concatenate(each) for each in itertools.product(*parts)])
    return (rows - schema.shift) / schema.scale
