"""LeNet for MNIST and for CIFAR-10 (after LeCun, Bottou, Bengio, Haffner: "Gradient-based learning applied to
document recognition", 1998), as the toolboxes of the DeepFool paper's time defined it.

`lenet_mnist` is Caffe's `examples/mnist/lenet.prototxt`, the same layers as MatConvNet's `cnn_mnist_init.m`.
`lenet_cifar10`, three convolutions, is MatConvNet's `cnn_cifar_init.m`: Caffe's `cifar10_quick` with a ReLU after the
first dense layer. In both toolboxes the last pooling window may extend over the border (32 -> 16 -> 8 -> 4 pixels);
an average is taken over the pixels inside.
"""

from __future__ import annotations

from torch import nn

from deepfool.models.preprocessing import CIFAR10_MEAN, CIFAR10_STD, Normalize


def lenet_mnist() -> nn.Sequential:
    """The 431,080-parameter network; takes (n, 1, 28, 28) in [0, 1], returns 10 scores.

    >>> import torch
    >>> lenet_mnist()(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    return nn.Sequential(
        nn.Conv2d(1, 20, 5), nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5), nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(50 * 4 * 4, 500), nn.ReLU(),
        nn.Linear(500, 10),
    )  # fmt: skip


def lenet_cifar10() -> nn.Sequential:
    """The 145,578-parameter network; takes (n, 3, 32, 32) in [0, 1], returns 10 scores.

    >>> import torch
    >>> lenet_cifar10()(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    return nn.Sequential(
        Normalize(CIFAR10_MEAN, CIFAR10_STD),
        nn.Conv2d(3, 32, 5, padding=2), nn.MaxPool2d(3, stride=2, ceil_mode=True), nn.ReLU(),
        nn.Conv2d(32, 32, 5, padding=2), nn.ReLU(), nn.AvgPool2d(3, stride=2, ceil_mode=True),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.AvgPool2d(3, stride=2, ceil_mode=True),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 64), nn.ReLU(),
        nn.Linear(64, 10),
    )  # fmt: skip
