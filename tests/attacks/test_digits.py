"""A real network on real data: scikit-learn's digits, trained here in a second."""

import math

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from deepfool import deepfool
from deepfool.norms import norm


@pytest.fixture(scope="module")
def digits():
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[:1200]), y[:1200]).backward()
        optimizer.step()
    assert (net(x[1200:]).argmax(1) == y[1200:]).float().mean() > 0.88
    return net.eval(), x[1200:1500]


@pytest.mark.parametrize("bounds", [None, (0, 1)])
def test_every_sample_is_fooled_and_each_norm_is_smallest_in_its_own(digits, bounds):
    net, x = digits
    results = {p: deepfool(net, x, p=p, bounds=bounds) for p in (1, 2, math.inf)}
    for p, result in results.items():
        assert result.fooled.all()
        assert (net(result.x).argmax(1) != result.label).all()
        for other in results.values():
            assert norm(result.r, p).mean() <= norm(other.r, p).mean()
    assert results[2].iterations.float().mean() < 4
