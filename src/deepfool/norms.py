"""What depends on the norm, and nothing else: lp norms, their duals, and the smallest step to a hyperplane.

Everything works on the last dimension and batches over the others, so one call serves (samples, features) and
(samples, classes, features) alike. A hyperplane is given by its normal `w` and the `gap` that a step has to gain:
the smallest `r`, in the p-norm, with `w . r = gap` (gap >= 0). Inside a box the step also keeps to `room`, how far
each feature may move in the direction that gains.
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
    """`p` as a float, or an error if no norm has it.

    >>> check_p("inf")
    inf
    """
    try:
        value = math.nan if isinstance(p, bool | np.bool_) else float(p)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        value = math.nan
    if not value >= 1:
        raise InputError(f"p must be a number in [1, inf], got {p!r:.80}.", hint="1, 2 and inf are the usual norms.")
    return value


def dual(p: float) -> float:
    """The exponent q = p / (p - 1) of the dual norm.

    >>> dual(2), dual(1), dual(math.inf), dual(4)
    (2.0, inf, 1.0, 1.3333333333333333)
    """
    if p == 1:
        return math.inf
    return 1.0 if p == math.inf else p / (p - 1)


def norm(v: Tensor, p: float) -> Tensor:
    """The p-norm over the last dimension, without overflow or underflow on the way.

    >>> norm(torch.tensor([[3.0, 4.0], [0.0, -2.0]]), 2)
    tensor([5., 2.])
    >>> norm(torch.tensor([3e30, 4e30]), 2)
    tensor(5.0000e+30)
    """
    if v.shape[-1] == 0:
        return v.new_zeros(v.shape[:-1])
    if p in (1, math.inf):
        return _plain_norm(v, p)
    if p == 2:
        plain = _plain_norm(v, 2)
        # Squares of tiny or huge entries leave the range of float32: only there pay for the scaled form.
        doubtful = ~((plain > 1e-15) & (plain < 1e15))
        if v.device.type not in ON_THE_HOST:
            return torch.where(doubtful, _scaled_norm(v, 2), plain)
        if bool(doubtful.any()):
            plain[doubtful] = _scaled_norm(v[doubtful], 2)
        return plain
    return _scaled_norm(v, p)


def _scaled_norm(v: Tensor, p: float) -> Tensor:
    scale = _plain_norm(v, math.inf)
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
    u = _power(w, p)
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


def step_in_box(gap: Tensor, w: Tensor, room: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """The smallest r with w . r = gap whose entries move along sign(w) by at most `room` (>= 0, may be infinite).

    Also says where that is possible; elsewhere r goes to the farthest corner, which gains most.

    >>> r, possible = step_in_box(torch.tensor([5.0]), torch.tensor([[2.0, 1.0]]), torch.tensor([[1.0, 9.0]]), 2)
    >>> r.round(decimals=4), possible
    (tensor([[1., 3.]]), tensor([True]))
    """
    a = w.abs()
    most = torch.where(a > 0, a * room, torch.zeros_like(a)).sum(-1)
    possible = (most >= gap) & most.isnan().logical_not() & a.isfinite().all(-1) & (a.amax(-1) > 0)
    moved = _fill_largest_first(gap, a, room) if p == 1 else _raise_together(gap, a, room, p)
    moved = torch.where(possible.unsqueeze(-1), moved, torch.where(a > 0, room, torch.zeros_like(room)))
    return moved * w.sign(), possible


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


def project(
    c: Tensor, w: Tensor, b: Tensor, lower: Tensor, upper: Tensor, p: float, *, ease: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The point of the half space w . y >= b inside [lower, upper] that is nearest to c, for p in {1, 2, inf}.

    For batches (n, d), b (n,). Unlike for a step, c itself may lie outside the box. Also says where there is such a
    point; elsewhere the corner that comes nearest to the half space is returned. `ease` (n, d) > 0 weighs the features
    for p = 2: nearest is then what has the least sum of (y_i - c_i)^2 / ease_i.

    >>> y, possible = project(*map(torch.tensor, ([[0.0, 0.0]], [[1.0, 1.0]], [1.0], [[0.7, 0.0]], [[1.0, 1.0]])), 2)
    >>> y, possible
    (tensor([[0.7000, 0.3000]]), tensor([True]))
    >>> x, walls = torch.zeros(1, 2), (torch.zeros(1, 2), torch.ones(1, 2))
    >>> project(x, torch.ones(1, 2), torch.ones(1), *walls, 2, ease=torch.tensor([[1.0, 3.0]]))[0]
    tensor([[0.2500, 0.7500]])
    """
    near, far = c.clamp(lower, upper), torch.where(w > 0, upper, lower)
    need = b - (w * near).sum(-1)
    most = torch.where(w != 0, w * far, torch.zeros_like(w)).sum(-1)
    possible = (most >= b) | (need <= 0)
    if p == 1:  # from the nearest point of the box on, a unit of movement costs the same in every feature
        room = torch.where(w != 0, (far - near).abs(), torch.zeros_like(w))
        y = near + _fill_largest_first(need.clamp_min(0), w.abs(), room) * w.sign()
    else:
        d = w.sign() if p == math.inf else w if ease is None else w * ease
        # The inf-norm lets every feature move as far as the one that has to come into the box.
        start = torch.zeros_like(b) if p == 2 else torch.maximum(lower - c, c - upper).clamp_min(0).amax(-1)
        rows = (possible & (need > 0)).nonzero()[:, 0]  # elsewhere there is no root, or no need of one
        if len(rows) == len(c):  # the usual case, without the copies
            t = _root_along(c, d, w, b, lower, upper, start)
            return (c + t.unsqueeze(-1) * d).clamp(lower, upper), possible
        t = start.clone()
        t[rows] = _root_along(*(v[rows] for v in (c, d, w, b, lower, upper, start)))
        y = (c + t.unsqueeze(-1) * d).clamp(lower, upper)
        y = torch.where((need <= 0).unsqueeze(-1), near, y)
    corner = torch.where(w != 0, far, near)
    return torch.where(possible.unsqueeze(-1), y, corner), possible


def _root_along(c: Tensor, d: Tensor, w: Tensor, b: Tensor, lower: Tensor, upper: Tensor, start: Tensor) -> Tensor:
    """The least t >= start with w . clip(c + t d) >= b: Newton's method, kept inside a bracket by bisection.

    The gain rises with t, piecewise linearly: within a piece Newton's step is exact.
    """
    wall = torch.where(d > 0, upper, lower)
    reach = torch.where(d != 0, (wall - c) / torch.where(d != 0, d, torch.ones_like(d)), torch.zeros_like(d))
    low, high = start, torch.maximum(reach.amax(-1), start).clamp_max(torch.finfo(c.dtype).max / 4)
    t = start
    found, open_ = start.clone(), torch.arange(len(start), device=start.device)
    accuracy = 8 * torch.finfo(c.dtype).eps
    # Large results go into the same memory each round: to ask for fresh pages costs more than to fill them.
    slope, moved, y, free = w * d, torch.empty_like(c), torch.empty_like(c), torch.empty_like(c)
    for _ in range(60):
        torch.mul(d, t.unsqueeze(-1), out=moved).add_(c)
        torch.clamp(moved, lower, upper, out=y)
        torch.eq(moved, y, out=free)
        gained = torch.mul(w, y, out=moved)
        gain = gained.sum(-1)
        short = gain < b
        low, high = torch.where(short, t, low), torch.where(short, high, t)
        off = (b - gain).abs() > accuracy * (b.abs() + gained.abs_().sum(-1))
        rate = free.mul_(slope).sum(-1)
        newton = t + (b - gain) / rate
        inside = (rate > 0) & (newton > low) & (newton < high)  # not at the ends: it could go back and forth forever
        # Below the rounding of t itself there is nothing to gain.
        off &= ~(inside & ((newton - t).abs() <= accuracy * t))
        going = off & (high > low)
        left = int(going.sum())
        if left == 0:
            break
        t = torch.where(off, torch.where(inside, newton, low + (high - low) / 2), t)
        if 2 * left <= len(t):  # a few rows take several times as many rounds as most: the others need not wait
            found[open_] = t
            keep = going.nonzero()[:, 0]
            open_ = open_[keep]
            c, d, w, slope, lower, upper = (v[keep] for v in (c, d, w, slope, lower, upper))
            b, low, high, t = b[keep], low[keep], high[keep], t[keep]
            moved, y, free = moved[: len(keep)], y[: len(keep)], free[: len(keep)]
    found[open_] = t
    return found


def _power(w: Tensor, p: float) -> Tensor:
    """|w|^(q-1), after scaling by the largest entry so that large powers stay in range (1 < p < inf)."""
    a = w.abs()
    a = a / a.amax(-1, keepdim=True).clamp_min(torch.finfo(w.dtype).tiny)
    return a if p == 2 else a ** (1 / (p - 1))


def _fill_largest_first(gap: Tensor, a: Tensor, room: Tensor) -> Tensor:
    """p = 1: a unit of movement gains |w_i|, so take the largest |w_i| to its bound, then the next, the last partly."""
    a_sorted, order = a.sort(-1, descending=True)
    room_sorted = room.gather(-1, order)
    gain = torch.where(a_sorted > 0, a_sorted * room_sorted, torch.zeros_like(a))
    before = torch.nn.functional.pad(gain.cumsum(-1)[..., :-1], (1, 0))  # what the larger ones gain together
    take = ((gap.unsqueeze(-1) - before) / a_sorted.clamp_min(torch.finfo(a.dtype).tiny)).clamp_min(0)
    take = torch.where(a_sorted > 0, torch.minimum(take, room_sorted), torch.zeros_like(a))
    return torch.zeros_like(a).scatter_(-1, order, take)


def _raise_together(gap: Tensor, a: Tensor, room: Tensor, p: float) -> Tensor:
    """p > 1: r_i = min(t |w_i|^(q-1), room_i) for the one t that closes the gap (the KKT conditions).

    The gain is concave and piecewise linear in t, so Newton's method from t = 0 climbs to the root without passing
    it, and is exact once the set of entries at their bound no longer grows.
    """
    u = (a > 0).to(a.dtype) if p == math.inf else _power(a, p)
    gain_rate = a * u
    full_gain = torch.where(a > 0, a * room, torch.zeros_like(a))
    bound = torch.zeros_like(a, dtype=torch.bool)
    tiny = torch.finfo(a.dtype).tiny
    t = torch.zeros_like(gap)
    on_host = a.device.type in ON_THE_HOST
    for i in range(a.shape[-1] + 1):
        rest = gap - torch.where(bound, full_gain, torch.zeros_like(a)).sum(-1)
        rate = torch.where(bound, torch.zeros_like(a), gain_rate).sum(-1)
        t = torch.where(rate > tiny, torch.maximum(t, rest / rate.clamp_min(tiny)), t)
        now = (t.unsqueeze(-1) * u >= room) & (a > 0)
        # More rounds than needed change nothing.
        if (on_host or i % GLANCE == GLANCE - 1) and bool((now == bound).all()):
            break
        bound = now
    return torch.where(bound, room, torch.minimum(t.unsqueeze(-1) * u, room))
