"""Preprocessing as layers, so that every network takes pixels in [0, 1] and attacks see that space alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Normalize(nn.Module):
    """Subtract a mean and divide by a deviation, channel by channel.

    The constants are buffers, so they follow the module to its device and into its weight file.

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
