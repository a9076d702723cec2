"""FC500-150-10 for MNIST: the fully connected network of the DeepFool paper's Table 1.

The name is the definition: 784 pixels, hidden layers of 500 and 150 units, 10 outputs. The ReLU between them is the
nonlinearity of the paper's other networks. Pixels are in [0, 1], without normalisation.
"""

from __future__ import annotations

from torch import nn


def fc500_mnist() -> nn.Sequential:
    """The 469,160-parameter network; takes (n, 1, 28, 28) in [0, 1], returns 10 scores.

    >>> import torch
    >>> fc500_mnist()(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 500), nn.ReLU(),
        nn.Linear(500, 150), nn.ReLU(),
        nn.Linear(150, 10),
    )  # fmt: skip
