"""Count what an attack asks of a model, whoever wrote the attack."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class _Counted(torch.autograd.Function):
    """The identity on the input; its backward pass sees every gradient row that reaches the input."""

    generate_vmap_rule = False

    @staticmethod
    def forward(ctx: Any, x: Tensor, counter: Counter) -> Tensor:
        ctx.counter = counter
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        # A batched backward pass shows up once, with its rows hidden in the batch dimension: count those, too.
        hidden = torch._C._functorch.get_unwrapped(grad) if torch._C._functorch.is_batchedtensor(grad) else grad
        ctx.counter.backwards += hidden.numel() // max(1, grad[0].numel())
        return grad, None


class Counter(nn.Module):
    """A model that counts the samples it sees forwards, and the gradient rows it gives back."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.forwards = self.backwards = 0

    def forward(self, x: Tensor) -> Tensor:
        self.forwards += len(x)
        scores: Tensor = self.model(_Counted.apply(x, self))
        return scores
