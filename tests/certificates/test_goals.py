"""Certificates for goals: exact on affine models, below what is found on networks, refused where there are none."""

import math

import pytest
import torch
from torch import nn

from deepfool import certify, smallest
from deepfool.errors import InputError
from tests.attacks.test_goals import distances
from tests.oracles import affine_case, mlp

GOALS = ("margin:1.5", "labels", "label:1", "within:0.5", "passes:1")


@pytest.mark.parametrize("goal", GOALS)
def test_the_closed_form_of_affine_models(goal):
    model, x = affine_case(3, 8, 5, seed=1)
    for p in (1, 2, math.inf):
        proved = certify(model, x, p=p, bounds=None, goal=goal)
        assert proved.exact.all()
        assert proved.lower.numpy() == pytest.approx(distances(model, x, goal, p), rel=2e-3)


@pytest.mark.parametrize("goal", GOALS)
def test_networks(goal):
    net, x = mlp((4, 6, 3), nn.ReLU, seed=1), torch.rand(4, 4, generator=torch.Generator().manual_seed(1)).double()
    goal = {"margin:1.5": "margin:0.1", "within:0.5": "within:0.05", "passes:1": "passes:0.1"}.get(goal, goal)
    found = smallest(net, x, goal=goal, p=math.inf, budget=300)
    proved = certify(net, x, p=math.inf, bounds=None, goal=goal, upper=found, seconds=60)
    assert (proved.lower <= found.norm * (1 + 1e-3)).all()
    assert proved.exact[found.fooled].all()


def test_a_target_with_a_margin():
    model, x = affine_case(2, 6, 4, seed=2)
    target = model(x).argmin(1)
    proved = certify(model, x, p=2, bounds=None, goal="margin:1", target=target)
    assert proved.lower.numpy() == pytest.approx(distances(model, x, "margin:1", 2), rel=2e-3)
    assert torch.equal(proved.label, model(x).argmax(1))


@pytest.mark.parametrize("goal", ["top:2", "confidence:0.9"])
def test_what_cannot_be_proved_is_refused_by_name(goal):
    model, x = affine_case(4, 6, 2, seed=3)
    with pytest.raises(InputError, match=f"cannot prove the goal {goal}"):
        certify(model, x, p=2, bounds=None, goal=goal)
