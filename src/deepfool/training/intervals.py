"""Interval bounds: what the scores can become if every pixel moves by up to `eps`.

Each layer maps an interval (centre and radius) to one that contains all of its outputs, so the bounds are true but
loose. A network trained on them (Gowal et al.: "On the effectiveness of interval bound propagation for training
verifiably robust models", 2018) keeps them tight, and can then be certified at the cost of two forward passes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepfool.errors import ModelError
from deepfool.models.preprocessing import Normalize


def bound(layers: nn.Module, x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Centre and radius of the outputs, over all inputs in [0, 1] that are at most `eps` from `x` in linf.

    `layers` is a sequence of dense and convolutional layers, ReLUs, `Flatten` and `Normalize`.

    >>> net = nn.Sequential(nn.Linear(2, 1, bias=False), nn.ReLU())
    >>> _ = nn.init.constant_(net[0].weight, 1.0)
    >>> centre, radius = bound(net, torch.tensor([[0.25, 1.0]]), 0.125)
    >>> (centre - radius).item(), (centre + radius).item()
    (1.0, 1.375)
    """
    centre, radius = _middle((x - eps).clamp(0, 1), (x + eps).clamp(0, 1))
    for layer in _sequence(layers):
        if isinstance(layer, nn.Linear):
            centre, radius = layer(centre), F.linear(radius, layer.weight.abs())
        elif isinstance(layer, nn.Conv2d) and layer.padding_mode == "zeros":
            spread = F.conv2d(
                radius, layer.weight.abs(), None, layer.stride, layer.padding, layer.dilation, layer.groups
            )  # fmt: skip
            centre, radius = layer(centre), spread
        elif isinstance(layer, nn.ReLU):
            centre, radius = _middle(F.relu(centre - radius), F.relu(centre + radius))
        elif isinstance(layer, nn.Flatten):
            centre, radius = layer(centre), layer(radius)
        elif isinstance(layer, Normalize):
            centre, radius = layer(centre), radius / layer.std
        else:
            raise ModelError(f"interval bounds of {type(layer).__name__} are not known.")
    return centre, radius


def bound_margins(network: nn.Module, x: Tensor, y: Tensor, eps: float) -> Tensor:
    """For each class an upper bound of its score minus that of class `y`; 0 for `y` itself.

    A sample is certified if all others are negative. The last layer, which must be dense, is bounded together with
    the difference: each hidden value then counts once, and not at its worst for either class.

    >>> net = nn.Sequential(nn.Linear(2, 2, bias=False))
    >>> _ = nn.init.eye_(net[0].weight)
    >>> bound_margins(net, torch.tensor([[0.75, 0.25]]), torch.tensor([0]), 0.125)
    tensor([[ 0.0000, -0.2500]], grad_fn=...)
    """
    *hidden, last = _sequence(network)
    if not isinstance(last, nn.Linear):
        raise ModelError(f"the last layer must be nn.Linear for interval bounds, got {type(last).__name__}.")
    centre, radius = bound(nn.Sequential(*hidden), x, eps)
    scores = last(centre)
    spread = (last.weight[None] - last.weight[y][:, None]).abs()  # (samples, classes, features)
    margins: Tensor = scores - scores.gather(1, y[:, None]) + torch.einsum("ncf,nf->nc", spread, radius)
    return margins


def _sequence(layers: nn.Module) -> list[nn.Module]:
    if not isinstance(layers, nn.Sequential):
        raise ModelError(f"interval bounds need an nn.Sequential, got {type(layers).__name__}.")
    return [inner for layer in layers for inner in (_sequence(layer) if isinstance(layer, nn.Sequential) else [layer])]


def _middle(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    return (high + low) / 2, (high - low) / 2
