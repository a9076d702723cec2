"""How close answers with a schema come to the best: HiGHS on affine models, all valid rows on small networks.

`python -m benchmarks.schemas`. The search was built on seed 0; the figures in the docs are of seed 100.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
import torch
from tests.tables import draw_table, list_pairs, list_rows, solve_milp
from torch import nn

from deepfool import Schema, deepfool

MOST_ROWS = 50_000


def compare_with_milp(p: float, tables: int, seed: int) -> tuple[list[float], int]:
    """The ratios on affine models, and how many rows were lost."""
    rng, ratios, lost = np.random.default_rng(seed), [], 0
    for _ in range(tables):
        schema, x, model = draw_table(rng)
        found = deepfool(model, x, p=p, schema=schema)
        schema.check(found.x)
        for i, row in enumerate(x.numpy()):
            exact = min(solve_milp(schema, row, g, gap, p) for g, gap in list_pairs(model, row))
            if math.isfinite(exact):
                lost += not bool(found.fooled[i])
                ratios += [float(found.norm[i]) / exact] if found.fooled[i] else []
    return ratios, lost


def compare_with_all(p: float, tables: int, seed: int, *, bent: bool) -> tuple[list[float], int]:
    """The same with every valid row tried, where nothing is continuous; of an affine model, or of a network."""
    rng, ratios, lost, done = np.random.default_rng(seed + 1), [], 0, 0
    while done < tables:
        schema, x, _ = draw_table(rng)
        table = schema.decode(x)
        schema = Schema([each for each in schema.features if each.kind != "continuous"])
        options = [each.columns if each.kind == "one-hot" else each.high - each.low + 1 for each in schema.features]
        if math.prod(options) > MOST_ROWS:
            continue
        done += 1
        x, d = schema.encode(table).double(), schema.columns
        torch.manual_seed(seed + done)
        net = nn.Sequential(nn.Linear(d, 12), nn.Tanh(), nn.Linear(12, 3)) if bent else nn.Sequential(nn.Linear(d, 3))
        net[0].weight.data /= torch.tensor(schema.scale) / (2 if bent else 1)
        net = net.double()
        weights = np.ones(d) if schema.weights is None else np.array(schema.weights)
        found = deepfool(net, x, p=p, schema=schema)
        schema.check(found.x)
        for i, row in enumerate(x.numpy()):
            rows = list_rows(schema, row)
            other = net(torch.tensor(rows)).argmax(1).numpy() != int(found.label[i])
            exact = np.linalg.norm(weights * (rows - row), p, axis=1)[other].min(initial=math.inf)
            if math.isfinite(exact):
                lost += not bool(found.fooled[i])
                ratios += [float(found.norm[i]) / exact] if found.fooled[i] else []
    return ratios, lost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=60)
    parser.add_argument("--seed", type=int, default=100)
    options = parser.parse_args()
    drawn = (options.tables, options.seed)
    cases = [
        *(("affine", p, "HiGHS", lambda p=p: compare_with_milp(p, *drawn)) for p in (1, math.inf)),
        ("affine", 2, "all rows", lambda: compare_with_all(2, *drawn, bent=False)),
        *(("network", p, "all rows", lambda p=p: compare_with_all(p, *drawn, bent=True)) for p in (1, 2, math.inf)),
    ]
    for kind, p, which, compare in cases:
        ratios, lost = compare()
        r = np.array(ratios)
        same, figures = (r < 1.001).mean(), f"{r.mean():.4f} | {r.max():.3f}"
        print(f"| {kind} | {len(r) + lost} | {p:g} | {which} | {same:.1%} | {figures} | lost {lost}", flush=True)


if __name__ == "__main__":
    main()
