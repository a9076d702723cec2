"""Where `certify` says EXACT, others find the same: closed forms, mixed-integer programs, all patterns of units."""

import math

import pytest
import torch
from torch import nn

from deepfool import Proof, certify, models
from tests.certificates.networks import enumerate_patterns, tiny
from tests.milp import GAP, find_minimum, train_digits
from tests.oracles import affine_case, boxed_distance

PLENTY = 600
"""Seconds for what takes a fraction of one: only a machine that stands still runs out of them."""


@pytest.mark.parametrize("p", [1, 2, math.inf])
def test_affine_models_are_exact_at_once(p):
    model, x = affine_case(4, 6, 5, 0)
    answer = certify(model, x, p=p, bounds=(0, 1), seconds=0)
    assert answer.exact.all()
    for i in range(5):
        assert float(answer.lower[i]) == pytest.approx(boxed_distance(model, x[i].numpy(), p, 0, 1), rel=1e-3)


def test_a_model_of_scikit_learn_is_exact():
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    features, labels = load_iris(return_X_y=True)
    model = models.as_module(make_pipeline(StandardScaler(), LogisticRegression()).fit(features, labels))
    answer = certify(model, torch.as_tensor(features), p=2, bounds=None, seconds=0)
    assert answer.exact.all()
    assert (answer.lower > 0).all()


@pytest.mark.parametrize("seed", range(3))
def test_all_patterns_of_units_give_the_same_in_l2(seed):
    model = tiny(seed)
    x = torch.rand(2, 3, dtype=torch.float64)
    answer = certify(model, x, p=2, bounds=(0, 1), seconds=PLENTY)
    assert answer.exact.all()
    assert answer.upper.isfinite().any()
    for i in range(2):
        exact = enumerate_patterns(model, x[i].numpy(), 0, 1)
        assert float(answer.lower[i]) <= exact * (1 + 1e-6)
        assert float(answer.upper[i]) == pytest.approx(exact, rel=2e-3)


def test_a_mixed_integer_program_gives_the_same_in_linf():
    model, x = train_digits(8, 3)
    answer = certify(model, x, p=math.inf, bounds=(0, 1), seconds=PLENTY)
    assert (answer.status == Proof.EXACT).all()
    for i in range(len(x)):
        minimum = find_minimum(model, x[i], answer.x[i], PLENTY)
        assert minimum.proved
        assert minimum.radius >= float(answer.lower[i]) * (1 - GAP)
        assert minimum.radius == pytest.approx(float(answer.upper[i]), rel=2 * GAP)


def test_a_mixed_integer_program_gives_the_same_in_l1():
    from tests.certificates.programs import smallest_l1

    model = tiny(5, (4, 6, 6, 3))
    x = torch.rand(3, 4, dtype=torch.float64)
    answer = certify(model, x, p=1, bounds=(0, 1), seconds=PLENTY)
    assert answer.exact.all()
    assert answer.upper.isfinite().any()
    for i in range(len(x)):
        exact = smallest_l1(model, x[i].numpy(), 0.0, 1.0)
        assert float(answer.upper[i]) == pytest.approx(exact, rel=2e-3)


def test_the_point_is_where_the_certificate_says():
    """Branch and bound improves a bad upper bound, and has the point: judged by the model itself."""
    model = tiny(5, (4, 6, 6, 3)).float()
    x = torch.rand(3, 4)
    first = certify(model, x, p=2, bounds=(0, 1), seconds=PLENTY)
    answer = certify(model, x, p=2, bounds=(0, 1), upper=3 * first.upper, seconds=PLENTY)
    assert answer.exact.all()
    reachable = answer.upper.isfinite()
    assert reachable.any()
    assert (model(answer.x).argmax(1) != answer.label)[reachable].all()
    assert torch.allclose((answer.x - x).norm(dim=1).double()[reachable], answer.upper[reachable], rtol=1e-5)


def test_masks_and_targets():
    """A feature that may not change, and a class of one's own: the same as without it, or farther."""
    model = tiny(1, (4, 6, 3))
    x = torch.rand(2, 4, dtype=torch.float64)
    free = certify(model, x, p=2, bounds=(0, 1), seconds=PLENTY)
    assert free.upper.isfinite().all()
    mask = torch.tensor([True, False, True, True])
    held = certify(model, x, p=2, bounds=(0, 1), mask=mask, seconds=PLENTY)
    assert (held.lower >= free.lower * (1 - 2e-3)).all()
    assert (held.x[:, 1] == x[:, 1]).all()
    frozen = nn.Sequential(_Held(x[:1, 1]), model)  # the same question asked in another way
    other = certify(frozen, x[:1][:, mask], p=2, bounds=(0, 1), seconds=PLENTY)
    assert float(other.lower) == pytest.approx(float(held.lower[0]), rel=2e-3)
    for target in ((free.label + 1) % 3, (free.label + 2) % 3):
        reached = certify(model, x, p=2, bounds=(0, 1), target=target, seconds=2)
        assert (reached.lower >= free.lower * (1 - 2e-3)).all()


class _Held(nn.Module):
    """Three features become four: the second is what it is."""

    def __init__(self, value):
        super().__init__()
        self.register_buffer("value", torch.tensor([0.0, float(value), 0.0, 0.0], dtype=torch.float64))
        place = torch.zeros(4, 3, dtype=torch.float64)
        place[0, 0] = place[2, 1] = place[3, 2] = 1
        self.register_buffer("place", place)

    def forward(self, x):
        return x @ self.place.T + self.value
