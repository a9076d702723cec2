"""Projected gradient ascent on the loss (Madry et al.: "Towards deep learning models resistant to adversarial
attacks", ICLR 2018): the inner loop of adversarial training.

It moves each image to where the loss is high, inside a ball and the box [0, 1]. The attacks of this package answer
another question, how small a perturbation can be; they cost more, and are what a trained network should be judged by.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from deepfool.errors import InputError

STEP = 2.5
"""The steps together may go this many times as far as the radius, as in Madry et al."""


def climb(
    score: Callable[[Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    *,
    norm: str,
    eps: float,
    steps: int,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Images at most `eps` from `x` (norm "l2" or "linf") and in [0, 1], with a high loss; the start is random.

    >>> x, y = torch.full((1, 2), 0.5), torch.tensor([0])
    >>> climb(lambda x: x, x, y, norm="linf", eps=0.1, steps=20)
    tensor([[0.4000, 0.6000]])
    """
    if norm not in ("l2", "linf"):
        raise InputError(f"norm must be 'l2' or 'linf', got {norm!r:.80}.")
    step = STEP * eps / steps
    noise = 2 * torch.rand(x.shape, generator=generator).to(x) - 1
    point = _project(x, x + eps * noise, norm, eps)
    for _ in range(steps):
        point.requires_grad_()
        loss = cross_entropy(score(point), y, reduction="sum")  # a sum: one sample's step does not depend on the others
        (gradient,) = torch.autograd.grad(loss, point)
        direction = gradient.sign() if norm == "linf" else gradient / _length(gradient)
        point = _project(x, point.detach() + step * direction, norm, eps)
    return point


def cross_entropy(scores: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    """In float32 or wider, whatever the network computes in.

    >>> cross_entropy(torch.zeros(1, 2, dtype=torch.bfloat16), torch.tensor([0]))
    tensor(0.6931)
    """
    return F.cross_entropy(scores.to(torch.promote_types(scores.dtype, torch.float32)), y, reduction=reduction)


def _project(x: Tensor, point: Tensor, norm: str, eps: float) -> Tensor:
    """Into the ball, then into the box; the box contains x, so that the second does not undo the first."""
    move = point - x
    move = move.clamp(-eps, eps) if norm == "linf" else move * (eps / _length(move)).clamp(max=1)
    return (x + move).clamp(0, 1)


def _length(v: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(v, dim=tuple(range(1, v.ndim)), keepdim=True)
    return length.clamp_min(1e-12)
