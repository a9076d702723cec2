"""CaffeNet and AlexNet (Krizhevsky, Sutskever, Hinton: "ImageNet classification with deep convolutional neural
networks", NIPS 2012) as defined in Caffe's model zoo.

Layers, their names and their order are those of `bvlc_reference_caffenet/deploy.prototxt`, the network of the DeepFool
paper, and of `bvlc_alexnet/deploy.prototxt`. The two differ in one thing: CaffeNet pools and then normalises, AlexNet
normalises and then pools. The mean is that of Caffe's ILSVRC 2012 mean image, channel by channel.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from deepfool.models.preprocessing import CaffeInput

ILSVRC12_MEAN_BGR = (104.00698793, 116.66876762, 122.67891434)


def caffenet() -> nn.Sequential:
    """The 60,965,224-parameter network; takes (n, 3, 227, 227) RGB in [0, 1], returns 1000 scores.

    >>> [name for name, _ in caffenet().named_children()][1:5]
    ['conv1', 'relu1', 'pool1', 'norm1']
    """
    return _network(pool_first=True)


def alexnet() -> nn.Sequential:
    """The same layers with normalisation before pooling, as in AlexNet.

    >>> [name for name, _ in alexnet().named_children()][1:5]
    ['conv1', 'relu1', 'norm1', 'pool1']
    """
    return _network(pool_first=False)


def max_pool(kernel: int = 3, stride: int = 2, padding: int = 0) -> nn.MaxPool2d:
    """Caffe's pooling: a last window that does not fit extends over the border instead of being dropped."""
    return nn.MaxPool2d(kernel, stride, padding, ceil_mode=True)


def lrn() -> nn.LocalResponseNorm:
    """Normalisation across 5 neighbouring channels, with the constants of Caffe's AlexNet and GoogLeNet."""
    return nn.LocalResponseNorm(size=5, alpha=1e-4, beta=0.75, k=1.0)


def _network(*, pool_first: bool) -> nn.Sequential:
    def reduce(i: int) -> dict[str, nn.Module]:
        if pool_first:
            return {f"pool{i}": max_pool(), f"norm{i}": lrn()}
        return {f"norm{i}": lrn(), f"pool{i}": max_pool()}

    layers: dict[str, nn.Module] = {
        "input": CaffeInput(ILSVRC12_MEAN_BGR),
        "conv1": nn.Conv2d(3, 96, 11, stride=4), "relu1": nn.ReLU(), **reduce(1),
        "conv2": nn.Conv2d(96, 256, 5, padding=2, groups=2), "relu2": nn.ReLU(), **reduce(2),
        "conv3": nn.Conv2d(256, 384, 3, padding=1), "relu3": nn.ReLU(),
        "conv4": nn.Conv2d(384, 384, 3, padding=1, groups=2), "relu4": nn.ReLU(),
        "conv5": nn.Conv2d(384, 256, 3, padding=1, groups=2), "relu5": nn.ReLU(), "pool5": max_pool(),
        "flatten": nn.Flatten(),
        "fc6": nn.Linear(256 * 6 * 6, 4096), "relu6": nn.ReLU(), "drop6": nn.Dropout(0.5),
        "fc7": nn.Linear(4096, 4096), "relu7": nn.ReLU(), "drop7": nn.Dropout(0.5),
        "fc8": nn.Linear(4096, 1000),
    }  # fmt: skip
    return nn.Sequential(OrderedDict(layers))
