"""k-winners-take-all (Xiao, Zhong, Zheng: "Enhancing adversarial defense by k-winners-take-all", ICLR 2020).

A layer keeps its largest values and sets the others to zero. Which ones win changes with every small step, so the
scores jump everywhere and the gradient says little about them. That hides perturbations from attacks that follow the
gradient, and does not remove them. The zoo has such a network to test attacks on.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from deepfool.models.conv_mnist import conv_mnist

KEPT = 0.15
"""The share of values that a layer keeps; the authors use 0.1 to 0.2."""


class KWinners(nn.Module):
    """Keep the largest values of each sample, over all channels and places; the others become 0. Ties all win.

    >>> KWinners(0.5)(torch.tensor([[3.0, -1.0, 2.0, 0.5]]))
    tensor([[3., 0., 2., 0.]])
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        values = x.flatten(1)
        winners = math.ceil(self.share * values.shape[1])
        least = values.topk(winners).values[:, -1].view(-1, *[1] * (x.ndim - 1))
        return torch.where(x >= least, x, 0.0)


def kwta_mnist() -> nn.Sequential:
    """`conv_mnist` with k-winners-take-all instead of ReLU.

    >>> kwta_mnist()(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    return conv_mnist(lambda: KWinners(KEPT))
