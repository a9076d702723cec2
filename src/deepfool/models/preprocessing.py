"""Preprocessing as layers, so that every network takes pixels in [0, 1] and attacks work in that space."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_STD = (0.2470, 0.2435, 0.2616)
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Normalize(nn.Module):
    """Subtract a mean and divide by a standard deviation, per channel.

    The constants are buffers, so they move with the module to its device and into its weight file.

    >>> Normalize([0.5], [0.25])(torch.ones(1, 1, 2, 2)).flatten().tolist()
    [2.0, 2.0, 2.0, 2.0]
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


class CaffeInput(nn.Module):
    """Convert RGB in [0, 1] to the input of Caffe's ImageNet networks: BGR in 0-255, minus the mean of each channel.

    >>> red = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)
    >>> CaffeInput(mean_bgr=(104, 117, 123))(red).flatten().tolist()
    [-104.0, -117.0, 132.0]
    """

    mean_bgr: Tensor

    def __init__(self, mean_bgr: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean_bgr", torch.tensor(mean_bgr, dtype=torch.float32).view(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return 255 * x.flip(-3) - self.mean_bgr
