"""How far the decision boundary is at least: linear bounds of the margins, and slopes that make them better.

The margin of class k is the score of the label minus that of k, less the slack. On the ball where the lines hold it is
at least m + a . d. Where the margin is zero, that is not above zero: class k is no nearer than {m + a . d <= 0}.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from deepfool.certificates.backward import Choices, trace_back
from deepfool.certificates.ball import Ball
from deepfool.certificates.climbing import Climber
from deepfool.certificates.graph import Graph
from deepfool.certificates.layers import Layers
from deepfool.certificates.rows import Rows

RATE, FADE = 0.25, 0.95
"""Adam's step for slopes (of a range of 1) at first, and what is left of it after each step."""
MULTIPLIER = 0.1
"""Adam's step for multipliers, as a share of the largest coefficient at their ReLU."""


@dataclass
class Margins:
    """One row for each pair of a problem and a class."""

    graph: Graph
    ball: Ball
    label: Tensor
    rival: Tensor
    slack: Tensor
    """(rows,) each."""
    who: Tensor | None
    """Which sample of the ball and the lines a row belongs to."""

    def rows(self) -> Rows:
        everyone = torch.arange(len(self.rival))
        values = torch.zeros(len(self.rival), *self.graph.scores.shape, dtype=self.graph.rows)
        values[everyone, self.label] = 1
        values[everyone, self.rival] -= 1
        return Rows(values, self.graph.scores.shape)

    def bound(
        self, layers: Layers, choices: Choices | None = None, seen: dict[int, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """a (rows, features) and m (rows,): m + a . d is at most the margin."""
        a, c = trace_back(self.graph, self.graph.scores, self.rows(), self.who, layers, choices, seen)
        return a.double(), self.at_samples(layers) + c

    def at_samples(self, layers: Layers) -> Tensor:
        """(rows,): the margins at the samples themselves."""
        scores = layers.centre[self.graph.scores.id]
        scores = scores.expand(len(self.rival), -1) if len(scores) == 1 or self.who is None else scores[self.who]
        own, other = (scores.gather(1, each[:, None])[:, 0] for each in (self.label, self.rival))
        return own - other - self.slack

    @torch.no_grad()
    def distance(self, layers: Layers, choices: Choices | None = None) -> tuple[Tensor, Tensor]:
        """The distance to the boundary, at least, and the nearest step to where the bound is zero."""
        a, m = self.bound(layers, choices)
        return self.ball.distance(a, m, self.who)


@dataclass
class Best:
    """The best bounds that were met, row by row."""

    distance: Tensor
    step: Tensor
    choices: Choices
    seen: dict[int, Tensor]
    lowest: Tensor
    """m, the bound of the margin at the sample itself."""

    def keep(self, distance: Tensor, m: Tensor, step: Tensor, choices: Choices, seen: dict[int, Tensor]) -> None:
        up = (distance > self.distance) | ((distance == self.distance) & (m > self.lowest))

        def merge(new: Tensor, old: Tensor) -> Tensor:
            return torch.where(up.view(-1, *[1] * (old.ndim - 1)), new.detach(), old)

        self.distance, self.lowest, self.step = (
            merge(distance, self.distance), merge(m, self.lowest), merge(step, self.step)
        )  # fmt: skip
        for old, new in ((self.choices.alpha, choices.alpha), (self.choices.beta, choices.beta), (self.seen, seen)):
            for k in old:
                old[k] = merge(new[k], old[k])


def improve(margins: Margins, layers: Layers, choices: Choices, steps: int, enough: Tensor) -> Best:
    """Climb in the slopes and multipliers until all distances are `enough` (rows,), or the steps are over.

    By the envelope theorem the distance rises where the bound does at the nearest point: that is what Adam climbs.
    """
    best: Best | None = None
    climber: Climber | None = None
    for count in range(steps + 1):
        seen: dict[int, Tensor] = {}
        free = [v.requires_grad_() for part in (choices.alpha, choices.beta) for v in part.values()]
        with torch.set_grad_enabled(count < steps):
            a, m = margins.bound(layers, choices, seen)
        with torch.no_grad():
            distance, step = margins.ball.distance(a.detach(), m.detach(), margins.who)
        if best is None:
            best = Best(distance, step, _copied(choices), dict(seen), m.detach())
        else:
            best.keep(distance, m, step, choices, seen)
        short = best.distance < enough
        if count == steps or not free or not bool(short.any()):
            break
        if climber is None:
            # Multipliers are compared with what they are subtracted from.
            scale = [seen[k].abs().flatten(1).amax(1).view(-1, *[1] * (v.ndim - 1)) for k, v in choices.beta.items()]
            climber = Climber(free, [RATE] * len(choices.alpha) + [MULTIPLIER * each for each in scale])
        steepness = a.detach().abs().sum(1).clamp_min(1e-12)
        gain = torch.where(short, (m + (a * step).sum(1)) / steepness, 0.0)
        climber.step(list(torch.autograd.grad(gain.sum(), free)), FADE**count)
        with torch.no_grad():
            for k, v in choices.alpha.items():
                v.clamp_(layers.lines[k].least, 1)
            for k, v in choices.beta.items():
                v.clamp_min_(0).mul_(choices.sign[k] != 0)
    assert best is not None
    return best


def _copied(choices: Choices) -> Choices:
    alpha, beta = ({k: v.detach().clone() for k, v in part.items()} for part in (choices.alpha, choices.beta))
    return Choices(alpha, beta, choices.sign)
