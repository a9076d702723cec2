"""The space that x lives in.

The paper measures ||r|| / ||x|| at the input of its toolbox's networks. Ours take pixels in [0, 1]. If a network starts
with a preprocessing layer (mean and standard deviation, or Caffe's mean image), that layer is split off and applied to
the images first. For the same network, rho_adv after it differs from rho_adv in [0, 1], because ||x|| differs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from deepfool.datasets import Data
from deepfool.models.fingerprints import fingerprint
from deepfool.models.preprocessing import CaffeInput, Normalize


def split_network(model: nn.Module) -> tuple[nn.Module | None, nn.Module]:
    """The preprocessing layer at the start of a network (None if there is none), and the rest of the network.

    >>> layer, network = split_network(nn.Sequential(Normalize([0.5], [0.5]), nn.Flatten(), nn.Linear(4, 2)))
    >>> type(layer).__name__, [type(each).__name__ for each in network]
    ('Normalize', ['Flatten', 'Linear'])
    >>> split_network(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))[0] is None
    True
    """
    if isinstance(model, nn.Sequential) and len(model) and isinstance(model[0], Normalize | CaffeInput):
        return model[0], model[1:]
    return None, model


class Preprocessed(Data):
    """Data after a preprocessing layer, computed batch by batch.

    >>> from deepfool.datasets import load
    >>> data = load((torch.ones(3, 1, 2, 2), torch.arange(3)))
    >>> Preprocessed(data, Normalize([0.5], [0.5])).batch([0]).flatten().tolist()
    [1.0, 1.0, 1.0, 1.0]
    """

    def __init__(self, data: Data, layer: nn.Module) -> None:
        super().__init__(f"{data.name}, preprocessed", None, data.classes)
        self.data, self.layer = data, layer

    def batch(self, indices: Sequence[int] | Tensor) -> Tensor:
        with torch.no_grad():
            found: Tensor = self.layer(self.data.batch(indices))
        return found

    def file(self, index: int) -> str | None:
        return self.data.file(index)

    def _read_labels(self) -> Tensor:
        return self.data.labels

    def _compute_fingerprint(self) -> str:
        return hashlib.sha256(f"{self.data.fingerprint()} {fingerprint(self.layer)}".encode()).hexdigest()


def pixel_bounds(layer: nn.Module | None, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The bounds of pixels in [0, 1] after `layer`.

    >>> low, high = pixel_bounds(Normalize([0.5], [0.5]), (1, 1, 2))
    >>> low.tolist(), high.tolist()
    ([[[-1.0, -1.0]]], [[[1.0, 1.0]]])
    """
    ends = torch.zeros(1, *shape), torch.ones(1, *shape)
    if layer is None:
        return ends[0][0], ends[1][0]
    with torch.no_grad():
        low, high = (layer(end)[0] for end in ends)
    return torch.minimum(low, high), torch.maximum(low, high)


def describe_space(layer: nn.Module | None) -> str:
    """A description of the space that x is measured in.

    >>> describe_space(None)
    'pixels in [0, 1]'
    """
    if layer is None:
        return "pixels in [0, 1]"
    if isinstance(layer, CaffeInput):
        return "pixels in 0-255 minus Caffe's mean"
    return "pixels minus the mean, divided by the standard deviation"
