"""The gradients of the class scores: one forward pass, then rows of the Jacobian in chunks that fit in memory.

A row is the gradient of one difference of scores, f_k - f_reference, with respect to the input. Rows for many classes
are taken in one batched backward pass (`is_grads_batched`); where an operator has no batching rule, one by one.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor

from deepfool.classifier import Classifier
from deepfool.errors import ModelError, is_out_of_memory


class Tangent:
    """The classifier near a batch of points: the scores there, and gradient rows on request.

    >>> f = Classifier(torch.nn.Linear(4, 3))
    >>> tangent = Tangent(f, torch.zeros(2, 4))
    >>> tangent.scores.shape
    torch.Size([2, 3])
    >>> w = tangent.difference_rows(torch.tensor([[1, 2], [0, 2]]), torch.tensor([0, 1]))
    >>> [part.shape for _, part in w]
    [torch.Size([2, 2, 4])]
    """

    def __init__(self, f: Classifier, x: Tensor) -> None:
        self.f = f
        self.x = x.detach().requires_grad_(True)
        self._graph = _measured_forward(f, self.x) if f.row_bytes is None else f(self.x)
        self.scores = self._graph.detach()
        if not self._graph.requires_grad:
            raise ModelError(
                "the scores do not depend on the input in a way that torch can differentiate.",
                hint="look for .detach(), .item(), numpy or torch.no_grad() inside the model.",
            )

    def difference_rows(self, classes: Tensor, reference: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield (columns of `classes`, gradients (n, columns, features)) of f_class - f_reference, chunk by chunk.

        `classes` is (n, k), `reference` (n,). The graph is freed with the last chunk.
        """
        n, k = classes.shape
        size = self.rows_at_once(k)
        for start in range(0, k, size):
            columns = slice(start, min(start + size, k))
            chosen = classes[:, columns].T.unsqueeze(-1)  # (rows, n, 1)
            seeds = torch.zeros(len(chosen), *self.scores.shape, dtype=self.scores.dtype, device=self.scores.device)
            seeds.scatter_(2, chosen, 1.0)
            seeds.scatter_add_(2, reference.view(1, n, 1).expand(len(chosen), n, 1), -torch.ones_like(seeds[..., :1]))
            rows = self._pull_back(seeds, keep=columns.stop < k)
            yield columns, rows.reshape(len(rows), n, -1).transpose(0, 1)

    def row(self, seeds: Tensor) -> Tensor:
        """The gradient (n, features) of one combination of the scores per sample, `seeds` (n, c); frees the graph.

        >>> tangent = Tangent(Classifier(torch.nn.Linear(4, 3)), torch.zeros(2, 4))
        >>> tangent.row(difference(tangent.scores, torch.tensor([1, 2]), torch.tensor([0, 0]))).shape
        torch.Size([2, 4])
        """
        (row,) = torch.autograd.grad(self._graph, self.x, seeds)
        return row.reshape(len(seeds), -1)

    def rows_at_once(self, k: int) -> int:
        """How many rows fit in the memory budget of the classifier (at least one)."""
        per_row = max(1, (self.f.row_bytes or 0) * len(self.x))
        return max(1, min(k, self.f.memory_budget // per_row))

    def _pull_back(self, seeds: Tensor, *, keep: bool) -> Tensor:
        """Vector-Jacobian products for a stack of seeds, batched if the model's operators allow it."""
        if len(seeds) > 1 and self.f.batched_rows:
            try:
                with warnings.catch_warnings():
                    # torch says "no batching rule" in a warning and then goes slowly: take that as a no.
                    warnings.filterwarnings("error", message=".*batching rule.*")
                    (rows,) = torch.autograd.grad(self._graph, self.x, seeds, is_grads_batched=True, retain_graph=True)
                return rows
            except (RuntimeError, NotImplementedError, UserWarning) as error:
                if is_out_of_memory(error):
                    raise
                self.f.batched_rows = False
        single: list[Tensor] = []
        for i, seed in enumerate(seeds):
            more = keep or i < len(seeds) - 1
            single += torch.autograd.grad(self._graph, self.x, seed, retain_graph=more)
        return torch.stack(single)


def sketch_slopes(f: Classifier, x: Tensor, reference: Tensor, draws: int) -> Tensor | None:
    """Estimates (n, c) of ||grad f_k - grad f_reference||_2 for every class at once; None if the model cannot do it.

    One forward-mode product along a Gaussian direction gives the derivative of all scores along it; the mean square of
    the differences over several directions estimates the squared norm, with a relative error of 1 / sqrt(2 * draws) in
    the norm. The directions are the same for every sample and every call, so that no answer depends on the batch.

    >>> f = Classifier(torch.nn.Linear(100, 3, bias=False))
    >>> w = f.model.weight.detach()
    >>> slopes = sketch_slopes(f, torch.zeros(1, 100), torch.tensor([0]), 400)
    >>> bool(((slopes[0, 1:] / (w[1:] - w[0]).norm(dim=1)) - 1).abs().max() < 0.2)
    True
    """
    generator = torch.Generator().manual_seed(0)
    squares = torch.zeros(())
    for _ in range(draws):
        z = torch.randn((1, *x.shape[1:]), generator=generator, dtype=torch.float32).to(x)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of torch about itself, the first time
                along = torch.func.jvp(f, (x,), (z.expand_as(x).contiguous(),))[1]
        except (NotImplementedError, RuntimeError) as error:
            if is_out_of_memory(error):  # for the caller to halve the batch
                raise
            return None  # an operator has no forward-mode rule
        along = along.detach()
        squares = squares.to(along) + (along - along.gather(1, reference[:, None])) ** 2
    return (squares / draws).sqrt()


def difference(scores: Tensor, k: Tensor, reference: Tensor) -> Tensor:
    """The seeds of f_k - f_reference, one class each per sample.

    >>> difference(torch.zeros(1, 3), torch.tensor([2]), torch.tensor([0]))
    tensor([[-1.,  0.,  1.]])
    """
    ones = torch.ones_like(scores[:, :1])
    return torch.zeros_like(scores).scatter_add_(1, k[:, None], ones).scatter_add_(1, reference[:, None], -ones)


def cross_entropy(scores: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The cross-entropy J(., y) per sample, and the seeds of its gradient as a weight and a direction.

    The gradient is weight * (mean of the other classes, softmax-weighted, minus class y), with weight = 1 - p_y. Kept
    apart, the direction stays exact where the softmax saturates and the weight underflows.

    >>> loss, weight, direction = cross_entropy(torch.tensor([[200.0, 0.0, 0.0]]), torch.tensor([0]))
    >>> loss, weight, direction
    (tensor([0.]), tensor([0.]), tensor([[-1.0000,  0.5000,  0.5000]]))
    """
    others = scores.scatter(1, y[:, None], -torch.inf)
    excess = others.logsumexp(1) - scores.gather(1, y[:, None])[:, 0]
    direction = others.softmax(1).scatter(1, y[:, None], -1.0)
    return torch.nn.functional.softplus(excess), excess.sigmoid(), direction


def _measured_forward(f: Classifier, x: Tensor) -> Tensor:
    """A forward pass that notes the largest tensor kept for the backward pass, to foresee what a row will take."""
    largest = x[0].numel() * x.element_size()

    def note(kept: Tensor) -> Tensor:
        nonlocal largest
        if kept.ndim and len(kept) == len(x):  # activations have the batch first; weights do not grow with rows
            largest = max(largest, kept.numel() // len(x) * kept.element_size())
        return kept.detach()  # itself, it would hold the graph that holds it, and neither would ever be freed

    with torch.autograd.graph.saved_tensors_hooks(note, lambda kept: kept):
        z = f(x)
    # A backward step holds the incoming and the outgoing gradient, and a work copy of each.
    f.row_bytes = math.ceil(4 * largest)
    return z
