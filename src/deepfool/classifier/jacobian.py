"""The gradients of the class scores: one forward pass, then rows of the Jacobian in chunks that fit in memory.

A row is the gradient of one difference of scores, f_k - f_reference, with respect to the input. Rows for many classes
are taken in one batched backward pass (`is_grads_batched`); where an operator has no batching rule, one by one. How
steep all classes are, relative to each other, can be estimated at the last hidden layer for far less than a row.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch
from torch import Tensor

from deepfool.classifier.classifier import Classifier
from deepfool.classifier.last_hidden_layer import find_hidden_layer, follow_layers
from deepfool.classifier.unmasking import Unmasking, seeing_through
from deepfool.classifier.work import count_work
from deepfool.errors import ModelError, is_out_of_memory
from deepfool.norms import ON_THE_HOST, norm

ALONE = 8 * 2**20
"""Bytes of a row of the whole batch from which on a CPU takes it by itself: several together no longer fit in its
caches, and take longer than one after another. Measured on the networks of the zoo (docs/benchmarks/speed.md)."""


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

    def __init__(self, f: Classifier, x: Tensor, *, hidden: bool = False, unmask: bool = False) -> None:
        """`hidden`: keep what the last hidden layer returns, for `relative_slopes`. `unmask`: see through operations
        that hide gradients; where no gradient exists at all, the rows are zero."""
        self.f = f
        self.x = x.detach().requires_grad_(True)
        self._at_hidden: Tensor | None = None
        if f.row_bytes is None or (hidden and not f.hidden_layer_sought):
            read, self._at_hidden = _measured_forward(f, self.x, seek_hidden=hidden, unmask=unmask)
        elif f.hidden_layer is None or not hidden:
            read = _read(f, self.x, *_run(f, self.x, unmask))
        else:
            with f.hidden_layer.watch() as seen:
                ran = _run(f, self.x, unmask)
            read = _read(f, self.x, *ran)
            self._at_hidden = seen[0] if len(seen) == 1 and len(seen[0]) == len(x) else None
        scores, self._graph, self.masks = read
        """`masks`: with `unmask`, what hides gradients here, by name (see `unmasking.find_masks`)."""
        self.scores = scores.detach()
        """(n, c): what the model says."""
        self.guide = self.scores if self._graph is scores else self._graph.detach()
        """(n, c): the scores whose gradients the rows are, before the last operation if that saturates; else `scores`
        itself."""
        self._rows: Tensor | None = None
        if not self._graph.requires_grad and not unmask:
            raise ModelError(
                "the scores do not depend on the input in a way that torch can differentiate.",
                hint="look for .detach(), .item(), numpy or torch.no_grad() inside the model.",
            )

    def through(self, read: Callable[[Tensor], Tensor] | None) -> Tangent:
        """The same linearisation, of what `read` makes of the scores (n, c) -> (n, m); before rows are taken.

        >>> tangent = Tangent(Classifier(torch.nn.Linear(4, 3)), torch.zeros(5, 4)).through(lambda z: z[:, :2])
        >>> tangent.scores.shape
        torch.Size([5, 2])
        """
        if read is None:
            return self
        same = self.guide is self.scores
        self._graph = read(self._graph)
        self.scores = self._graph.detach() if same else read(self.scores).detach()
        self.guide = self.scores if same else self._graph.detach()
        return self

    def narrow(self, rows: Tensor) -> Tangent:
        """The same linearisation, of these samples only: scores and rows are theirs. Nothing is computed again.

        >>> tangent = Tangent(Classifier(torch.nn.Linear(4, 3)), torch.zeros(5, 4)).narrow(torch.tensor([1, 4]))
        >>> tangent.scores.shape
        torch.Size([2, 3])
        """
        same = self.guide is self.scores
        self._rows, self.scores = rows, self.scores[rows]
        self.guide = self.scores if same else self.guide[rows]
        return self

    def difference_rows(self, classes: Tensor, reference: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield (columns of `classes`, gradients (n, columns, features)) of f_class - f_reference, chunk by chunk.

        `classes` is (n, k), `reference` (n,). The graph is freed with the last chunk.
        """
        k = classes.shape[1]
        size = self.rows_at_once(k)
        for start in range(0, k, size):
            columns = slice(start, min(start + size, k))
            rows = self._pull_back(self._seeds(classes[:, columns], reference), keep=columns.stop < k)
            yield columns, self._of_samples(rows.reshape(len(rows), len(self.x), -1)).transpose(0, 1)

    def row(self, seeds: Tensor) -> Tensor:
        """The gradient (n, features) of one combination of the scores per sample, `seeds` (n, c); frees the graph.

        >>> tangent = Tangent(Classifier(torch.nn.Linear(4, 3)), torch.zeros(2, 4))
        >>> tangent.row(difference(tangent.scores, torch.tensor([1, 2]), torch.tensor([0, 0]))).shape
        torch.Size([2, 4])
        """
        row = self._differentiate(seeds, keep=False)
        return row.reshape(len(seeds), -1)

    def relative_slopes(self, reference: Tensor) -> Tensor | None:
        """(n, c): how steep f_k - f_reference is at the last hidden layer; None where that cannot be had.

        At the input it is about as steep, up to a factor per sample. Call this before taking rows.

        >>> f = Classifier(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2)))
        >>> Tangent(f, torch.ones(5, 4), hidden=True).relative_slopes(torch.zeros(5, dtype=torch.long)).shape
        torch.Size([5, 2])
        """
        at_hidden, self._at_hidden = self._at_hidden, None
        if at_hidden is None or not self.f.batched_rows:
            return None
        n, c = self.scores.shape
        per_row = max(1, 4 * at_hidden.numel() * at_hidden.element_size())
        slopes, size = [], max(1, self.f.memory_budget // 8 // per_row)  # small next to what the rows will take
        for start in range(0, c, size):
            classes = torch.arange(start, min(start + size, c), device=self.scores.device)
            rows = self._pull_back_together(self._seeds(classes.expand(n, -1), reference), at_hidden)
            if rows is None:  # no batching rule
                self.f.hidden_layer = None
                return None
            slopes.append(norm(self._of_samples(rows.reshape(len(rows), len(self.x), -1)), 2))
        return torch.cat(slopes).T

    @property
    def takes_rows_alone(self) -> bool:
        """Whether a row of this batch is so large that several are faster one after another than together."""
        return self.x.device.type in ON_THE_HOST and (self.f.row_bytes or 0) * len(self.x) >= ALONE

    def rows_at_once(self, k: int) -> int:
        """How many rows fit in the memory budget of the classifier (at least one)."""
        per_row = max(1, (self.f.row_bytes or 0) * len(self.x))
        return max(1, min(k, self.f.memory_budget // per_row))

    def _seeds(self, classes: Tensor, reference: Tensor) -> Tensor:
        """(k, n, c): what to pull back for the gradients of f_class - f_reference, `classes` being (n, k)."""
        n, k = classes.shape
        seeds = torch.zeros(k, n, self.scores.shape[1], dtype=self.scores.dtype, device=self.scores.device)
        seeds.scatter_(2, classes.T.unsqueeze(-1), 1.0)
        seeds.scatter_add_(2, reference.view(1, n, 1).expand(k, n, 1), -torch.ones_like(seeds[..., :1]))
        if self._rows is None:
            return seeds
        whole = torch.zeros(k, *self._graph.shape, dtype=seeds.dtype, device=seeds.device)
        return whole.index_copy_(1, self._rows, seeds)

    def _of_samples(self, rows: Tensor) -> Tensor:
        """Of rows (k, n, d), those of the samples that this was narrowed to."""
        return rows if self._rows is None else rows[:, self._rows]

    def _pull_back(self, seeds: Tensor, *, keep: bool) -> Tensor:
        """Vector-Jacobian products for a stack of seeds, batched if the model's operators allow it."""
        if len(seeds) > 1 and self.f.batched_rows and self._graph.requires_grad and not self.takes_rows_alone:
            rows = self._pull_back_together(seeds, self.x)
            if rows is not None:
                return rows
            self.f.batched_rows = False
        single = torch.empty((len(seeds), *self.x.shape), dtype=self.x.dtype, device=self.x.device)
        for i, seed in enumerate(seeds):  # one by one into their place: a list to stack would hold them twice
            more = keep or i < len(seeds) - 1
            single[i] = self._differentiate(seed, keep=more)
        return single

    def _differentiate(self, seed: Tensor, *, keep: bool) -> Tensor:
        """The gradient of one combination of the scores, shaped as x."""
        if not self._graph.requires_grad:
            return torch.zeros_like(self.x)
        try:
            # Scores that hang on the weights alone, as behind a detached input, have a gradient of zero.
            (row,) = torch.autograd.grad(self._graph, self.x, seed, retain_graph=keep, materialize_grads=True)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            raise ModelError(
                f"the model cannot be differentiated: its backward pass raised {type(error).__name__}: {error}",
                hint="look for changes in place, or for operators without a gradient, inside the model.",
            ) from error
        return row

    def _pull_back_together(self, seeds: Tensor, to: Tensor) -> Tensor | None:
        """Vector-Jacobian products with respect to `to`, in one backward pass; None if the operators cannot."""
        try:
            with warnings.catch_warnings():
                # torch says "no batching rule" in a warning and then goes slowly: take that as a no.
                warnings.filterwarnings("error", message=".*batching rule.*")
                (rows,) = torch.autograd.grad(self._graph, to, seeds, is_grads_batched=True, retain_graph=True)
            return rows
        except (RuntimeError, NotImplementedError, UserWarning) as error:
            if is_out_of_memory(error):
                raise
            return None


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


def _run(f: Classifier, x: Tensor, unmask: bool) -> tuple[Tensor, Unmasking | None]:
    """What the model returns for x, and what was seen of gradients that it hides."""
    if not unmask:
        return f.run(x), None
    with seeing_through(f) as mode:
        return f.run(x), mode


Read: TypeAlias = tuple[Tensor, Tensor, tuple[str, ...]]
"""The scores, those to take gradients of, and the names of what hides gradients."""


def _read(f: Classifier, x: Tensor, returned: Tensor, mode: Unmasking | None) -> Read:
    z = f.read(returned, x)
    if mode is None:
        return z, z, ()
    guide = mode.guide(f, returned, x)
    return z, z if guide is None else guide, mode.names(f, returned, x)


def _measured_forward(f: Classifier, x: Tensor, *, seek_hidden: bool, unmask: bool) -> tuple[Read, Tensor | None]:
    """A forward pass that notes the largest tensor kept for the backward pass, to foresee what a row will take, and
    looks for the last hidden layer if asked to. Returns what was read, and the tensor at that layer."""
    largest = x[0].numel() * x.element_size()

    def note(kept: Tensor) -> Tensor:
        nonlocal largest
        if kept.ndim and len(kept) == len(x):  # activations have the batch first; weights do not grow with rows
            largest = max(largest, kept.numel() // len(x) * kept.element_size())
        return kept.detach()  # itself, it would hold the graph that holds it, and neither would ever be freed

    with (
        torch.autograd.graph.saved_tensors_hooks(note, lambda kept: kept),
        follow_layers(f.model if seek_hidden else None) as calls,
        count_work(f.model if seek_hidden else None) as work,
    ):
        returned, mode = _run(f, x, unmask)
    read = _read(f, x, returned, mode)
    # A backward step holds the incoming and the outgoing gradient, and a work copy of each.
    f.row_bytes = math.ceil(4 * largest)
    f.hidden_layer_sought = f.hidden_layer_sought or seek_hidden
    f.row_work = work.products // len(x) if seek_hidden else f.row_work
    found = find_hidden_layer(calls, x, read[1], getattr(f.model, "input_entries", None))
    if found is None:
        return read, None
    f.hidden_layer, at_hidden = found
    return read, at_hidden
