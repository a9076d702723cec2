"""What depends on the norm, and nothing else: lp norms, their duals, and the smallest step to a hyperplane.

Everything works on the last dimension and batches over the others, so one call serves (samples, features) and
(samples, classes, features) alike. A hyperplane is given by its normal `w` and the `gap` that a step has to gain:
the smallest `r`, in the p-norm, with `w . r = gap` (gap >= 0). Inside a box the step also keeps to `room`, how far
each feature may move in the direction that gains.

p = 0 counts the entries that are not zero. It is no norm, but it has its place here: a size, and a smallest step inside
a box. Features may be counted in groups there: `channels` of them, one from each of so many equal parts of v, are the
colours of a pixel, and count once.
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


def step_in_box(gap: Tensor, w: Tensor, room: Tensor, p: float, channels: int = 1) -> tuple[Tensor, Tensor]:
    """The smallest r with w . r = gap whose entries move along sign(w) by at most `room` (>= 0, may be infinite).

    Also says where that is possible; elsewhere r goes to the farthest corner, which gains most.

    >>> r, possible = step_in_box(torch.tensor([5.0]), torch.tensor([[2.0, 1.0]]), torch.tensor([[1.0, 9.0]]), 2)
    >>> r.round(decimals=4), possible
    (tensor([[1., 3.]]), tensor([True]))
    >>> step_in_box(torch.tensor([5.0]), torch.tensor([[2.0, 1.0]]), torch.tensor([[1.0, 9.0]]), 0)[0]
    tensor([[0., 5.]])
    """
    a = w.abs()
    steepest, gain = a.amax(-1), a * room
    most = gain.sum(-1)
    if a.device.type not in ON_THE_HOST or not bool(most.isfinite().all()):  # 0 * inf: what is flat gains nothing
        room = torch.where(a > 0, room, torch.zeros_like(room))
        gain = torch.where(a > 0, gain, torch.zeros_like(gain))
        most = gain.sum(-1)
    possible = (most >= gap) & (steepest > 0) & steepest.isfinite()
    if p == 0:
        moved = _fill_best_first(gap, a, room, channels)
    elif p == 1:
        moved = _fill_largest_first(gap, a, room)
    else:
        moved = _raise_together(gap, a, room, gain, p)
    if a.device.type not in ON_THE_HOST or not bool(possible.all()):
        moved = torch.where(possible.unsqueeze(-1), moved, room)
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
    near, sign = c.clamp(lower, upper), w.sign()
    far = (sign * torch.finfo(w.dtype).max).clamp(lower, upper)  # a choice by `where` takes many times as long
    need = b - (w * near).sum(-1)
    most = (w * far).sum(-1)
    possible = (most >= b) | (need <= 0)
    if p == 1:  # from the nearest point of the box on, a unit of movement costs the same in every feature
        room = (far - near).abs() * sign.abs()
        y = near + _fill_largest_first(need.clamp_min(0), w.abs(), room) * sign
    else:
        d = sign if p == math.inf else w if ease is None else w * ease
        # The inf-norm lets every feature move as far as the one that has to come into the box.
        start = torch.zeros_like(b) if p == 2 else torch.maximum(lower - c, c - upper).clamp_min(0).amax(-1)
        rows = (possible & (need > 0)).nonzero()[:, 0]  # elsewhere there is no root, or no need of one
        if len(rows) == len(c):  # the usual case, without the copies
            t = _root_along(c, d, w, b, lower, upper, start)
            return (c + t.unsqueeze(-1) * d).clamp(lower, upper), possible
        t = start.clone()
        t[rows] = _root_along(*(v.index_select(0, rows) for v in (c, d, w, b, lower, upper, start)))
        y = (c + t.unsqueeze(-1) * d).clamp(lower, upper)
        y = torch.where((need <= 0).unsqueeze(-1), near, y)
    corner = torch.where(w != 0, far, near)
    return torch.where(possible.unsqueeze(-1), y, corner), possible


def _root_along(c: Tensor, d: Tensor, w: Tensor, b: Tensor, lower: Tensor, upper: Tensor, start: Tensor) -> Tensor:
    """The least t >= start with w . clip(c + t d) >= b: Newton's method, kept inside a bracket by bisection.

    The gain rises with t, piecewise linearly: within a piece Newton's step is exact. A round takes a few passes over
    the features, and five of them are enough for most rows, so this is linear in their number.
    """
    low, high, t = start, torch.full_like(start, math.inf), start
    found, open_ = start.clone(), torch.arange(len(start), device=start.device)
    accuracy = 8 * torch.finfo(c.dtype).eps
    # Large results go into the same memory each round: to ask for fresh pages costs more than to fill them.
    slope, moved, y, free = w * d, torch.empty_like(c), torch.empty_like(c), torch.empty_like(c)
    steepest = slope.sum(-1)
    """Where every entry is free to move: no piece is steeper."""
    for _ in range(100):
        torch.mul(d, t.unsqueeze(-1), out=moved).add_(c)
        torch.clamp(moved, lower, upper, out=y)
        torch.eq(moved, y, out=free)
        gained = torch.mul(w, y, out=moved)
        miss = b - gained.sum(-1)
        short = miss > 0
        low, high = torch.where(short, t, low), torch.where(short, high, t)
        off = miss.abs() > accuracy * (b.abs() + gained.abs_().sum(-1))
        rate = torch.linalg.vecdot(free, slope)
        newton = t + miss / rate
        inside = (rate > 0) & (newton > low) & (newton < high)  # not at the ends: it could go back and forth forever
        # Below the rounding of t itself there is nothing to gain.
        off &= ~(inside & ((newton - t).abs() <= accuracy * t))
        going = off & (high > low)
        keep = going.nonzero()[:, 0]
        if len(keep) == 0:
            break
        # Nothing is known from above at first: go twice as far, or as far as it is at least.
        middle = torch.where(high.isinf(), torch.maximum(2 * t, t + miss / steepest), low + (high - low) / 2)
        t = torch.where(off, torch.where(inside, newton, middle), t)
        if 2 * len(keep) <= len(t):  # a few rows take several times as many rounds as most: the others need not wait
            found[open_] = t
            open_ = open_[keep]
            c, d, w, slope, lower, upper = (v.index_select(0, keep) for v in (c, d, w, slope, lower, upper))
            b, low, high, t, steepest = b[keep], low[keep], high[keep], t[keep], steepest[keep]
            moved, y, free = moved[: len(keep)], y[: len(keep)], free[: len(keep)]
    found[open_] = t
    return found


def _power(w: Tensor, p: float) -> Tensor:
    """|w|^(q-1), after scaling by the largest entry so that large powers stay in range (1 < p < inf)."""
    a = w.abs()
    a = a / a.amax(-1, keepdim=True).clamp_min(torch.finfo(w.dtype).tiny)
    return a if p == 2 else a ** (1 / (p - 1))


def _fill_largest_first(gap: Tensor, a: Tensor, room: Tensor) -> Tensor:
    """p = 1: a unit of movement gains |w_i|, so take the largest |w_i| to its bound, then the next, the last partly.

    Which is the last is found by halving the values: to sort them alone takes a tenth of what their order takes.
    """
    d, largest = a.shape[-1], torch.finfo(a.dtype).max
    room = room.clamp_max(largest)
    gain = (a * room).clamp_max(largest / (2 * d))
    values, chosen = _sort(a), torch.empty_like(a)
    low, high = torch.zeros_like(gap, dtype=torch.long), torch.full_like(gap, d, dtype=torch.long)
    for _ in range(d.bit_length()):  # those from the place `low` on gain enough together, those from `high` on do not
        middle = (low + high) // 2
        cut = values.gather(-1, middle.clamp_max(d - 1).unsqueeze(-1))
        enough = torch.linalg.vecdot(gain, torch.ge(a, cut, out=chosen)) >= gap
        low, high = torch.where(enough, middle, low), torch.where(enough, high, middle)
    cut = values.gather(-1, low.unsqueeze(-1))
    above = torch.gt(a, cut, out=chosen)
    rest = (gap - torch.linalg.vecdot(gain, above)).unsqueeze(-1) / cut.clamp_min(torch.finfo(a.dtype).tiny)
    moved = room * above
    last = room * torch.eq(a, cut, out=chosen) * a.sign()  # one entry, or several that are equal: in their order
    return moved + torch.minimum(last, (rest - (last.cumsum(-1) - last)).clamp_min(0))


def _sort(a: Tensor) -> Tensor:
    """The values in order. numpy takes a tenth of torch's time where it can have them."""
    if a.device.type not in ON_THE_HOST:
        return a.sort(-1).values
    return torch.from_numpy(np.sort(a.detach().numpy(), -1))


def _fill_best_first(gap: Tensor, a: Tensor, room: Tensor, channels: int) -> Tensor:
    """p = 0: a unit costs the same however far it moves, so take the one that gains most at its bounds, then the next.

    No set of k units gains more than the k best ones at their bounds: the count is the least there is. The last unit
    goes only as far as is needed.
    """
    gain = by_unit(torch.where(a > 0, a * room, torch.zeros_like(a)), channels).sum(-2)
    best, order = gain.sort(dim=-1, descending=True, stable=True)
    before = torch.nn.functional.pad(best.cumsum(-1)[..., :-1], (1, 0))
    part = (gap.unsqueeze(-1) - before) / best.clamp_min(torch.finfo(a.dtype).tiny)
    part = torch.where(best > 0, part.clamp(0, 1), torch.zeros_like(part))
    share = torch.zeros_like(gain).scatter_(-1, order, part)
    return torch.where(a > 0, (by_unit(room, channels) * share.unsqueeze(-2)).flatten(-2), torch.zeros_like(a))


def _raise_together(gap: Tensor, a: Tensor, room: Tensor, full: Tensor, p: float) -> Tensor:
    """p > 1: r_i = min(t |w_i|^(q-1), room_i) for the one t that closes the gap (the KKT conditions).

    The gain is concave and piecewise linear in t, so Newton's method from t = 0 climbs to the root without passing
    it, and is exact once the set of entries at their bound no longer grows. `full` is what an entry gains there.
    """
    u = (a > 0).to(a.dtype) if p == math.inf else _power(a, p)
    rate, stops = a * u, room / u  # entry i reaches its bound at t = stops_i; a flat one never does
    on_host, tiny = a.device.type in ON_THE_HOST, torch.finfo(a.dtype).tiny
    if not on_host or not bool(full.sum(-1).isfinite().all()):
        full = torch.where(full.isfinite(), full, torch.zeros_like(full))  # so far that no entry gets there
    t, chosen = torch.zeros_like(gap), torch.empty_like(a)  # as numbers: products are faster than choices
    for i in range(a.shape[-1] + 1):
        bound = torch.le(stops, t.unsqueeze(-1), out=chosen)
        rest = gap - torch.linalg.vecdot(full, bound)
        free = torch.gt(stops, t.unsqueeze(-1), out=chosen)
        slope = torch.linalg.vecdot(rate, free)
        before, t = t, torch.where(slope > tiny, torch.maximum(t, rest / slope.clamp_min(tiny)), t)
        # More rounds than needed change nothing.
        if (on_host or i % GLANCE == GLANCE - 1) and not bool((t > before).any()):
            break
    return torch.minimum(t.unsqueeze(-1) * u, room)
