"""`smallest` beside the true minimum, which mixed-integer programming finds on small networks."""

import math

import pytest
import torch
from torch import nn

from deepfool import deepfool, smallest
from tests.milp import GAP, find_minimum, train_digits

IMAGES = 6
PLENTY = 600
"""Seconds for a question that takes a fraction of one: only a machine that stands still runs out of them."""


def test_milp_finds_the_minimum_of_a_network_whose_minimum_is_known():
    """Scores |x_1 - x_2| (as two ReLUs) against 0.5: from (0.4, 0.4) both features must move by 0.25."""
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)).double()
    for parameter, value in zip(
        net.parameters(), ([[1.0, -1.0], [-1.0, 1.0]], [0.0, 0.0], [[0.0, 0.0], [1.0, 1.0]], [0.5, 0.0]), strict=True
    ):
        parameter.data = torch.tensor(value).double()
    found = find_minimum(net, torch.tensor([0.4, 0.4]), torch.tensor([1.0, 0.0]), PLENTY)
    assert found.proved
    assert found.radius == pytest.approx(0.25, rel=GAP)
    in_a_corner = find_minimum(net, torch.tensor([0.1, 0.1]), torch.tensor([1.0, 0.0]), PLENTY)
    assert in_a_corner.radius == pytest.approx(0.4, rel=GAP)  # one feature cannot fall below 0


def test_smallest_finds_the_minimum_and_nothing_below_it():
    """The search for the minimum starts from deepfool's point, so that it owes nothing to `smallest`."""
    net, x = train_digits(12, IMAGES)
    start = deepfool(net, x, p=math.inf, bounds=(0, 1))
    minima = [find_minimum(net, x[i], start.x[i], PLENTY) for i in range(IMAGES)]
    assert all(minimum.proved for minimum in minima)
    exact = torch.tensor([minimum.radius for minimum in minima]).double()
    found = smallest(net, x, p=math.inf, bounds=(0, 1), budget=1000)
    assert found.fooled.all()
    assert (found.norm >= (1 - GAP) * exact).all()  # below is a mistake in one of the two
    assert (found.norm / exact).mean() < 1.01
