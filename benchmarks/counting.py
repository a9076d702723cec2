"""Count the passes that an attack makes through a model, whichever library it comes from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
        ctx.counter.backwards += len(grad)
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

    @contextmanager
    def watching(self) -> Iterator[None]:
        """A batched backward pass is seen only once inside the model: count its other rows where it is called."""
        plain = torch.autograd.grad

        def grad(outputs: Any, inputs: Any, grad_outputs: Any = None, *rest: Any, **more: Any) -> Any:
            asked = inputs if isinstance(inputs, Tensor) else inputs[0]
            # Gradients at a hidden layer end there: they are not rows, and cost only that layer's share of one.
            if more.get("is_grads_batched") and asked.is_leaf:
                seeds = grad_outputs if isinstance(grad_outputs, Tensor) else grad_outputs[0]
                self.backwards += (seeds.shape[0] - 1) * seeds.shape[1]
            return plain(outputs, inputs, grad_outputs, *rest, **more)

        torch.autograd.grad = grad
        try:
            yield
        finally:
            torch.autograd.grad = plain
