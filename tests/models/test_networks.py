"""Sizes, layouts and preprocessing of the zoo's networks."""

import pytest
import torch
from torch import nn

from deepfool.models.caffenet import ILSVRC12_MEAN_BGR, caffenet
from deepfool.models.googlenet import googlenet
from deepfool.models.kwta import KEPT, KWinners, kwta_mnist
from deepfool.models.lenet import lenet_cifar10, lenet_mnist
from deepfool.models.preprocessing import CaffeInput
from deepfool.models.zoo import ZOO


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("fc500-mnist", 784 * 500 + 500 + 500 * 150 + 150 + 150 * 10 + 10),  # 469,160
        ("lenet-mnist", 431_080),
        ("lenet-cifar10", 145_578),
        ("nin-cifar10", 966_986),
        ("caffenet", 60_965_224),
        ("googlenet", 6_998_552),
        ("efficientnet-lite0", 4_652_008),
        ("conv-mnist-linf", (16 * 16 + 16) + (16 * 16 * 32 + 32) + (32 * 49 * 100 + 100) + (100 * 10 + 10)),  # 166,406
        ("conv-mnist-l2", 166_406),
        ("conv-mnist-certified", 166_406),
        ("mlp-mnist-small", 784 * 24 + 24 + 24 * 24 + 24 + 24 * 10 + 10),  # 19,690
        ("kwta-mnist", 166_406),
    ],
)
def test_parameter_counts(name, count):
    with torch.device("meta"):  # no memory, no initialisation
        network = ZOO[name].factory()
    assert sum(p.numel() for p in network.parameters()) == count == ZOO[name].parameters


@pytest.mark.parametrize("name", [name for name, entry in ZOO.items() if entry.data != "imagenet"])
def test_scores_of_a_batch_equal_those_of_its_samples(name):
    network = ZOO[name].build().eval()
    x = torch.rand(3, *ZOO[name].input_shape)
    torch.testing.assert_close(network(x), torch.cat([network(sample[None]) for sample in x]))


def _sides(network: nn.Sequential, x: torch.Tensor) -> list[int]:
    """The side of the map after each layer that changes it."""
    sides = [x.shape[-1]]
    for layer in network:
        x = layer(x)
        if x.ndim == 4 and x.shape[-1] != sides[-1]:
            sides.append(x.shape[-1])
    return sides


def test_pooling_windows_reach_over_the_border_as_in_caffe():
    with torch.device("meta"):
        assert _sides(lenet_mnist(), torch.rand(1, 1, 28, 28)) == [28, 24, 12, 8, 4]
        assert _sides(lenet_cifar10(), torch.rand(1, 3, 32, 32)) == [32, 16, 8, 4]
        assert _sides(caffenet(), torch.rand(1, 3, 227, 227)) == [227, 55, 27, 13, 6]
        assert _sides(googlenet(), torch.rand(1, 3, 224, 224)) == [224, 112, 56, 28, 14, 7, 1]


def test_the_average_at_the_border_is_over_the_pixels_that_are_there():
    pool = next(layer for layer in lenet_cifar10() if isinstance(layer, nn.AvgPool2d))
    torch.testing.assert_close(pool(torch.ones(1, 1, 16, 16)), torch.ones(1, 1, 8, 8))


def test_caffenet_pools_before_it_normalises():
    names = [name for name, _ in caffenet().named_children()]
    assert names.index("pool1") < names.index("norm1") < names.index("conv2")
    assert names.index("pool2") < names.index("norm2") < names.index("conv3")


def test_caffe_input_is_bgr_in_bytes_minus_the_mean():
    rgb = torch.rand(2, 3, 4, 5)
    out = CaffeInput(ILSVRC12_MEAN_BGR)(rgb)
    for channel, (source, mean) in enumerate(zip((2, 1, 0), ILSVRC12_MEAN_BGR, strict=True)):
        torch.testing.assert_close(out[:, channel], rgb[:, source] * 255 - mean)


def test_each_layer_of_the_masked_network_keeps_its_share_of_winners():
    network, x = kwta_mnist().eval(), torch.rand(3, 1, 28, 28)
    kept = []
    for layer in network:
        before, x = x, layer(x)
        if isinstance(layer, KWinners):
            winners = (x != 0).flatten(1)
            kept.append(winners.float().mean(1))
            assert torch.equal(x.flatten(1)[winners], before.flatten(1)[winners]), "a winner is unchanged"
            for values, won in zip(before.flatten(1), winners, strict=True):
                assert values[won].min() > values[~won].max()
    assert len(kept) == 3
    assert all(bool(((share - KEPT).abs() < 0.01).all()) for share in kept)


def test_build_depends_on_the_seed_alone_and_leaves_the_stream_alone():
    entry = ZOO["fc500-mnist"]
    torch.manual_seed(5)
    first = entry.build(seed=3)[1].weight
    following = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(1), following)
    assert torch.equal(entry.build(seed=3)[1].weight, first)
    assert not torch.equal(entry.build(seed=4)[1].weight, first)
