"""The space of x: splitting off the preprocessing changes only ||x||."""

import torch

from deepfool import datasets, deepfool, models
from deepfool.experiments.space import Preprocessed, pixel_bounds, split_network


def test_the_split_network_gives_the_same_scores():
    whole = models.load("lenet-cifar10")
    layer, network = split_network(whole)
    data = datasets.load("cifar10-sample")
    cut = Preprocessed(data, layer)
    assert torch.equal(network(cut.batch(range(8))), whole(data.batch(range(8))))
    assert cut.labels.tolist() == data.labels.tolist()
    assert cut.fingerprint() != data.fingerprint()


def test_rho_is_larger_in_the_space_of_the_network():
    """0.0105 in [0, 1] is 0.023 after normalisation, on the whole test set; the paper has 0.030."""
    whole = models.load("lenet-cifar10")
    layer, network = split_network(whole)
    x = datasets.load("cifar10-sample").batch(range(24))

    def rho(model, x):
        return (deepfool(model, x).r.flatten(1).norm(dim=1) / x.flatten(1).norm(dim=1)).mean().item()

    assert 1.7 < rho(network, layer(x)) / rho(whole, x) < 2.8


def test_the_box_of_the_pixels_holds_every_image():
    layer, _ = split_network(models.load("lenet-cifar10"))
    low, high = pixel_bounds(layer, (3, 32, 32))
    x = layer(datasets.load("cifar10-sample").batch(range(50)))
    assert bool((x >= low).all())
    assert bool((x <= high).all())
    assert pixel_bounds(None, (1, 2, 2))[1].tolist() == [[[1.0, 1.0], [1.0, 1.0]]]


def test_caffe_networks_are_split_too():
    layer, network = split_network(models.load("googlenet", pretrained=False))
    assert type(layer).__name__ == "CaffeInput"
    assert "input" not in dict(network.named_children())
    low, high = pixel_bounds(layer, (3, 2, 2))
    assert bool((low < high).all())
