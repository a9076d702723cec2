"""The certified radius as a fixed point.

One backward pass at radius R bounds the distance to each class k by d_k(R), as far as the ball reaches: min(R, d_k(R))
is certified at once, without bisection. The larger R, the looser the lines and the smaller d: the best is where
R = d(R), which a secant finds in a few passes. What a class has been proved at stays proved, and is not bounded again.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from deepfool.certificates.backward import Choices
from deepfool.certificates.ball import FAR, Ball
from deepfool.certificates.graph import Graph
from deepfool.certificates.layers import Layers
from deepfool.certificates.margins import Margins, improve
from deepfool.certificates.timing import TimeIsOverError, Watch
from deepfool.certificates.units import bound_units

FIRST, LEAST = 0.55, 0.01
"""The first radius, as a share of the upper bound: about what undefended dense networks are certified for, and at
least."""
PASSES = 30
"""If there is time for fewer passes than so many, the first radius is smaller in proportion: what takes long to bound
is deep, is certified for little, and is bounded much sooner on a small ball. So a first answer is there early."""
GAIN = 1.2
"""What a last pass that the time allows must be able to gain, or it is not begun."""
SLOWER = 0.5
"""How the time of a pass grows with the radius, as a power: on lenet-cifar10 a ball six times as large takes twice as
long, a power of 0.36; more leaves room. A radius that would take longer than what is left is made smaller."""
STEEP = -2.0
"""How fast d / R falls with R at least, as a power: it falls as 1 / R at first, and faster on larger balls."""
LOSES = 2.5
"""How fast a ball takes away the margin, as a power of its radius: 2 to 3 on lenet-mnist and conv-mnist-certified."""
SMALL = 0.03
"""If no more than this share of the margin is left on a ball that is proved, it is the largest."""
ROUNDS = 6
"""Passes at most."""
STEPS = 8
"""Steps in the slopes of the margins in each pass: on convolutional networks they cost a tenth of it."""
CLOSE = 0.03
"""A bracket of the fixed point that is narrow enough, relatively: branch and bound goes on from there."""


def begin_with(passes: float) -> float:
    """The share of the upper bound to begin with if there is time for so many passes.

    >>> begin_with(100), begin_with(0)
    (0.55, 0.01)
    """
    return max(LEAST, FIRST * min(1.0, passes / PASSES))


def certify_radius(
    graph: Graph, ball: Ball, label: Tensor, rivals: Tensor, upper: Tensor, slack: Tensor, watch: Watch,
    *, first: float = FIRST, rounds: int = ROUNDS, lean: float = 1.0, known: Tensor | None = None,
) -> tuple[Tensor, int]:  # fmt: skip
    """How far away each class is at least, (n, classes), infinite for those that are no rivals; and the passes made.

    `upper` (n,) is how far away the nearest is known to be at most, or infinite; the first radius is a share of it.
    `lean` is that of the lines; `known` (n, classes) is what has been proved before.
    """
    value = torch.where(rivals, 0.0, math.inf).double() if known is None else known.clone()
    if not graph.bends:
        everyone = torch.arange(len(label))
        value[rivals], _ = _distances(graph, ball, label, rivals, everyone, torch.full_like(upper, math.inf), slack)
        return value, 1
    radius = torch.where(upper.isfinite(), first * upper, _local_distance(graph, ball, label, rivals, slack) / 2)
    reach = ball.reach
    cap = torch.minimum(upper, reach)
    high = cap.clone()
    secant = _Secant(radius)
    live = torch.arange(len(label))
    for _ in range(rounds):
        before = watch.spent()
        open_ = rivals[live] & (value[live] < radius[live, None])
        d, left_over = torch.full_like(value[live], math.inf), torch.full_like(value[live], math.inf)
        # A pass that takes too long is given up, but not the first that proves something.
        patient = not bool((value[live].amin(1) > 0).all())
        try:
            d[open_], left_over[open_] = _distances(
                graph, ball, label, open_, live, radius[live], slack, lean, None if patient else watch
            )
        except TimeIsOverError:
            break
        # A ball that is the whole box has proved the class for good.
        whole = (radius[live] >= reach[live])[:, None] & (d >= radius[live, None])
        reached = torch.where(whole, math.inf, torch.minimum(d, radius[live, None]))
        value[live] = torch.where(open_, torch.maximum(value[live], reached), value[live])
        nearest = d.amin(1)
        low = value[live].amin(1)
        r = radius[live]
        high[live] = torch.where(nearest < r, torch.minimum(high[live], r), high[live])
        wanted = secant.guess(live, r, nearest, left_over.amin(1))
        h = high[live]
        bracketed, width = h < cap[live], h - low
        inside = torch.minimum(torch.maximum(wanted, low + 0.1 * width), h - 0.1 * width)
        left, took = max(watch.seconds - watch.spent(), 0.0), max(watch.spent() - before, 1e-9)
        in_time = r * (left / took) ** (1 / SLOWER)
        # If there is no time for two more passes, the one that there is goes further.
        bold = torch.where(in_time < wanted * 2 ** (1 / SLOWER), (wanted * in_time).sqrt(), wanted)
        outside = torch.minimum(torch.maximum(torch.minimum(bold, in_time), low * (1 + CLOSE)), cap[live])
        radius[live] = torch.where(bracketed, inside, outside)
        going = (h.isinf() | ((h - low) > CLOSE * h)) & low.isfinite() & (radius[live] > 0) & radius[live].isfinite()
        going &= (in_time > GAIN * low) | (low <= 0)
        going &= (left_over.amin(1).abs() > SMALL) | (low < (1 - CLOSE) * r)
        live = live[going]
        if len(live) == 0 or watch.over():
            break
    return value, max(secant.count, 1)


class _Secant:
    """Where R = d(R) may be, from the last two passes."""

    def __init__(self, radius: Tensor) -> None:
        self.count = 0
        self.radius, self.height, self.d = radius.clone(), torch.zeros_like(radius), torch.zeros_like(radius)

    def guess(self, live: Tensor, r: Tensor, d: Tensor, left: Tensor) -> Tensor:
        """After a pass at r that found d, with the share `left` of the margin left; (live,) each."""
        # A secant of log(d / R) against log R.
        f = (d.clamp(1e-9 * r, 1e9 * r) / r).log().clamp(-2.5, 5)
        before, height, last = self.radius[live], self.height[live], self.d[live]
        slope = (f - height) / (r.log() - before.log()) if self.count else torch.full_like(r, -3.0)
        slope = torch.nan_to_num(slope, -3.0, -3.0, -3.0).clamp(-20, STEEP)
        wanted = r * (-f / slope).clamp(-1.2, 1.6).exp()
        # A bound that is below zero at the sample itself says nothing by d, but by how far below it is.
        wanted = torch.where(d > 0, wanted, r * (1 - left).clamp(1, 1e6) ** (-1 / LOSES))
        # Where d is above zero twice, a secant of d against R knows more: d falls ever faster.
        falls = ((last - d) / (r - before)).clamp_min(0)
        straight = r + (d - r) / (1 + falls)
        twice = (d > 0) & (last > 0) & falls.isfinite() & d.isfinite()
        self.radius[live], self.height[live], self.d[live] = r, f, d
        self.count += 1
        return torch.where(twice & ((d < r) | (straight < wanted)), straight, wanted)


def _distances(
    graph: Graph,
    ball: Ball,
    label: Tensor,
    pairs: Tensor,
    live: Tensor,
    radius: Tensor,
    slack: Tensor,
    lean: float = 1.0,
    watch: Watch | None = None,
) -> tuple[Tensor, Tensor]:
    """For all pairs of a sample and a class that are wanted, (pairs,): the distance at this radius, and what is left.

    That is the least value of the bound of the margin on the ball, over the margin at the sample.
    """
    here = ball.of(live)
    layers = bound_units(graph, here, radius, lean=lean, watch=watch) if graph.bends else Layers.begin(graph, here)
    who, rival = pairs.nonzero().unbind(1)
    margins = Margins(graph, here, label[live][who], rival, slack[live][who], who)
    with torch.no_grad():
        a, m = margins.bound(layers)
        distance, _ = here.distance(a, m, who)
        left = (m + here.least(a, who, radius.clamp_max(FAR))) / margins.at_samples(layers).clamp_min(1e-30)
    short = distance < radius[who]
    if graph.bends and bool(short.any()):  # only these are worth the steps
        who, some = who[short], Margins(
            graph, here, margins.label[short], rival[short], margins.slack[short], who[short]
        )  # fmt: skip
        choices = Choices({k: v.start[who].clone() for k, v in layers.lines.items()})
        distance[short] = improve(some, layers, choices, STEPS, radius[who]).distance
    return distance, left


def _local_distance(graph: Graph, ball: Ball, label: Tensor, rivals: Tensor, slack: Tensor) -> Tensor:
    """Where the boundary would be if the network were everywhere as it is at the sample."""
    everyone = torch.arange(len(label))
    d = torch.full(rivals.shape, math.inf, dtype=torch.float64)
    d[rivals], _ = _distances(graph, ball, label, rivals, everyone, torch.zeros_like(slack), slack)
    nearest = d.amin(1)
    return torch.where(nearest.isfinite(), nearest, 1.0)
