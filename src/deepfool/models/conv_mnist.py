"""A small convolutional network for MNIST: two strided convolutions and two dense layers, as in Wong and Kolter
("Provable defenses against adversarial examples via the convex outer adversarial polytope", ICML 2018).

It has no pooling, so that all of it is affine layers and ReLUs: what certification takes, and what a defence must beat.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn


def conv_mnist(activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """The 166,406-parameter network; takes (n, 1, 28, 28) in [0, 1], returns 10 scores.

    >>> import torch
    >>> conv_mnist()(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    return nn.Sequential(
        nn.Conv2d(1, 16, 4, stride=2, padding=1), activation(),
        nn.Conv2d(16, 32, 4, stride=2, padding=1), activation(),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 100), activation(),
        nn.Linear(100, 10),
    )  # fmt: skip
