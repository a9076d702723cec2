"""A leaf with nothing left to split: the nearest point of a half space and some others, by a solver.

The solver is only asked for multipliers. The distance that is returned is the bound that follows from them, which holds
for any multipliers, whatever the solver's tolerances are.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import scipy  # type: ignore[import-untyped]  # its parts are imported when they are first used: they take a while
import torch
from torch import Tensor

from deepfool.certificates.backward import Choices, trace_back
from deepfool.certificates.layers import Layers
from deepfool.certificates.margins import Margins
from deepfool.certificates.rows import Rows

Array: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"
Solved: TypeAlias = "tuple[Array, Array]"
"""The prices of the constraints, and the nearest point."""

PENALTY = 1e4
"""What a unit of a violated constraint costs, in units of the distance: leaves may be empty."""


@torch.no_grad()
def solve_leaf(margins: Margins, layers: Layers, choices: Choices) -> tuple[float, Tensor]:
    """How far away the points of a leaf are at least, and steps that may lead to the nearest; of one row."""
    a, m = margins.bound(layers, choices)
    places, g, h = _constraints(margins, layers, choices)
    scale = float(a.abs().max().clamp_min(1e-12))
    rows, heights = torch.cat([a, g]) / scale, torch.cat([m, h]) / scale
    down, up = (room.clamp_max(1e6).numpy()[0] for room in (margins.ball.down, margins.ball.up))
    solve = _solve_l2 if margins.ball.p == 2 else _solve_lp
    prices, nearest = solve(rows.numpy(), heights.numpy(), down, up, margins.ball.p)
    beta = {k: torch.zeros_like(v) for k, v in choices.sign.items()}
    first = max(prices[0], 1e-9 * max(prices.max(), 1e-300))
    for (k, unit), price in zip(places, prices[1:], strict=True):
        beta[k].view(-1)[unit] = max(price, 0.0) / first
    distance, step = margins.distance(layers, Choices(choices.alpha, beta, choices.sign))
    return float(distance), torch.cat([step, torch.as_tensor(nearest)[None]])


def _constraints(margins: Margins, layers: Layers, choices: Choices) -> tuple[list[tuple[int, int]], Tensor, Tensor]:
    """What the splits say as half spaces: g . d + h <= 0, for each split unit (id of the ReLU, place)."""
    graph, x = margins.graph, margins.ball.x
    places: list[tuple[int, int]] = []
    g, h = [torch.zeros(0, x.shape[1], dtype=torch.float64)], [torch.zeros(0, dtype=torch.float64)]
    for relu in graph.relus:
        sign = choices.sign.get(relu.id)
        if sign is None:
            continue
        units = sign.view(-1).nonzero()[:, 0]
        if len(units) == 0:
            continue
        node = relu.inputs[0]
        picked = Rows.pick(node.shape, units, graph.rows)
        # A unit that is said to be active has z >= 0, so that the lower bound of -z is at most 0.
        side = -sign.view(-1)[units]
        same = torch.zeros(len(units), dtype=torch.long)
        a, c = trace_back(graph, node, picked.times(side.view(-1, *[1] * (picked.values.ndim - 1))), same, layers)
        g.append(a.double())
        h.append(side * layers.centre[node.id].flatten()[units] + c)
        places += [(relu.id, int(unit)) for unit in units]
    return places, torch.cat(g), torch.cat(h)


def _solve_lp(rows: Array, heights: Array, down: Array, up: Array, p: float) -> Solved:
    """Prices of rows . d + heights <= 0 at the smallest d in the l1 or linf norm: a linear program by HiGHS.

    All may be violated by the same amount, at a price, so that there always is an answer.
    """
    sparse, (k, n) = scipy.sparse, rows.shape
    ones = np.ones((k, 1))
    if p == 1:  # d = u - v
        matrix = sparse.csr_matrix(np.hstack([rows, -rows, -ones]))
        cost = np.concatenate([np.ones(2 * n), [PENALTY]])
        ends = [*((0, high) for high in up), *((0, low) for low in down), (0, None)]
        right = -heights
    else:  # d, t: -t <= d <= t
        column = np.ones((n, 1))
        matrix = sparse.vstack([
            sparse.csr_matrix(np.hstack([rows, 0 * ones, -ones])), sparse.hstack([sparse.eye(n), -column, 0 * column]),
            sparse.hstack([-sparse.eye(n), -column, 0 * column]),
        ]).tocsr()  # fmt: skip
        cost = np.concatenate([np.zeros(n), [1.0, PENALTY]])
        ends = [*zip(-down, up, strict=True), (0, None), (0, None)]
        right = np.concatenate([-heights, np.zeros(2 * n)])
    answer = scipy.optimize.linprog(cost, A_ub=matrix, b_ub=right, bounds=ends, method="highs")
    if answer.status != 0:
        return np.append(1.0, np.zeros(k - 1)), np.zeros(n)
    d = answer.x[:n] - answer.x[n : 2 * n] if p == 1 else answer.x[:n]
    return np.maximum(-answer.ineqlin.marginals[:k], 0), d


def _solve_l2(rows: Array, heights: Array, down: Array, up: Array, p: float) -> Solved:
    """The same in l2: the dual, a concave function of the prices alone, by L-BFGS-B."""
    lengths = np.maximum(np.linalg.norm(rows, axis=1), 1e-12)
    rows, heights = rows / lengths[:, None], heights / lengths

    def dual(prices: Array) -> tuple[float, Array]:
        pull = rows.T @ prices
        d = np.clip(-pull, -down, up)
        return -float(d @ d / 2 + pull @ d + heights @ prices), -(rows @ d + heights)

    start = np.zeros(len(rows))
    start[0] = max(heights[0], 0)
    most = 1e3 * max(abs(heights).max(), 1e-9)
    answer = scipy.optimize.minimize(
        dual, start, jac=True, method="L-BFGS-B", bounds=[(0, most)] * len(rows),
        options={"maxiter": 500, "ftol": 1e-14, "gtol": 1e-10},
    )  # fmt: skip
    return np.maximum(answer.x, 0) / lengths, np.clip(-rows.T @ answer.x, -down, up)
