"""What a pass through a network costs, in multiplications: counted at its layers, not timed.

A time depends on what else the machine does, and an answer must not. A backward row takes about as many multiplications
as the forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from deepfool.classifier.last_hidden_layer import weighted_layers


@dataclass
class Work:
    """How much was multiplied, for the whole batch."""

    products: int = 0


@contextmanager
def count_work(model: object) -> Iterator[Work]:
    """While this is open, forward passes add what their layers with weights multiply. Where no layers can be seen (a
    function, a compiled model), that is 0.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(784, 24), nn.ReLU(), nn.Linear(24, 10))
    >>> with count_work(model) as work:
    ...     _ = model(torch.zeros(5, 784))
    >>> work.products == 5 * (784 * 24 + 24 * 10)
    True
    """
    work = Work()

    def note(layer: nn.Module, given: tuple[Any, ...], returned: Any) -> None:
        weight = layer.weight
        if isinstance(returned, Tensor) and isinstance(weight, Tensor):
            work.products += returned.numel() * (weight.numel() // max(1, weight.shape[0]))

    hooks = [layer.register_forward_hook(note) for layer in weighted_layers(model)]
    try:
        yield work
    finally:
        for hook in hooks:
            hook.remove()
