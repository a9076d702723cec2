"""Batch normalisation during training: the result has the published layers, and computes the same function."""

import pytest
import torch
from torch import nn

from deepfool.models.nin import nin_cifar10
from deepfool.training.batchnorm import Normalized, fold, scaffold
from deepfool.training.sgd import Recipe, test_error, train


def small_network():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(4, 2),
    )  # fmt: skip


def test_folding_restores_the_published_layers():
    torch.manual_seed(0)
    plain = nin_cifar10()
    network = scaffold(nin_cifar10())
    normalized = [layer for layer in network.modules() if isinstance(layer, Normalized)]
    assert len(normalized) == 8  # all convolutions except the last, which has no ReLU after it
    x = torch.rand(4, 3, 32, 32)
    network.train()(x)  # gives the layers real statistics
    before = network.eval()(x)
    folded = fold(network)
    assert {name: value.shape for name, value in folded.state_dict().items()} == {
        name: value.shape for name, value in plain.state_dict().items()
    }
    torch.testing.assert_close(folded(x), before, rtol=1e-3, atol=1e-4)
    assert not folded.training


def test_nested_networks_are_normalised_too():
    network = scaffold(nn.Sequential(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU()), nn.ReLU()))
    assert isinstance(network[0][0], Normalized)
    assert isinstance(fold(network)[0][0], nn.Conv2d)


def test_training_with_a_scaffold_learns_and_resumes(tmp_path):
    torch.manual_seed(0)
    x = torch.rand(256, 1, 8, 8)
    y = (x[:, 0, :, :4].mean((1, 2)) > 0.5).long()
    recipe = Recipe(epochs=6, learning_rate=0.1, batch_size=32, weight_decay=0.0, batchnorm=True)

    def stop(progress):
        if (progress.epoch, progress.batch) == (3, 2):
            raise KeyboardInterrupt

    def begin():
        torch.manual_seed(1)
        return small_network()

    whole = train(begin(), x, y, recipe)
    with pytest.raises(KeyboardInterrupt):
        train(begin(), x, y, recipe, checkpoint=tmp_path / "c.pt", on_progress=stop)
    resumed = train(begin(), x, y, recipe, checkpoint=tmp_path / "c.pt")
    assert list(whole.state_dict()) == list(small_network().state_dict())
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)
    assert test_error(whole, x, y) < 0.4
