"""What an attack is after: any other label than the predicted one, or one label in particular.

A goal turns scores into a margin, positive once the goal is reached, and names the two classes whose difference that
margin is. Attacks ask the goal; they do not ask which goal it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from deepfool.classifier.jacobian import cross_entropy, difference


@dataclass(frozen=True)
class Leave:
    """Any label but the predicted one.

    >>> goal = Leave(torch.tensor([0]))
    >>> goal.margin(torch.tensor([0]), torch.tensor([[3.0, 1.0, 2.0]]))
    tensor([-1.])
    """

    label: Tensor
    """(n,): the predicted classes."""
    competing: bool = True
    """Whether the scores are those of classes that share one softmax, as the cross-entropy takes them to."""

    any_class = True
    """Whether every other class is as good as the next."""

    def margin(self, rows: Tensor, z: Tensor) -> Tensor:
        """By how much the best rival exceeds the predicted class (NaN counts as not)."""
        own = self.label.index_select(0, rows).unsqueeze(1)
        return z.scatter(1, own, -math.inf).amax(1) - z.gather(1, own)[:, 0]

    def reference(self, rows: Tensor, z: Tensor) -> Tensor:
        """(k,): the class to lower."""
        return self.label[rows]

    def pair(self, rows: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """The class to raise and the class to lower: their difference is the margin."""
        label = self.label.index_select(0, rows)
        return z.scatter(1, label.unsqueeze(1), -math.inf).argmax(1), label

    def pair_towards(self, rows: Tensor, z: Tensor, k: Tensor, reached: Tensor) -> tuple[Tensor, Tensor]:
        """The same, but class k is raised until the goal is reached."""
        rival, label = self.pair(rows, z)
        return torch.where(reached, rival, k), label

    def loss_direction(self, rows: Tensor, z: Tensor) -> Tensor:
        """The combination of scores along which the cross-entropy of the predicted class grows; along which the margin
        does, where the scores do not compete: the pulls of an output that may rise or fall would cancel out."""
        if not self.competing:
            return difference(z, *self.pair(rows, z))
        return cross_entropy(z, self.label[rows])[2]

    def classes(self, rows: Tensor, z: Tensor, most: int | str | None = None) -> Tensor:
        """(k, m): the classes to consider, all others or the `most` best-scored of them."""
        label, c = self.label[rows], z.shape[1]
        if not isinstance(most, int) or most >= c - 1:
            others = torch.arange(c - 1, device=z.device).expand(len(rows), c - 1)
            return others + (others >= label[:, None])  # 0..c-1 without the label
        ranked = torch.nan_to_num(z, nan=-math.inf).scatter(1, label[:, None], -math.inf)
        return ranked.topk(most, dim=1).indices

    def accepts(self, rows: Tensor, labels: Tensor) -> Tensor:
        """(k, m): which of these labels (m,) reach the goal of these samples."""
        return labels[None, :] != self.label[rows, None]


@dataclass(frozen=True)
class Reach:
    """One label in particular.

    >>> goal = Reach(torch.tensor([0]), torch.tensor([1]))
    >>> goal.margin(torch.tensor([0]), torch.tensor([[3.0, 1.0, 2.0]]))
    tensor([-2.])
    """

    label: Tensor
    target: Tensor
    """(n,): the classes to reach."""

    any_class = False

    def margin(self, rows: Tensor, z: Tensor) -> Tensor:
        """By how much the target exceeds its best rival."""
        wanted = self.target[rows, None]
        return z.gather(1, wanted)[:, 0] - z.scatter(1, wanted, -math.inf).amax(1)

    def reference(self, rows: Tensor, z: Tensor) -> Tensor:
        """The target's best rival: once the label is passed, it is another class that stands in the way."""
        return z.scatter(1, self.target[rows, None], -math.inf).argmax(1)

    def pair(self, rows: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        return self.target[rows], self.reference(rows, z)

    def pair_towards(self, rows: Tensor, z: Tensor, k: Tensor, reached: Tensor) -> tuple[Tensor, Tensor]:
        return self.pair(rows, z)

    def loss_direction(self, rows: Tensor, z: Tensor) -> Tensor:
        """The combination of scores along which the cross-entropy of the target falls."""
        return -cross_entropy(z, self.target[rows])[2]

    def classes(self, rows: Tensor, z: Tensor, most: int | str | None = None) -> Tensor:
        return self.target[rows, None]

    def accepts(self, rows: Tensor, labels: Tensor) -> Tensor:
        return labels[None, :] == self.target[rows, None]


Goal: TypeAlias = "Leave | Reach"
