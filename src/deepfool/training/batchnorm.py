"""Batch normalisation as a scaffold: present during training, folded into the convolutions afterwards.

A trained normalisation is one scale and one shift per channel, which the convolution before it can absorb (Ioffe and
Szegedy, 2015, section 3.1). A network published without normalisation then trains in a fraction of the epochs, and the
result has exactly the published layers (all folded convolutions have a bias).
"""

from __future__ import annotations

from itertools import pairwise

from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval


class Normalized(nn.Sequential):
    """A convolution followed by a normalisation, during training only."""

    def __init__(self, convolution: nn.Conv2d) -> None:
        normalisation = nn.BatchNorm2d(convolution.out_channels, device=convolution.weight.device)
        super().__init__(convolution, normalisation)
        self.parts = convolution, normalisation  # a tuple: the modules are registered once


def scaffold(model: nn.Module) -> nn.Module:
    """Insert a normalisation between each convolution and the ReLU right after it, in place.

    >>> net = scaffold(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 1)))
    >>> [type(layer).__name__ for layer in net], [type(layer).__name__ for layer in net[0]]
    (['Normalized', 'ReLU', 'Conv2d'], ['Conv2d', 'BatchNorm2d'])
    """
    for parent in list(model.modules()):
        if not isinstance(parent, nn.Sequential) or isinstance(parent, Normalized):
            continue
        layers = list(parent)
        for place, (layer, following) in enumerate(pairwise(layers)):
            if isinstance(layer, nn.Conv2d) and isinstance(following, nn.ReLU):
                parent[place] = Normalized(layer)
    return model


def fold(model: nn.Module) -> nn.Module:
    """Remove the scaffold, in place: each convolution absorbs the scale and the shift after it.

    >>> import torch
    >>> net = scaffold(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU())).eval()
    >>> x = torch.rand(1, 1, 4, 4)
    >>> before = net(x)
    >>> fold(net)
    Sequential(
      (0): Conv2d(1, 2, kernel_size=(3, 3), stride=(1, 1))
      (1): ReLU()
    )
    >>> torch.allclose(net(x), before, atol=1e-6)
    True
    """
    was_training = model.training
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Normalized):
                child.eval()
                setattr(parent, name, fuse_conv_bn_eval(*child.parts))
    return model.train(was_training)
