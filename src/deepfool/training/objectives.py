"""What a training makes small: the loss on clean images, on adversarial ones, or a bound on the loss of all near ones.

An objective has `loss`, for one batch, and `measure`, for what the card beside the weights says about robustness.
`done` is the share of the training that is behind: a radius that rises slowly from 0 lets the network first learn to
classify. At the full radius from the start, training on MNIST with linf 0.3 may never leave the constant answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from deepfool.errors import InputError
from deepfool.training.intervals import bound_margins
from deepfool.training.pgd import climb, cross_entropy

Score = Callable[[Tensor], Tensor]

MEASURED_STEPS = 50
"""PGD steps for the robust accuracy of a card: several times those of training."""
BATCH = 500


class Objective(Protocol):
    """How the loss of a batch is computed, and how the result is measured."""

    @property
    def kind(self) -> str:
        """Its name in `OBJECTIVES`."""

    def loss(self, score: Score, x: Tensor, y: Tensor, done: float) -> Tensor:
        """The loss of a batch; `done` in [0, 1] says how much of the training is behind."""

    def measure(self, model: nn.Module, x: Tensor, y: Tensor) -> list[dict[str, Any]]:
        """Robust accuracies of a trained model, each with how it was measured."""


@dataclass(frozen=True)
class Plain:
    """The cross-entropy on clean images.

    >>> Plain().loss(lambda x: x, torch.zeros(1, 2), torch.tensor([0]), 0.5)
    tensor(0.6931)
    """

    kind: str = "plain"

    def loss(self, score: Score, x: Tensor, y: Tensor, done: float) -> Tensor:
        return cross_entropy(score(x), y)

    def measure(self, model: nn.Module, x: Tensor, y: Tensor) -> list[dict[str, Any]]:
        return []


@dataclass(frozen=True)
class Adversarial:
    """The cross-entropy on images that PGD has moved to where it is high.

    >>> Adversarial("linf", eps=0.5, steps=5).loss(lambda x: x, torch.tensor([[1.0, 0.0]]), torch.tensor([0]), 1.0)
    tensor(0.6931)
    """

    norm: str
    eps: float
    steps: int
    ramp: float = 0.3
    """The share of the training over which the radius rises from 0."""
    kind: str = "adversarial"

    def loss(self, score: Score, x: Tensor, y: Tensor, done: float) -> Tensor:
        eps = self.eps * _rise(done, self.ramp)
        return cross_entropy(score(climb(score, x, y, norm=self.norm, eps=eps, steps=self.steps)), y)

    def measure(self, model: nn.Module, x: Tensor, y: Tensor) -> list[dict[str, Any]]:
        return [_measure_pgd(model, x, y, self.norm, self.eps)]


@dataclass(frozen=True)
class Certified:
    """A mix of the cross-entropy on clean images and an upper bound of it over the linf ball, by interval bounds.

    >>> net = nn.Sequential(nn.Linear(2, 2, bias=False))
    >>> _ = nn.init.eye_(net[0].weight)
    >>> x, y = torch.tensor([[1.0, 0.0]]), torch.tensor([0])
    >>> Certified(eps=0.5, clean=0.0).loss(net, x, y, 1.0).item()
    0.6931...
    """

    eps: float
    ramp: float = 0.6
    """The share of the training over which the radius rises from 0, and the share of clean images in the loss falls."""
    clean: float = 0.5
    """The weight of the clean images after that."""
    kind: str = "certified"

    def loss(self, score: Score, x: Tensor, y: Tensor, done: float) -> Tensor:
        part = _rise(done, self.ramp)
        clean = 1 - (1 - self.clean) * part
        # The score of y minus itself is 0, so the bounds of the margins are scores in their own right.
        worst = cross_entropy(bound_margins(cast(nn.Module, score), x, y, self.eps * part), y)
        return clean * cross_entropy(score(x), y) + (1 - clean) * worst

    def measure(self, model: nn.Module, x: Tensor, y: Tensor) -> list[dict[str, Any]]:
        return [_measure_bounds(model, x, y, self.eps), _measure_pgd(model, x, y, "linf", self.eps)]


OBJECTIVES: Mapping[str, Callable[..., Objective]] = {
    "plain": Plain, "adversarial": Adversarial, "certified": Certified,
}  # fmt: skip


def read_objective(settings: Mapping[str, Any]) -> Objective:
    """The objective whose fields these are, as on a card or in a checkpoint.

    >>> read_objective({"kind": "certified", "eps": 0.1})
    Certified(eps=0.1, ramp=0.6, clean=0.5, kind='certified')
    """
    kind = str(settings.get("kind"))
    if kind not in OBJECTIVES:
        raise InputError(f"no training objective {kind!r:.80}.", hint=f"one of {', '.join(OBJECTIVES)}")
    return OBJECTIVES[kind](**settings)


def _rise(done: float, ramp: float) -> float:
    return min(1.0, done / ramp) if ramp > 0 else 1.0


def _measure_pgd(model: nn.Module, x: Tensor, y: Tensor, norm: str, eps: float) -> dict[str, Any]:
    """The share of samples that are classified correctly as they are and after PGD."""
    stream = torch.Generator().manual_seed(0)
    right = 0
    for images, labels in zip(torch.split(x, BATCH), torch.split(y, BATCH), strict=True):
        moved = climb(model, images, labels, norm=norm, eps=eps, steps=MEASURED_STEPS, generator=stream)
        with torch.no_grad():
            held = (model(images).argmax(1) == labels) & (model(moved).argmax(1) == labels)
        right += int(held.sum())
    return {
        "by": "PGD", "norm": norm, "eps": eps, "steps": MEASURED_STEPS, "samples": len(y), "accuracy": right / len(y),
    }  # fmt: skip


@torch.no_grad()
def _measure_bounds(model: nn.Module, x: Tensor, y: Tensor, eps: float) -> dict[str, Any]:
    """The share of samples for which interval bounds prove that no perturbation of this size changes the class."""
    right = 0
    for images, labels in zip(torch.split(x, BATCH), torch.split(y, BATCH), strict=True):
        margins = bound_margins(model, images, labels, eps)
        right += int((margins.scatter(1, labels[:, None], -1.0) < 0).all(1).sum())
    return {"by": "interval bounds", "norm": "linf", "eps": eps, "samples": len(y), "accuracy": right / len(y)}
