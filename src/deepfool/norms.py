"""What depends on the norm, and nothing else: lp norms, their duals, and the smallest step to a hyperplane.

Everything works on the last dimension and batches over the others, so one call serves (samples, features) and
(samples, classes, features) alike. A hyperplane is given by its normal `w` and the `gap` that a step has to gain:
the smallest `r`, in the p-norm, with `w . r = gap` (gap >= 0). Steps inside a box are in `boxes`.

p = 0 counts the entries that are not zero. It is no norm, but it has its place here: it is a size. Features may be
counted in groups there: `channels` of them, one from each of so many equal parts of v, are the colours of a pixel, and
count once.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from deepfool.errors import InputError

ON_THE_HOST = ("cpu",)
"""Devices whose numbers Python sees without waiting. Elsewhere a look at them stops the queue of work, so what is
rarely needed is computed rather than asked for (tests/attacks/test_syncs.py counts)."""

GLANCE = 4
"""There, after how many rounds of an iteration it is asked whether it has ended."""


def check_p(p: float) -> float:
    """`p` as a float, or an error if no norm has it. 0 counts the features that change.

    >>> check_p("inf"), check_p(0)
    (inf, 0.0)
    """
    try:
        value = math.nan if isinstance(p, bool | np.bool_) else float(p)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        value = math.nan
    if not (value >= 1 or value == 0):
        raise InputError(
            f"p must be 0 or a number in [1, inf], got {p!r:.80}.",
            hint="1, 2 and inf are the usual norms; 0 counts the features that change.",
        )
    return abs(value)  # not -0.0


def refuse_zero(p: float, who: str, hint: str = "smallest, sparsefool and sigma_zero count features.") -> float:
    """`p` as a float, for what works in the norms proper only: an error if it is 0.

    >>> refuse_zero(0, "certify")
    Traceback (most recent call last):
    ...
    deepfool.errors.InputError: certify works in the norms p >= 1, got 0, which counts the features that change. ...
    """
    value = check_p(p)
    if value == 0:
        raise InputError(f"{who} works in the norms p >= 1, got 0, which counts the features that change.", hint=hint)
    return value


def dual(p: float) -> float:
    """The exponent q = p / (p - 1) of the dual norm.

    >>> dual(2), dual(1), dual(math.inf), dual(4)
    (2.0, inf, 1.0, 1.3333333333333333)
    """
    if p == 1:
        return math.inf
    return 1.0 if p == math.inf else p / (p - 1)


def norm(v: Tensor, p: float, channels: int = 1) -> Tensor:
    """The p-norm over the last dimension, without overflow or underflow on the way; for p = 0 a count.

    >>> norm(torch.tensor([[3.0, 4.0], [0.0, -2.0]]), 2)
    tensor([5., 2.])
    >>> norm(torch.tensor([3e30, 4e30]), 2)
    tensor(5.0000e+30)
    >>> v = torch.tensor([1.0, 0.0, 2.0, 0.0])
    >>> norm(v, 0), norm(v, 0, channels=2)
    (tensor(2.), tensor(1.))
    """
    if v.shape[-1] == 0:
        return v.new_zeros(v.shape[:-1])
    if p == 0:
        return by_unit(v != 0, channels).any(-2).sum(-1).to(v.dtype)
    if p == math.inf:
        return v.abs().amax(-1)  # torch's own norm takes ten times as long here
    if p == 1:
        return v.abs().sum(-1)  # and here five times
    if p == 2:
        plain = _plain_norm(v, 2)
        if v.device.type in ON_THE_HOST and plain.numel():
            least, most = plain.aminmax()
            if least.item() > 1e-15 and most.item() < 1e15:
                return plain
        # Squares of tiny or huge entries leave the range of float32: only there pay for the scaled form.
        doubtful = ~((plain > 1e-15) & (plain < 1e15))
        if v.device.type not in ON_THE_HOST:
            return torch.where(doubtful, _scaled_norm(v, 2), plain)
        plain[doubtful] = _scaled_norm(v[doubtful], 2)
        return plain
    return _scaled_norm(v, p)


def seem_finite(v: Tensor) -> bool:
    """Whether a sum shows that all entries are finite, for a tenth of the time that it takes to look at each.

    If not, they may still be (the sum of large ones overflows); and on a device whose numbers are not at hand nobody
    asks.

    >>> seem_finite(torch.tensor([[1.0, 2.0]])), seem_finite(torch.tensor([[1.0, math.inf], [0.0, -math.inf]]))
    (True, False)
    """
    return v.device.type in ON_THE_HOST and math.isfinite(v.sum().item())


def norm_of_whole(x: Tensor, p: float, channels: int = 1) -> Tensor:
    """What the size of a perturbation is a share of: the p-norm of x, and for p = 0 how many units x has.

    >>> x = torch.tensor([[3.0, 0.0, 4.0, 0.0]])
    >>> norm_of_whole(x, 2), norm_of_whole(x, 0)
    (tensor([5.]), tensor([4.]))
    """
    return norm(torch.ones_like(x) if p == 0 else x, p, channels)


def by_unit(v: Tensor, channels: int) -> Tensor:
    """Features (..., d) as (..., channels, units): what counts once together stands in a column.

    >>> by_unit(torch.arange(6), 2).tolist()
    [[0, 1, 2], [3, 4, 5]]
    """
    return v.view(*v.shape[:-1], channels, v.shape[-1] // channels)


def _scaled_norm(v: Tensor, p: float) -> Tensor:
    scale = v.abs().amax(-1)
    safe = torch.where((scale > 0) & scale.isfinite(), scale, torch.ones_like(scale))
    return safe * _plain_norm(v / safe.unsqueeze(-1), p)


def _plain_norm(v: Tensor, p: float) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(v, p, dim=-1)
    return length


def distance(gap: Tensor, w: Tensor, p: float) -> Tensor:
    """The p-distance to the hyperplane, |f'| / ||w'||_q in the paper; infinite where w is zero or not finite.

    >>> distance(torch.tensor([10.0, 1.0]), torch.tensor([[3.0, 4.0], [0.0, 0.0]]), 2)
    tensor([2., inf])
    """
    if p == 0:  # with no box, one feature is enough
        return torch.where(reach(gap, norm(w, 1)).isfinite(), 1.0, math.inf).to(gap.dtype)
    return reach(gap, norm(w, dual(p)))


def reach(gap: Tensor, length: Tensor) -> Tensor:
    """The distance to the hyperplane if ||w||_q is known already; infinite where it is zero or not finite.

    >>> reach(torch.tensor([10.0, 1.0]), torch.tensor([5.0, 0.0]))
    tensor([2., inf])
    """
    usable = (length > 0) & length.isfinite() & gap.isfinite()
    return torch.where(usable, gap / torch.where(usable, length, torch.ones_like(length)), math.inf)


def direction(w: Tensor, p: float) -> Tensor:
    """The u with ||u||_p = 1 that gains most: w . u = ||w||_q. It is |w|^(q-1) * sign(w), scaled; one-hot for p = 1.

    >>> direction(torch.tensor([3.0, -4.0]), math.inf)
    tensor([ 1., -1.])
    >>> direction(torch.tensor([3.0, -4.0]), 1)
    tensor([ 0., -1.])
    """
    if p == math.inf:
        return w.sign()
    if p == 1:
        largest = w.abs().argmax(-1, keepdim=True)
        return torch.zeros_like(w).scatter_(-1, largest, w.gather(-1, largest).sign())
    u = power(w, p)
    return u.copysign(w) / norm(u, p).clamp_min(torch.finfo(w.dtype).tiny).unsqueeze(-1)


def step(gap: Tensor, w: Tensor, p: float) -> Tensor:
    """The smallest r in the p-norm with w . r = gap. Where w is zero the answer is zero: ask `distance` first.

    >>> step(torch.tensor(10.0), torch.tensor([3.0, 4.0]), 2)
    tensor([1.2000, 1.6000])
    """
    if p == 2:  # gap * w / ||w||^2 in one pass over w
        length = norm(w, 2)
        factor = torch.where(length > 0, gap / length / length, torch.zeros_like(length))
        if w.device.type in ON_THE_HOST and bool(factor.isfinite().all()):
            return factor.unsqueeze(-1) * w
    far = distance(gap, w, p)
    return torch.where(far.isfinite(), far, torch.zeros_like(far)).unsqueeze(-1) * direction(w, p)


def project_on_ball(v: Tensor, radius: Tensor, p: float) -> Tensor:
    """The point of the ball ||u||_p <= radius nearest to v in the l2 norm, for p = 1, 2 and inf.

    >>> v, radius = torch.tensor([[3.0, -4.0]]), torch.tensor([2.0])
    >>> project_on_ball(v, radius, 2), project_on_ball(v, radius, math.inf), project_on_ball(v, radius, 1)
    (tensor([[ 1.2000, -1.6000]]), tensor([[ 2., -2.]]), tensor([[ 0.5000, -1.5000]]))
    """
    radius = radius.unsqueeze(-1)
    if p == math.inf:
        return v.clamp(-radius, radius)
    length = norm(v, p).unsqueeze(-1)
    inside = length <= radius
    if p == 2:
        return torch.where(inside, v, v * (radius / length.clamp_min(torch.finfo(v.dtype).tiny)))
    if p != 1:
        raise InputError(f"balls are projected on for p = 1, 2 and inf, got {p!r}.")
    # Shrink every entry by the same amount, those below it to zero: the amount is a mean over the k largest entries,
    # for the last k at which the k-th of them still exceeds it.
    largest = v.abs().sort(-1, descending=True).values
    count = torch.arange(1, v.shape[-1] + 1, device=v.device, dtype=v.dtype)
    shrink = (largest.cumsum(-1) - torch.where(inside, length, radius)) / count
    k = (largest > shrink).sum(-1, keepdim=True).clamp_min(1)
    shrunk = (v.abs() - shrink.gather(-1, k - 1)).clamp_min(0).copysign(v)
    return torch.where(inside, v, shrunk)


def power(w: Tensor, p: float) -> Tensor:
    """|w|^(q-1), after scaling by the largest entry so that large powers stay in range (1 < p < inf)."""
    a = w.abs()
    return raise_to(a, p, a.amax(-1))


def raise_to(a: Tensor, p: float, largest: Tensor) -> Tensor:
    """`power` of entries a >= 0 of which the `largest` is known."""
    a = a / largest.clamp_min(torch.finfo(a.dtype).tiny).unsqueeze(-1)
    return a if p == 2 else a ** (1 / (p - 1))
