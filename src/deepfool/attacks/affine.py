"""The exact answer for affine classifiers f(x) = W x + b: equations 3, 8 and 9 of the paper, any p-norm."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from deepfool.errors import InputError
from deepfool.norms import check_p, distance, norm, step, step_in_box


@dataclass(frozen=True)
class Nearest:
    """The point of the decision boundary nearest to each input."""

    r: Tensor
    """(n, d): the smallest perturbation that reaches the boundary (where the two scores are equal)."""
    norm: Tensor
    """(n,): its p-norm, the robustness Delta(x_0); infinite where no boundary can be reached."""
    label: Tensor
    """(n,): the class decided at x_0."""
    nearest_label: Tensor
    """(n,): the class on the other side, l_hat in the paper; -1 where there is none."""


def affine(
    weight: Tensor,
    bias: Tensor,
    x: Tensor,
    *,
    p: float = 2,
    bounds: tuple[float | Tensor, float | Tensor] | None = None,
) -> Nearest:
    """The distance from each row of x (n, d) to the boundary of an affine classifier, in closed form.

    `weight` is (c, d) with `bias` (c,), or (d,) with a single bias for a binary classifier decided by the sign.

    >>> answer = affine(torch.eye(2), torch.zeros(2), torch.tensor([[3.0, 1.0]]))
    >>> answer.r.round(decimals=4), answer.norm, answer.nearest_label
    (tensor([[-1., 1.]]), tensor([1.4142]), tensor([1]))
    >>> affine(torch.tensor([3.0, 4.0]), torch.tensor(0.0), torch.tensor([[3.0, 4.0]])).norm
    tensor([5.])
    """
    p = check_p(p)
    if weight.ndim == 1:  # a single score f is the pair of scores (0, f)
        weight = torch.stack([torch.zeros_like(weight), weight])
        bias = torch.stack([torch.zeros_like(bias.reshape(())), bias.reshape(())])
    c, d = weight.shape
    if x.ndim != 2 or x.shape[1] != d or bias.shape != (c,):
        raise InputError(
            f"expected x (n, {d}) and bias ({c},) for a weight of shape ({c}, {d}), "
            f"got {tuple(x.shape)} and {tuple(bias.shape)}."
        )
    scores = x @ weight.T + bias
    label = scores.argmax(1)
    best = torch.full((len(x),), math.inf, dtype=x.dtype, device=x.device)
    best_r, best_k = torch.zeros_like(x), torch.full_like(label, -1)
    for k in range(c):
        w_k = weight[k] - weight[label]
        gap = (scores.gather(1, label[:, None])[:, 0] - scores[:, k]).clamp_min(0)
        if bounds is None:
            r_k, size = step(gap, w_k, p), distance(gap, w_k, p)
        else:
            lower, upper = (torch.as_tensor(v, dtype=x.dtype, device=x.device) for v in bounds)
            room = torch.where(w_k > 0, upper - x, x - lower)
            r_k, possible = step_in_box(gap, w_k, room, p)
            size = torch.where(possible, norm(r_k, p), math.inf)
        closer = (size < best) & (label != k)
        best = torch.where(closer, size, best)
        best_r = torch.where(closer[:, None], r_k, best_r)
        best_k = torch.where(closer, k, best_k)
    return Nearest(best_r, best, label, best_k)
