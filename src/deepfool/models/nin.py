"""Network in Network for CIFAR-10 (Lin, Chen, Yan: "Network In Network", ICLR 2014).

Layer sizes are those of MatConvNet's `cnn_cifar_init_nin.m`, the toolbox that the DeepFool authors used: three
convolutions, each followed by two 1x1 convolutions (the "mlpconv"), and a global average instead of dense layers.
Like that file, and unlike the first Caffe definition, no ReLU follows the last 1x1 convolution, and the pooling
windows do not extend over the border (32 -> 15 -> 7 pixels).
"""

from __future__ import annotations

from torch import nn

from deepfool.models.preprocessing import CIFAR10_MEAN, CIFAR10_STD, Normalize


def mlpconv(inputs: int, widths: tuple[int, int, int], kernel: int) -> list[nn.Module]:
    """One mlpconv layer: a spatial convolution, then two 1x1 convolutions, a ReLU after each."""
    first, second, third = widths
    return [
        nn.Conv2d(inputs, first, kernel, padding=kernel // 2), nn.ReLU(),
        nn.Conv2d(first, second, 1), nn.ReLU(),
        nn.Conv2d(second, third, 1), nn.ReLU(),
    ]  # fmt: skip


def nin_cifar10(dropout: float = 0.5) -> nn.Sequential:
    """The 966,986-parameter network; takes (n, 3, 32, 32) in [0, 1], returns 10 scores.

    >>> import torch
    >>> nin_cifar10().eval()(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    network = nn.Sequential(
        Normalize(CIFAR10_MEAN, CIFAR10_STD),
        *mlpconv(3, (192, 160, 96), 5),
        nn.MaxPool2d(3, stride=2),
        nn.Dropout(dropout),
        *mlpconv(96, (192, 192, 192), 5),
        nn.AvgPool2d(3, stride=2),
        nn.Dropout(dropout),
        *mlpconv(192, (192, 192, 10), 3)[:-1],
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    convolutions = [layer for layer in network if isinstance(layer, nn.Conv2d)]
    for layer in convolutions:  # He initialisation, with the last layer scaled by a tenth
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    nn.init.normal_(convolutions[-1].weight, std=0.1 * (2 / 192) ** 0.5)
    return network
