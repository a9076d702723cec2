"""GoogLeNet (Szegedy et al.: "Going deeper with convolutions", CVPR 2015) as defined in Caffe's model zoo.

Layers and names are those of `bvlc_googlenet/deploy.prototxt`, the network of the DeepFool paper, with dots instead of
the slashes in Caffe's names (`inception_3a/1x1` is `inception_3a.1x1`). The two auxiliary classifiers are only used in
training and are left out.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepfool.models.caffenet import lrn, max_pool
from deepfool.models.preprocessing import CaffeInput

MEAN_BGR = (104.0, 117.0, 123.0)


class Inception(nn.ModuleDict):
    """Four branches on the same input, concatenated: 1x1, 3x3 and 5x5 convolutions, and pooling.

    >>> Inception(192, 64, (96, 128), (16, 32), 32)(torch.rand(1, 192, 7, 7)).shape
    torch.Size([1, 256, 7, 7])
    """

    def __init__(
        self, inputs: int, one: int, three: tuple[int, int], five: tuple[int, int], pool_projection: int
    ) -> None:
        super().__init__({
            "1x1": nn.Conv2d(inputs, one, 1),
            "3x3_reduce": nn.Conv2d(inputs, three[0], 1), "3x3": nn.Conv2d(three[0], three[1], 3, padding=1),
            "5x5_reduce": nn.Conv2d(inputs, five[0], 1), "5x5": nn.Conv2d(five[0], five[1], 5, padding=2),
            "pool": max_pool(3, stride=1, padding=1), "pool_proj": nn.Conv2d(inputs, pool_projection, 1),
        })  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        three = F.relu(self["3x3_reduce"](x))
        five = F.relu(self["5x5_reduce"](x))
        pooled = self["pool"](x)
        branches = [self["1x1"](x), self["3x3"](three), self["5x5"](five), self["pool_proj"](pooled)]
        return F.relu(torch.cat(branches, dim=1))


def googlenet() -> nn.Sequential:
    """The 6,998,552-parameter network; takes (n, 3, 224, 224) RGB in [0, 1], returns 1000 scores.

    >>> googlenet().eval()(torch.rand(1, 3, 224, 224)).shape
    torch.Size([1, 1000])
    """
    return _sequence({
        "input": CaffeInput(MEAN_BGR),
        "conv1": _sequence({"7x7_s2": nn.Conv2d(3, 64, 7, stride=2, padding=3), "relu_7x7": nn.ReLU()}),
        "pool1": max_pool(), "norm1": lrn(),
        "conv2": _sequence({
            "3x3_reduce": nn.Conv2d(64, 64, 1), "relu_3x3_reduce": nn.ReLU(),
            "3x3": nn.Conv2d(64, 192, 3, padding=1), "relu_3x3": nn.ReLU(),
        }),
        "norm2": lrn(), "pool2": max_pool(),
        "inception_3a": Inception(192, 64, (96, 128), (16, 32), 32),
        "inception_3b": Inception(256, 128, (128, 192), (32, 96), 64),
        "pool3": max_pool(),
        "inception_4a": Inception(480, 192, (96, 208), (16, 48), 64),
        "inception_4b": Inception(512, 160, (112, 224), (24, 64), 64),
        "inception_4c": Inception(512, 128, (128, 256), (24, 64), 64),
        "inception_4d": Inception(512, 112, (144, 288), (32, 64), 64),
        "inception_4e": Inception(528, 256, (160, 320), (32, 128), 128),
        "pool4": max_pool(),
        "inception_5a": Inception(832, 256, (160, 320), (32, 128), 128),
        "inception_5b": Inception(832, 384, (192, 384), (48, 128), 128),
        "pool5": nn.AdaptiveAvgPool2d(1),  # Caffe's 7x7 window is the whole map
        "flatten": nn.Flatten(),
        "drop5": nn.Dropout(0.4),
        "loss3": _sequence({"classifier": nn.Linear(1024, 1000)}),
    })  # fmt: skip


def _sequence(layers: dict[str, nn.Module]) -> nn.Sequential:
    return nn.Sequential(OrderedDict(layers))
