"""Steps and projections inside a box, in every norm: the smallest step to a hyperplane, the nearest point beyond one.

As in `norms`, everything works on the last dimension and batches over the others. A step keeps to `room`, how far each
feature may move in the direction that gains; a projection keeps to [lower, upper], from wherever it starts.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepfool import norms
from deepfool.norms import GLANCE, by_unit, raise_to

Array: TypeAlias = NDArray[Any]


def step_in_box(gap: Tensor, w: Tensor, room: Tensor, p: float, channels: int = 1) -> tuple[Tensor, Tensor]:
    """The smallest r with w . r = gap whose entries move along sign(w) by at most `room` (>= 0, may be infinite).

    Also says where that is possible; elsewhere r goes to the farthest corner, which gains most.

    >>> r, possible = step_in_box(torch.tensor([5.0]), torch.tensor([[2.0, 1.0]]), torch.tensor([[1.0, 9.0]]), 2)
    >>> r.round(decimals=4), possible
    (tensor([[1., 3.]]), tensor([True]))
    >>> step_in_box(torch.tensor([5.0]), torch.tensor([[2.0, 1.0]]), torch.tensor([[1.0, 9.0]]), 0)[0]
    tensor([[0., 5.]])
    """
    a, on_host = w.abs(), w.device.type in norms.ON_THE_HOST
    steepest, gain = a.amax(-1), a * room
    most = gain.sum(-1)
    finite = on_host and bool(most.isfinite().all())
    if not finite:  # 0 * inf: what is flat gains nothing
        room = torch.where(a > 0, room, torch.zeros_like(room))
        gain = torch.where(a > 0, gain, torch.zeros_like(gain))
        most = gain.sum(-1)
    possible = (most >= gap) & (steepest > 0) & steepest.isfinite()
    if p == 0:
        moved = _fill_best_first(gap, a, room, channels)
    elif p == 1:
        moved = _fill_largest_first(gap, a, room)
    else:
        # So far that no entry gets there: it gains nothing by being at its bound.
        gain = gain if finite else torch.where(gain.isfinite(), gain, torch.zeros_like(gain))
        moved = _raise_together(gap, a, room, gain, p, steepest)
    if on_host and bool(possible.all()):
        return moved.copysign_(w), possible
    return torch.where(possible.unsqueeze(-1), moved, room) * w.sign(), possible


def project(
    c: Tensor, w: Tensor, b: Tensor, lower: Tensor, upper: Tensor, p: float, *, ease: Tensor | None = None,
    near_to: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The point of the half space w . y >= b inside [lower, upper] that is nearest to c, for p in {1, 2, inf}.

    For batches (n, d), b (n,). Unlike for a step, c itself may lie outside the box. Also says where there is such a
    point; elsewhere the corner that comes nearest to the half space is returned. `ease` (n, d) > 0 weighs the features
    for p = 2: nearest is then what has the least sum of (y_i - c_i)^2 / ease_i. For p > 1 the answer is c + t d, cut at
    the box, with d = w (p = 2) or its sign: `near_to` (n,) is a t to begin the search with, where one is known from a
    similar plane (0: none is). It is overwritten with what was found.

    >>> y, possible = project(*map(torch.tensor, ([[0.0, 0.0]], [[1.0, 1.0]], [1.0], [[0.7, 0.0]], [[1.0, 1.0]])), 2)
    >>> y, possible
    (tensor([[0.7000, 0.3000]]), tensor([True]))
    >>> x, walls = torch.zeros(1, 2), (torch.zeros(1, 2), torch.ones(1, 2))
    >>> project(x, torch.ones(1, 2), torch.ones(1), *walls, 2, ease=torch.tensor([[1.0, 3.0]]))[0]
    tensor([[0.2500, 0.7500]])
    """
    near, sign = c.clamp(lower, upper), w.sign()
    far = torch.mul(sign, torch.finfo(w.dtype).max).clamp_(lower, upper)  # a choice by `where` takes many times as long
    need = b - torch.linalg.vecdot(w, near)
    possible = (torch.linalg.vecdot(w, far) >= b) | (need <= 0)
    if p == 1:  # from the nearest point of the box on, a unit of movement costs the same in every feature
        room = (far - near).abs_().mul_(sign.abs())
        y = near + _fill_largest_first(need.clamp_min(0), w.abs(), room).mul_(sign)
    else:
        d = sign if p == math.inf else w if ease is None else w * ease
        # The inf-norm lets every feature move as far as the one that has to come into the box.
        start = torch.zeros_like(b) if p == 2 else (c - near).abs_().amax(-1)
        t = start if near_to is None else torch.maximum(start, near_to)
        t = _root_along(c, d, w, b, lower, upper, start, t, possible & (need > 0))
        t = torch.where(need > 0, t, 0.0)  # there near will do
        if near_to is not None:
            near_to.copy_(t)
        y = torch.addcmul(c, d, t.unsqueeze(-1)).clamp_(lower, upper)
    if w.device.type not in norms.ON_THE_HOST or not bool(possible.all()):
        corner = torch.where(w != 0, far, near)
        y = torch.where(possible.unsqueeze(-1), y, corner)
    return y, possible


def _root_along(
    c: Tensor, d: Tensor, w: Tensor, b: Tensor, lower: Tensor, upper: Tensor, start: Tensor, t: Tensor, wanted: Tensor
) -> Tensor:
    """The least t >= start with w . clip(c + t d) >= b, where it is `wanted`; the given t is where it may be.

    The gain rises with t, piecewise linearly. Where numbers are at hand Newton's method finds the piece, in time that
    is linear in the features. Elsewhere all pieces are put in order, which takes longer, but nobody has to wait.
    """
    if c.device.type not in norms.ON_THE_HOST:
        return _root_in_order(c, d, w, b, lower, upper, start)
    # In numpy: on a few hundred numbers its operations take a third of the time of torch's.
    given = (c, d, w, b, lower, upper, start, t, wanted)
    return torch.from_numpy(_root_by_newton(*((v.detach() if v.requires_grad else v).numpy() for v in given)))


def _root_by_newton(
    c: Array, d: Array, w: Array, b: Array, lower: Array, upper: Array, start: Array, t: Array, wanted: Array
) -> Array:
    """Newton's method from the given t on, kept inside a bracket by bisection: within a piece its step is exact.

    From a good t on two or three rounds are enough for most rows.
    """
    low, high = np.full_like(start, -1.0), np.full_like(start, math.inf)  # nothing was tried
    found: Array = t.copy()
    open_, accuracy, rounding = np.arange(len(t)), 8 * np.finfo(c.dtype).eps, None
    # Large results go into the same memory each round: to ask for fresh pages costs more than to fill them.
    slope, moved, y, free = w * d, np.empty_like(c), np.empty_like(c), np.empty_like(c)
    steepest = slope.sum(-1)
    """Where every entry is free to move: no piece is steeper."""
    with np.errstate(all="ignore"):
        for _ in range(100):
            np.add(np.multiply(d, t[:, None], out=moved), c, out=moved)
            np.minimum(np.maximum(moved, lower, out=y), upper, out=y)
            np.equal(moved, y, out=free, casting="unsafe")
            miss = b - _rows_dot(w, y)
            rate = _rows_dot(slope, free)
            if rounding is None:
                rounding = accuracy * (np.abs(b) + np.abs(np.multiply(w, y, out=moved), out=moved).sum(-1))
            short = miss > 0
            low, high = np.where(short, t, low), np.where(short, high, t)
            newton = np.maximum(t + miss / rate, start)
            inside = (newton > low) & (newton < high)  # not at the ends: it could go back and forth forever
            # Below the rounding of t itself there is nothing to gain.
            settled = inside & (np.abs(newton - t) <= accuracy * t)
            wanted = wanted & (np.abs(miss) > rounding) & ~settled & (high > np.maximum(low, start))
            keep = wanted.nonzero()[0]
            if len(keep) == 0:
                break
            # Nothing is known from above at first: go twice as far, or as far as it is at least.
            middle = np.where(np.isinf(high), np.maximum(2 * t, t + miss / steepest), (low + high) / 2)
            t = np.where(wanted, np.where(inside, newton, middle), t)
            # A few rows take several times as many rounds as most: the others need not wait.
            if 2 * len(keep) <= len(t):
                found[open_] = t
                c, d, w, slope, lower, upper = (v[keep] for v in (c, d, w, slope, lower, upper))
                open_, b, start, low, high, t = (v[keep] for v in (open_, b, start, low, high, t))
                steepest, rounding, wanted = steepest[keep], rounding[keep], wanted[keep]
                moved, y, free = moved[: len(keep)], y[: len(keep)], free[: len(keep)]
    found[open_] = t
    return found


def _rows_dot(a: Array, b: Array) -> Array:
    products: Array = np.einsum("ij,ij->i", a, b)
    return products


def _root_in_order(c: Tensor, d: Tensor, w: Tensor, b: Tensor, lower: Tensor, upper: Tensor, start: Tensor) -> Tensor:
    """Entry i moves while t is between two values. In their order, sums give the gain at each of them."""
    start, slope, largest = start.unsqueeze(-1), w * d, torch.finfo(c.dtype).max
    ends = torch.stack([(lower - c) / d, (upper - c) / d]).nan_to_num(0.0, largest, -largest)  # d = 0: never
    changes = torch.cat([slope, -slope], -1)
    at, order = torch.maximum(torch.cat([ends.amin(0), ends.amax(0)], -1), start).sort(-1)
    rate = changes.gather(-1, order).cumsum(-1).clamp_min(0)  # behind the last one, rounding could make it negative
    gains = torch.cat([torch.zeros_like(start), rate[..., :-1] * at.diff(dim=-1)], -1).cumsum(-1)
    gap = b.unsqueeze(-1) - torch.linalg.vecdot(w, torch.addcmul(c, d, start).clamp(lower, upper)).unsqueeze(-1)
    last = ((gains < gap).sum(-1, keepdim=True) - 1).clamp_min(0)
    t = at.gather(-1, last)
    more = (gap - gains.gather(-1, last)).clamp_min(0) / rate.gather(-1, last)
    return torch.where(more.isfinite(), t + more, t).squeeze(-1)


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
    if a.device.type not in norms.ON_THE_HOST:
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


def _raise_together(gap: Tensor, a: Tensor, room: Tensor, full: Tensor, p: float, steepest: Tensor) -> Tensor:
    """p > 1: r_i = min(t |w_i|^(q-1), room_i) for the one t that closes the gap (the KKT conditions).

    The gain is concave and piecewise linear in t, so Newton's method from t = 0 climbs to the root without passing
    it, and is exact once the set of entries at their bound no longer grows. `full` is what an entry gains there,
    `steepest` the largest entry of a.
    """
    u = (a > 0).to(a.dtype) if p == math.inf else raise_to(a, p, steepest)
    rate, stops = a * u, room / u  # entry i reaches its bound at t = stops_i; a flat one never does
    on_host, tiny = a.device.type in norms.ON_THE_HOST, torch.finfo(a.dtype).tiny
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
