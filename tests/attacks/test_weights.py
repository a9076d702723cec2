"""Weighted norms ||w * r||_p: closed forms and linear programs on affine models, boxes, masks, and what is refused."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import linprog, minimize
from torch import nn

from deepfool import affine, deepfool, smallest
from deepfool.errors import InputError
from deepfool.subspaces import Subspace, draw_subspace
from tests.oracles import affine_case, score_differences

D, C, N = 8, 4, 6
WEIGHTS = torch.tensor([0.1, 1.0, 3.0, 0.5, 10.0, 2.0, 0.3, 1.5], dtype=torch.float64)
NORMS = (1, 2, math.inf)


def dual_distance(model, x, p):
    """min over classes of gap / ||g / w||_q, the closed form without a box."""
    q = {1: math.inf, 2: 2, math.inf: 1}[p]
    w = WEIGHTS.numpy()
    found = []
    for row in x.numpy():
        _, g, gap = score_differences(model, row)
        found.append((gap / np.linalg.norm(g / w, q, axis=1)).min())
    return np.array(found)


def solve(g, gap, low, high, w, p):
    """min ||w r||_p with g.r >= gap in the box, stated in r itself; infinite where there is none."""
    d = len(g)
    if np.maximum(g * low, g * high).sum() < gap:
        return math.inf
    if p == 2:
        found = minimize(
            lambda r: ((w * r) ** 2).sum(), np.zeros(d), jac=lambda r: 2 * w**2 * r, method="SLSQP",
            bounds=[*zip(low, high, strict=True)], options={"maxiter": 1000, "ftol": 1e-14},
            constraints={"type": "ineq", "fun": lambda r: g @ r - gap, "jac": lambda r: g},
        )  # fmt: skip
        return float(np.sqrt(found.fun))
    # |r_i| <= t_i; the sum of w_i t_i, or the largest of them
    eye = np.eye(d)
    if p == 1:
        rows = np.block([[-g, np.zeros(d)], [eye, -eye], [-eye, -eye]])
        cost, limits = np.append(np.zeros(d), w), np.append(-gap, np.zeros(2 * d))
        ends = [*zip(low, high, strict=True), *[(0, None)] * d]
    else:
        column = -1 / w[:, None]
        rows = np.block([[-g, np.zeros(1)], [eye, column], [-eye, column]])
        cost, limits = np.append(np.zeros(d), 1.0), np.append(-gap, np.zeros(2 * d))
        ends = [*zip(low, high, strict=True), (0, None)]
    return float(linprog(cost, rows, limits, bounds=ends).fun)


@pytest.mark.parametrize("p", NORMS)
def test_affine_models_have_a_closed_form(p):
    model, x = affine_case(C, D, N, seed=1)
    exact = dual_distance(model, x, p)
    answer = affine(model.weight.detach(), model.bias.detach(), x, p=p, weights=WEIGHTS)
    assert answer.norm.numpy() == pytest.approx(exact, rel=1e-9)
    assert (WEIGHTS * answer.r).norm(p, dim=1).numpy() == pytest.approx(exact, rel=1e-9)
    found = deepfool(model, x, p=p, weights=WEIGHTS, overshoot=1e-6)
    assert found.norm.numpy() == pytest.approx(exact, rel=1e-4)
    assert found.norm.numpy() == pytest.approx((WEIGHTS * found.r).norm(p, dim=1).numpy())
    assert torch.equal(model(found.x).argmax(1), found.adv_label)
    sought = smallest(model, x, p=p, weights=WEIGHTS)
    assert sought.norm.numpy() == pytest.approx(exact, rel=1e-2)


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("attack", [affine, deepfool, smallest], ids=lambda each: each.__name__)
def test_boxes_stay_exact(attack, p):
    model, x = affine_case(C, D, N, seed=2)
    exact = []
    for row in x.numpy():
        _, g, gap = score_differences(model, row)
        exact.append(min(solve(g[k], gap[k], -row, 1 - row, WEIGHTS.numpy(), p) for k in range(C - 1)))
    if attack is affine:
        found = affine(model.weight.detach(), model.bias.detach(), x, p=p, weights=WEIGHTS, bounds=(0, 1))
    else:
        knobs = {"overshoot": 1e-6, "max_iter": 200} if attack is deepfool else {"budget": 300}
        found = attack(model, x, p=p, weights=WEIGHTS, bounds=(0, 1), **knobs)
        assert ((found.x >= 0) & (found.x <= 1)).all()
    assert np.isfinite(exact).sum() >= N // 2
    assert found.norm.numpy() == pytest.approx(np.array(exact), rel=2e-3)


def test_a_weight_for_all_is_a_plain_norm():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 4))
    x = torch.rand(8, 3, 2, 2, generator=torch.Generator().manual_seed(1))
    plain = deepfool(net, x, bounds=(0, 1))
    weighted = deepfool(net, x, bounds=(0, 1), weights=2 * torch.ones(3, 2, 2))
    assert torch.allclose(weighted.norm, 2 * plain.norm, rtol=1e-4)
    assert weighted.x.shape == x.shape


def test_what_is_dear_changes_less():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 3))
    x = torch.randn(20, 10, generator=torch.Generator().manual_seed(1))
    dear = torch.ones(10)
    dear[:5] = 10
    plain, weighted = smallest(net, x), smallest(net, x, weights=dear)
    assert weighted.fooled.all()
    assert weighted.r[:, :5].norm() < 0.3 * plain.r[:, :5].norm()
    # Each is the smaller one in its own norm.
    assert (weighted.norm <= 1.02 * (dear * plain.r).norm(dim=1)).all()
    assert (plain.norm <= 1.02 * weighted.r.norm(dim=1)).all()


def test_masks_and_single_features():
    model, x = affine_case(C, D, N, seed=3)
    mask = torch.arange(D) % 2 == 0
    for p in NORMS:
        found = deepfool(model, x, p=p, weights=WEIGHTS, mask=mask, bounds=(-2, 3))
        assert (found.r[:, ~mask] == 0).all()
        same = deepfool(model, x, p=p, weights=WEIGHTS, subspace=Subspace.only(mask), bounds=(-2, 3))
        assert torch.equal(found.r, same.r)


def test_goals_and_tighten():
    model, x = affine_case(3, D, N, seed=4)
    found = deepfool(model, x, weights=WEIGHTS, goal="within:0.5", tighten=True)
    exact = 0.5 / np.linalg.norm(model.weight.detach().numpy() / WEIGHTS.numpy(), axis=1).max()
    assert found.norm.numpy() == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"weights": WEIGHTS[:3]}, "one number for each feature"),
        ({"weights": 0 * WEIGHTS}, "positive and finite"),
        ({"weights": WEIGHTS * math.nan}, "positive and finite"),
        ({"weights": "heavy"}, "positive numbers, one per feature"),
        ({"weights": WEIGHTS > 0}, "real numbers"),
        ({"weights": WEIGHTS, "subspace": draw_subspace(D, 3)}, "leave one of them out"),
    ],
)
def test_what_weights_cannot_be(given, words):
    model, x = affine_case(C, D, N, seed=5)
    with pytest.raises(InputError, match=words):
        deepfool(model, x, **given)


def test_counts_have_no_weights():
    model, x = affine_case(C, D, N, seed=5)
    with pytest.raises(InputError, match="counts features"):
        smallest(model, x, p=0, bounds=(0, 1), weights=WEIGHTS)
    with pytest.raises(InputError, match="float32 or float64"):
        deepfool(model.half(), x.half(), weights=WEIGHTS)
