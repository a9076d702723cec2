"""A fully connected network that is small enough for its smallest perturbations to be found exactly."""

from __future__ import annotations

from torch import nn


def mlp_mnist_small() -> nn.Sequential:
    """784-24-24-10, 19,690 parameters; takes (n, 1, 28, 28) in [0, 1], returns 10 scores.

    >>> import torch
    >>> mlp_mnist_small()(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 10)
    )  # fmt: skip
