"""A real network on real data: scikit-learn's digits, trained here in a second."""

import math

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from deepfool import ddn, deepfool, fab, fgsm, fmn, lbfgs, smallest_eps, superdeepfool
from deepfool.norms import norm


@pytest.fixture(scope="module")
def digits():
    """Trained in double: training magnifies rounding errors, and in single every CPU would end in another network."""
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16), torch.tensor(labels)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).double()
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[:1200]), y[:1200]).backward()
        optimizer.step()
    assert (net(x[1200:]).argmax(1) == y[1200:]).float().mean() > 0.88
    return net.eval().float(), x[1200:1500].float()


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


def test_the_attacks_agree_on_a_real_network(digits):
    """They are different roads to the same boundary: in the box their medians lie within 2 % of the smallest."""
    net, x = digits
    box = (0, 1)
    for p in (1, 2, math.inf):
        start = deepfool(net, x, p=p, bounds=box)
        found = [
            deepfool(net, x, p=p, bounds=box, tighten=True),
            fab(net, x, p=p, bounds=box),
            fmn(net, x, p=p, bounds=box, start=start),
        ]
        if p == 2:
            found += [superdeepfool(net, x, bounds=box), ddn(net, x, bounds=box), ddn(net, x, bounds=box, start=start)]
        medians = [result.norm.median() for result in found]
        assert all(result.fooled.all() for result in found)
        assert max(medians) < 1.02 * min(medians)
        assert min(medians) < start.norm.median()


def test_the_baselines_on_a_real_network(digits):
    net, x = digits
    x = x[:20]
    labels = net(x).argmax(1)
    szegedy, plain = lbfgs(net, x, bounds=(0, 1)), deepfool(net, x, bounds=(0, 1))
    assert szegedy.fooled.all()
    assert szegedy.norm.mean() < plain.norm.mean()
    signs = smallest_eps(net, (x, labels), bounds=(0, 1))
    assert signs.reached
    assert fgsm(net, x, eps=signs.eps, bounds=(0, 1)).fooled.float().mean() >= 0.9
    assert signs.norm_l2 > 1.5 * szegedy.norm.mean().item()  # the paper: several times larger
