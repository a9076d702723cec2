"""A row that is marked fooled is fooled in any batch size, however large the scores are and whatever is added to them.

`DEEPFOOL_ROUNDING_ROWS=20000` measures that many rows for each attack instead of a quick sample.
"""

import os

import pytest
import torch
from torch import nn

from deepfool import Classifier, deepfool, fab, smallest, superdeepfool

ROWS = int(os.environ.get("DEEPFOOL_ROUNDING_ROWS", "250"))
OFFSETS = (0, 10, 100, 1e4)


def train(model, x, y, loss):
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    for rows in torch.randperm(len(x)).repeat(5).split(64):
        optimiser.zero_grad()
        loss(model(x[rows]), y[rows]).backward()
        optimiser.step()
    return model.eval()


@pytest.fixture(scope="module", params=["two scores", "one score", "seven scores"])
def trained(request):
    torch.manual_seed(5)
    x = 2 * torch.randn(2000, 20)
    y = (x[:, 0] * x[:, 1] + x[:, 2] > 0).long()
    if request.param == "one score":
        model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 1))
        return train(model, x, y.float()[:, None], nn.functional.binary_cross_entropy_with_logits), x
    c = 2 if request.param == "two scores" else 7
    y = y if c == 2 else (x[:, :7].abs()).argmax(1)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, c))
    return train(model, x, y, nn.functional.cross_entropy), x


def by_deepfool(model, x, **settings):
    return deepfool(model, x, tighten=True, **settings)


def by_fab(model, x, **settings):
    return fab(model, x, steps=10, **settings)


def quickly(model, x, **settings):
    return smallest(model, x, budget=40, **settings)


@pytest.mark.parametrize("attack", [by_deepfool, by_fab, superdeepfool, quickly])
@pytest.mark.parametrize("offset", OFFSETS)
def test_what_is_fooled_is_fooled_in_every_batch_size(trained, attack, offset):
    model, x = trained
    one = model[-1].out_features == 1

    def shifted(x):
        return model(x) + offset

    settings = {"threshold": offset} if one else {}
    torch.manual_seed(0)
    x = x.repeat(-(-ROWS // len(x)), 1)[:ROWS]
    x = x + 0.3 * torch.randn(x.shape)
    found = attack(shifted, x, **settings)
    assert int(found.fooled.sum()) > 0.9 * len(x)
    f = Classifier(shifted, outputs="logits", **settings)
    fooled, label = found.x[found.fooled], found.label[found.fooled]
    with torch.no_grad():
        for size in (1, 7):
            seen = torch.cat([f(points) for points in fooled.split(size)]).argmax(1)
            assert int((seen == label).sum()) == 0


@pytest.mark.parametrize("size", [1.0, 1e3, 1e5])
@pytest.mark.parametrize("attack", [deepfool, superdeepfool, quickly])
def test_the_norm_is_that_of_the_point_returned(attack, size):
    """Features so large that r is not a number of the type any more once it is added to them."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(30, 16), nn.Tanh(), nn.Linear(16, 4))
    model[0].weight.data /= size
    x = size * (1 + torch.rand(20, 30))
    found = attack(model, x)
    assert torch.equal(found.r, found.x - x)
    fooled = found.fooled
    assert bool(fooled.any())
    torch.testing.assert_close(found.norm[fooled], (found.x - x)[fooled].norm(dim=1))
