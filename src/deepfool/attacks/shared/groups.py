"""Groups of features that move together: squares in each channel of an image, runs of neighbours otherwise."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

CHANNELS = 16
"""An input of three dimensions is an image if it has no more channels than that."""


def tile(shape: Sequence[int], side: int) -> Tensor:
    """(d,): the group of each feature: squares of this side in each channel of an image, else runs of features.

    >>> tile((1, 2, 4), 2).tolist(), tile((5,), 2).tolist()
    ([0, 0, 1, 1, 0, 0, 1, 1], [0, 0, 1, 1, 2])
    """
    if len(shape) != 3 or shape[0] > CHANNELS:
        return torch.arange(math.prod(shape)) // side
    channels, height, width = shape
    across = -(-width // side)
    down = -(-height // side)
    c, i, j = torch.meshgrid(torch.arange(channels), torch.arange(height), torch.arange(width), indexing="ij")
    return ((c * down + i // side) * across + j // side).flatten()


def cover(shape: Sequence[int], most: int) -> tuple[int, Tensor]:
    """The smallest side with no more than `most` groups, and the groups."""
    side = 1
    while int((groups := tile(shape, side)).max()) >= most:
        side += 1
    return side, groups
