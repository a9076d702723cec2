"""Count the passes that an attack makes through a model, whichever library it comes from."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

SLACK = 1e-6
"""How far outside [0, 1] a queried point may be: what single precision makes of `x + (1 - x)`."""


class _Counted(torch.autograd.Function):
    """The identity on the input; its backward pass sees every gradient row that reaches the input."""

    generate_vmap_rule = False

    @staticmethod
    def forward(ctx: Any, x: Tensor, counter: Counter) -> Tensor:
        ctx.counter, ctx.rows = counter, counter.rows
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ctx.counter.backwards += len(grad)
        ctx.counter.spend(ctx.rows)
        return grad, None


class Counter(nn.Module):
    """A model that counts the samples it sees forwards, and the gradient rows it gives back.

    Between `watch(x, labels, p, budget)` and the next call of it, it also remembers the size of the smallest
    perturbation among the points that it was asked about while their sample had spent at most `budget` passes
    (`within`), as AttackBench does: an attack that is stopped there has nothing better in hand. A row belongs to the
    sample at its place if the whole batch is asked about, and otherwise to the nearest sample of the batch. So a row
    may be counted for another sample, but what is remembered is never wrong: it is a point with another label than
    the sample's, at that distance from it.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.forwards = self.backwards = 0
        self.overhead = 0.0  # seconds that went into remembering
        self.rows: Tensor | None = None  # the samples that the rows of the last forward pass belong to
        self._batch: tuple[Tensor, Tensor, float, int] | None = None

    def watch(self, x: Tensor, labels: Tensor, p: float, budget: int) -> None:
        self._batch = x.flatten(1), labels, p, budget
        self.passes = torch.zeros(len(x), dtype=torch.long)
        self.within = torch.full((len(x),), math.inf)

    def forward(self, x: Tensor) -> Tensor:
        self.forwards += len(x)
        start = time.perf_counter()
        self.rows = self._assign(x)
        self.spend(self.rows)
        self.overhead += time.perf_counter() - start
        scores: Tensor = self.model(_Counted.apply(x, self))
        start = time.perf_counter()
        self._remember(x, scores)
        self.overhead += time.perf_counter() - start
        return scores

    @torch.no_grad()
    def _assign(self, x: Tensor) -> Tensor | None:
        if self._batch is None:
            return None
        clean = self._batch[0]
        if len(x) == len(clean):
            return torch.arange(len(x))
        y = x.detach().flatten(1)
        return (clean.square().sum(1) - 2 * y @ clean.T).argmin(1)

    def spend(self, rows: Tensor | None, times: int = 1) -> None:
        if rows is not None:
            self.passes.index_add_(0, rows, torch.full_like(rows, times))

    @torch.no_grad()
    def _remember(self, x: Tensor, scores: Tensor) -> None:
        if self._batch is None or self.rows is None:
            return
        (clean, labels, p, budget), i, y = self._batch, self.rows, x.detach().flatten(1)
        counts = scores.detach().argmax(1) != labels[i]
        counts &= (self.passes[i] <= budget) & (y.amin(1) >= -SLACK) & (y.amax(1) <= 1 + SLACK)
        if counts.any():
            i, size = i[counts], (y[counts] - clean[i[counts]]).norm(p=p, dim=1)
            self.within.scatter_reduce_(0, i, size, "amin")

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
                if self.rows is not None and len(self.rows) == seeds.shape[1]:
                    self.spend(self.rows, seeds.shape[0] - 1)
            return plain(outputs, inputs, grad_outputs, *rest, **more)

        torch.autograd.grad = grad
        try:
            yield
        finally:
            torch.autograd.grad = plain
