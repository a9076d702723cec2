"""From a point where many units have moved to few of them: by bisection, in the order of what they are worth.

The gradient at the point says what each of its units is worth to the margin. Kept are the first k in that order, and
the smallest k that still fools is found by bisection, as if all larger ones did: a dozen passes take thousands of units
to a handful, where dropping some at a time takes hundreds.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepfool.attacks.shared.question import Question
from deepfool.norms import by_unit

FINE = 0.9
"""The end: where the least number that fooled and the largest that did not are this close."""


class Prefix:
    """The order of the units of every sample, and between which numbers of them the bisection stands."""

    def __init__(self, asked: Question) -> None:
        self.asked, self.channels = asked, asked.channels
        self.point = asked.x_0.clone()
        self.rank = torch.zeros_like(by_unit(asked.x_0, self.channels)[:, 0])
        self.fooled, self.failed, self.kept = (torch.zeros_like(asked.x_0[:, 0]) for _ in range(3))

    def start(self, rows: Tensor, y: Tensor, w: Tensor) -> None:
        """At the points y, with the gradients w of the margin there."""
        r = y - self.asked.x_0[rows]
        worth = by_unit(w * r, self.channels).sum(-2)
        order = worth.argsort(1, descending=True)
        places = torch.arange(worth.shape[1], device=worth.device).to(worth).expand_as(worth)
        self.point[rows], self.rank[rows] = y, torch.empty_like(worth).scatter_(1, order, places)
        self.kept[rows], self.failed[rows] = float(worth.shape[1]), 0.0

    def step(self, rows: Tensor, fooled: Tensor) -> tuple[Tensor, Tensor]:
        """After a look at the last points: the next ones, and where the bisection is over."""
        kept = self.kept[rows]
        self.fooled[rows] = torch.where(fooled, kept, self.fooled[rows])
        self.failed[rows] = torch.where(fooled, self.failed[rows], kept)
        low, high = self.failed[rows], self.fooled[rows]
        # The geometric mean: the number sought is small, and the first one is not.
        self.kept[rows] = torch.floor(torch.sqrt((low + 1) * high)).clamp(low + 1, high)
        keep = (self.rank[rows] < self.kept[rows, None]).repeat(1, self.channels)
        y = torch.where(keep, self.point[rows], self.asked.x_0[rows])
        return y, low + 1 >= torch.maximum(FINE * high, high.clamp_max(2) - 0.5)
