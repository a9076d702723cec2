"""Alternatives: how an aim reads what the model returns.

There is a column for the decision at x_0 and one for each way to change it, which is taken once its column is the
largest. Attacks see alternatives where they would see class scores, with the gradients of the alternatives, and leave
the label (`Leave`) or reach one (`Reach`) as ever. So every geometry, box, mask and norm holds for every aim, and no
attack asks which aim it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from deepfool.attacks.shared.aims import Aim, Confidence, Flip, Margin, Other, Passes, Top, Within
from deepfool.attacks.shared.arguments import Labels, as_tensor, check_labels
from deepfool.errors import InputError

Read = Callable[[Tensor, Tensor], Tensor]
"""From rows and what the model returns for them, (k, c), to alternatives (k, m), differentiably."""


@dataclass(frozen=True)
class Opened:
    """An aim at the inputs: which alternative holds there, and how to read the others."""

    label: Tensor
    """(n,): the alternative at x_0; for classifiers, the class to leave."""
    right: Tensor
    """(n,): whether the labels that were given agree with it; true without labels."""
    read: Read | None = None
    """None: the scores as they are."""
    offset: float = 0.0
    """How large a number is taken off the outputs: it adds to what may be rounding."""


@singledispatch
def open_aim(aim: Aim, z: Tensor, labels: Labels | None = None, target: Tensor | None = None) -> Opened:
    """The aim at the outputs z (n, c) of the inputs; `target` are the classes to reach, if any.

    >>> open_aim(Within(1.0), torch.tensor([[3.0]])).label
    tensor([0])
    """
    raise TypeError(f"nothing says how to read the aim {aim}")


@open_aim.register(Other)
def _open_other(aim: Other, z: Tensor, labels: Labels | None = None, target: Tensor | None = None) -> Opened:
    label = z.argmax(1)
    return Opened(label, _agree(labels, label, z))


@open_aim.register(Top)
def _open_top(aim: Top, z: Tensor, labels: Labels | None = None, target: Tensor | None = None) -> Opened:
    c = z.shape[1]
    if aim.k >= c:
        raise InputError(f"goal {aim} needs more than {aim.k} classes, but the model has {c}.")
    label = z.argmax(1) if labels is None else check_labels(labels, "labels", len(z), z)
    ahead = (z > z.gather(1, label[:, None])).sum(1)

    def read(rows: Tensor, z: Tensor) -> Tensor:
        with torch.no_grad():
            rivals = torch.nan_to_num(z, nan=-math.inf).scatter(1, label[rows, None], -math.inf)
            best = rivals.topk(aim.k, dim=1).indices
            above, last = best[:, :-1], best[:, -1:]
            source = torch.arange(c, device=z.device).expand_as(z).scatter(1, above, last.expand_as(above))
            # By a unit of rounding less, so that the class in the last place is the largest, and named.
            of = torch.finfo(z.dtype)
            below = (2 * of.eps * z.gather(1, last)).abs().clamp_min(of.tiny)
            less = torch.zeros_like(z).scatter(1, above, below.expand_as(above))
        return z.gather(1, source) - less

    return Opened(label, ahead < aim.k, None if aim.k == 1 else read)


@open_aim.register(Margin)
def _open_margin(aim: Margin, z: Tensor, labels: Labels | None = None, target: Tensor | None = None) -> Opened:
    label = z.argmax(1)
    handicap = torch.full_like(z, aim.ahead).scatter(1, label[:, None], 0.0)
    if target is not None:
        handicap = torch.zeros_like(z).scatter(1, target[:, None], aim.ahead)
    return Opened(label, _agree(labels, label, z), lambda rows, z: z - handicap[rows].to(z.dtype), aim.ahead)


@open_aim.register(Confidence)
def _open_confidence(aim: Confidence, z: Tensor, labels: Labels | None = None, target: Tensor | None = None) -> Opened:
    label, needed = z.argmax(1), math.log(aim.share / (1 - aim.share))
    counts = torch.ones_like(z).scatter(1, label[:, None], 0.0)
    if target is not None:
        counts = torch.zeros_like(z).scatter(1, target[:, None], 1.0)

    def read(rows: Tensor, z: Tensor) -> Tensor:
        return counts[rows].to(z.dtype) * (z - _log_sum_of_others(z) - needed)

    return Opened(label, _agree(labels, label, z), read, abs(needed))


@open_aim.register(Flip)
def _open_flip(aim: Flip, z: Tensor, labels: Labels | None = None, target: Tensor | None = None) -> Opened:
    n, c = z.shape
    if aim.label is not None and aim.label >= c:
        raise InputError(f"goal {aim} needs a label in [0, {c - 1}]: the model has {c}.")
    counts = slice(None) if aim.label is None else slice(aim.label, aim.label + 1)
    away = torch.where(z > 0, -1.0, 1.0).to(z.dtype)[:, counts]

    def read(rows: Tensor, z: Tensor) -> Tensor:
        return torch.cat([away[rows] * z[:, counts], torch.zeros_like(z[:, :1])], 1)

    right = torch.ones(n, dtype=torch.bool, device=z.device)
    if labels is not None:
        right = (_check_on_off(labels, n, c, z.device) == (z > 0))[:, counts].all(1)
    return Opened(torch.full((n,), away.shape[1], device=z.device), right, read)


@open_aim.register(Within)
def _open_within(aim: Within, z: Tensor, labels: Labels | None = None, target: Tensor | None = None) -> Opened:
    y = z.detach().clone() if labels is None else _check_values(labels, z)
    right = ((z - y).abs() < aim.width).all(1)
    if labels is None and not bool(right[z.isfinite().all(1)].all()):
        raise InputError(f"goal {aim} must be wider than 0.")

    def read(rows: Tensor, z: Tensor) -> Tensor:
        off = z - y[rows]
        return torch.cat([torch.zeros_like(z[:, :1]), off - aim.width, -off - aim.width], 1)

    label = torch.zeros(len(z), dtype=torch.long, device=z.device)
    return Opened(label, right, read, aim.width)


@open_aim.register(Passes)
def _open_passes(aim: Passes, z: Tensor, labels: Labels | None = None, target: Tensor | None = None) -> Opened:
    above = z > aim.value
    away = torch.where(above, -1.0, 1.0).to(z.dtype)
    right = torch.ones(len(z), dtype=torch.bool, device=z.device)
    if labels is not None:
        right = ((_check_values(labels, z) > aim.value) == above).all(1)

    def read(rows: Tensor, z: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(z[:, :1]), away[rows] * (z - aim.value)], 1)

    label = torch.zeros(len(z), dtype=torch.long, device=z.device)
    return Opened(label, right, read, abs(aim.value))


def _log_sum_of_others(z: Tensor) -> Tensor:
    """(n, c): log sum_{j != k} exp z_j for each k, also where one class has all of the probability.

    >>> _log_sum_of_others(torch.tensor([[100.0, 0.0, 0.0]]))
    tensor([[  0.6931, 100.0000, 100.0000]])
    """
    best = torch.zeros_like(z, dtype=torch.bool).scatter(1, z.argmax(1, keepdim=True), True)
    without = z.masked_fill(best, -math.inf).logsumexp(1, keepdim=True)
    share = z.softmax(1).masked_fill(best, 0.0)  # of the best class it may round to 1
    return torch.where(best, without, z.logsumexp(1, keepdim=True) + torch.log1p(-share))


def _agree(labels: Labels | None, label: Tensor, z: Tensor) -> Tensor:
    if labels is None:
        return torch.ones_like(label, dtype=torch.bool)
    return check_labels(labels, "labels", len(z), z) == label


def _check_on_off(labels: Any, n: int, c: int, device: torch.device) -> Tensor:
    """(n, c) booleans: which labels are on."""
    given = as_tensor(labels, "labels", f"zeros and ones, one per sample and label, ({n}, {c})", device)
    if given.shape != (n, c) or not bool(((given == 0) | (given == 1)).all()):
        raise InputError(f"labels must be zeros and ones, one per sample and label, ({n}, {c}), {_tell(given)}.")
    return given == 1


def _check_values(labels: Any, z: Tensor) -> Tensor:
    """(n, c): the true values of the outputs."""
    n, c = z.shape
    given = as_tensor(labels, "labels", f"the true values, one per sample and output, ({n}, {c})", z.device)
    if given.shape not in ((n, c), (n, 1) if c == 1 else (n, c), (n,) if c == 1 else (n, c)) or given.is_complex():
        raise InputError(f"labels must be the true values, one per sample and output, ({n}, {c}), {_tell(given)}.")
    if not bool(given.isfinite().all()):
        raise InputError("labels must be finite where they are the true values of a regression model.")
    return given.to(z.dtype).reshape(n, c)


def _tell(given: Tensor) -> str:
    return f"got {tuple(given.shape)}, {given.dtype}"


def judge(aim: Aim, before: Tensor, after: Tensor, label: Tensor) -> Tensor:
    """(n,): the alternative at points where the model returns `after`, and `before` at the inputs, whose alternatives
    are `label`.

    >>> judge(Within(1.0), torch.tensor([[3.0]]), torch.tensor([[4.5]]), torch.tensor([0]))
    tensor([1])
    """
    begun = open_aim(aim, before, label if isinstance(aim, Top) else None)
    z = after if begun.read is None else begun.read(torch.arange(len(after), device=after.device), after)
    return z.argmax(1)
