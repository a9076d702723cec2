"""The exact answer for affine classifiers f(x) = W x + b: equations 3, 8 and 9 of the paper, any p-norm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deepfool.attacks.shared.arguments import check_bounds, check_inputs, check_room, check_weights
from deepfool.attacks.shared.boundaries import NearestBoundary
from deepfool.errors import InputError
from deepfool.norms import check_p, distance
from deepfool.values import check_count


@dataclass(frozen=True)
class Nearest:
    """The point of the decision boundary nearest to each input."""

    r: Tensor
    """(n, d): the smallest perturbation that reaches the boundary (where the two scores are equal)."""
    norm: Tensor
    """(n,): its p-norm, for p = 0 how many features change: the robustness Delta(x_0). Infinite where no boundary can
    be reached."""
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
    channels: int = 1,
    weights: Tensor | Sequence[float] | None = None,
) -> Nearest:
    """The distance from each row of x (n, d) to the boundary of an affine classifier, in closed form.

    `weight` is (c, d) with `bias` (c,), or (d,) with a single bias for a binary classifier decided by the sign.
    p = 0 counts the features that change, and needs bounds: the features that gain most at their bounds are the fewest.
    With `weights`, one positive number per feature, the norm is that of weights * r.
    With `channels` = 3, x is made of 3 equal parts, the colours of an image, and the pixels are counted.

    >>> answer = affine(torch.eye(2), torch.zeros(2), torch.tensor([[3.0, 1.0]]))
    >>> answer.r.round(decimals=4), answer.norm, answer.nearest_label
    (tensor([[-1., 1.]]), tensor([1.4142]), tensor([1]))
    >>> affine(torch.tensor([3.0, 4.0]), torch.tensor(0.0), torch.tensor([[3.0, 4.0]])).norm
    tensor([5.])
    >>> affine(torch.eye(2), torch.zeros(2), torch.tensor([[0.9, 0.3]]), p=0, bounds=(0, 1)).norm
    tensor([1.])
    """
    p, channels = check_p(p), check_count(channels, "channels")
    weight, bias = _check(weight, bias, x)
    c = len(weight)
    lower, upper = check_bounds(bounds, x, x)
    check_room(p, lower, upper)
    if channels > 1 and (p != 0 or x.shape[1] % channels):
        raise InputError(
            f"channels are parts of equal size that p = 0 counts as one, got {channels} of {x.shape[1]} features with "
            f"p = {p:g}."
        )
    w = x.new_ones(x.shape[1]) if weights is None else check_weights(weights, x, p).to(x)
    x, weight = x * w, weight / w  # in these coordinates the norm is the plain one
    lower, upper = (None if end is None else end * w for end in (lower, upper))
    scores = x @ weight.T + bias
    label = scores.argmax(1)
    everyone, nearest = torch.arange(len(x), device=x.device), NearestBoundary(x, lower, upper, p, channels=channels)
    for k in range(c):  # one class at a time: all of them at once would take c times the memory of x
        w_k = weight[k] - weight[label]  # zero for the label itself, whose boundary is nowhere
        gap = (scores.gather(1, label[:, None])[:, 0] - scores[:, k]).clamp_min(0)
        classes = torch.full_like(everyone, k)
        nearest.offer(everyone, *(v[:, None] for v in (classes, gap, w_k, distance(gap, w_k, p))))
    return Nearest(nearest.step / w, nearest.distance, label, nearest.l_hat)


def _check(weight: Tensor, bias: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Weight (c, d) and bias (c,) of a classifier that takes these x (n, d), or an error."""
    check_inputs(weight, "weight")
    check_inputs(x)
    check_inputs(bias.reshape(-1) if isinstance(bias, Tensor) and bias.ndim == 0 else bias, "bias")
    if not (weight.dtype == bias.dtype == x.dtype and weight.device == bias.device == x.device):
        got = ", ".join(f"{each.dtype} on {each.device}" for each in (weight, bias, x))
        raise InputError(f"weight, bias and x must be of one type and on one device, got {got}.")
    if weight.ndim == 1 and bias.numel() == 1:  # a single score f is the pair of scores (0, f)
        weight = torch.stack([torch.zeros_like(weight), weight])
        bias = torch.stack([torch.zeros_like(bias.reshape(())), bias.reshape(())])
    if weight.ndim != 2 or bias.shape != weight.shape[:1] or len(weight) == 0:
        raise InputError(
            "weight must be (c, d) with a bias (c,), or (d,) with a single bias, "
            f"got {tuple(weight.shape)} and {tuple(bias.shape)}."
        )
    if x.ndim != 2 or x.shape[1] != weight.shape[1]:
        raise InputError(
            f"expected x (n, {weight.shape[1]}) for a weight of shape {tuple(weight.shape)}, got {tuple(x.shape)}."
        )
    return weight, bias
