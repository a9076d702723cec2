"""Some images as one model sees them: its decisions, their margins, and which of them v changes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from deepfool.attacks.shared.arguments import spread_target
from deepfool.attacks.shared.goals import Goal, Leave, Reach
from deepfool.classifier import Classifier
from deepfool.datasets import Data
from deepfool.errors import InputError
from deepfool.universals.ball import Ball

IN_MEMORY = 2**30
"""Bytes up to which images are kept in memory; more are read again in every epoch."""
AT_ONCE = 250
"""Images per forward pass where only the decisions are wanted; fewer if they are large."""


class Images:
    """Images of a data set under a model: what it decides, and whether that changes with v.

    What counts is the model's own decision, right or wrong. Images whose scores are not finite, or that a targeted v
    need not move because they are decided as the target already, are left out (`rows` has the others).

    >>> from deepfool.datasets import load
    >>> data = load((torch.tensor([[0.2], [0.6], [0.9]]), [0, 1, 1]))
    >>> f = Classifier(lambda x: torch.cat([0.5 - x, x - 0.5], 1))
    >>> images = Images(f, data, [0, 1, 2], Ball(2, 0.2), outputs_on="cpu")
    >>> images.label.tolist(), images.fooled(torch.tensor([-0.2])).tolist()
    ([0, 1, 1], [False, True, False])
    """

    def __init__(
        self, f: Classifier, data: Data, indices: list[int], ball: Ball, *, outputs_on: str, target: int | None = None,
        on_batch: Callable[[int], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self.f, self.ball, self.device = f, ball, torch.device(outputs_on)
        self._data, self._indices = data, indices
        first = data.batch(indices[:1])
        self.shape = tuple(first.shape[1:])
        whole = first.numel() * 4 * len(indices)
        self._kept = data.batch(indices).to(self.device) if whole <= IN_MEMORY else None
        self.at_once = max(1, min(AT_ONCE, 2**24 // max(1, first.numel())))
        scores = self._look(torch.arange(len(indices)), None, on_batch)
        self.label = scores.argmax(1)
        usable = scores.isfinite().all(1)
        if target is not None and not 0 <= target < scores.shape[1]:
            raise InputError(f"target must lie in [0, {scores.shape[1] - 1}], got {target}.")
        self.goal: Goal = Leave(self.label)
        if target is not None:
            self.goal = Reach(self.label, spread_target(target, len(indices), self.label.device))
            usable &= self.label != target
        self.rows = usable.nonzero()[:, 0].cpu()
        """The images that count, as positions 0 .. n - 1."""
        if not len(self.rows):
            raise InputError("there is no image whose decision could change.", hint="look at the data and the target.")
        margin = self.goal.margin(self.rows.to(self.device), scores[self.rows])
        self.typical_margin = float(margin.abs().median())
        """The median distance of the scores from a change of decision, by which margins are measured."""

    def __len__(self) -> int:
        return len(self._indices)

    @property
    def true_labels(self) -> Tensor:
        """-1 where unknown."""
        return self._data.labels[self._indices]

    def batch(self, rows: Tensor) -> Tensor:
        """Images by position."""
        if self._kept is not None:
            return self._kept[rows]
        return self._data.batch([self._indices[i] for i in rows.tolist()]).to(self.device)

    def margins(self, rows: Tensor, x: Tensor) -> Tensor:
        """The margins of these images at x: positive where the decision has changed (to the target). Gradients flow."""
        return self.goal.margin(rows.to(self.device), self.f(x))

    def is_fooled(self, rows: Tensor, v: Tensor) -> Tensor:
        """Which of these images v fools."""
        with torch.no_grad():
            return (self.margins(rows, self.ball.move(self.batch(rows), v)) > 0).cpu()

    def fooled(self, v: Tensor, on_batch: Callable[[int], None] = lambda _: None) -> Tensor:
        """Which of the images that count v fools, in the order of `rows`."""
        scores = self._look(self.rows, v, on_batch)
        return (self.goal.margin(self.rows.to(self.device), scores) > 0).cpu()

    def decide(self, v: Tensor) -> Tensor:
        """The decisions with v, for all images."""
        return self._look(torch.arange(len(self)), v).argmax(1).cpu()

    def _look(self, rows: Tensor, v: Tensor | None, on_batch: Callable[[int], None] = lambda _: None) -> Tensor:
        """The scores of these images, with v if there is one."""
        found = []
        with torch.no_grad():
            for some in torch.split(rows, self.at_once):
                x = self.batch(some)
                if v is None:
                    self._check_inside(x)
                found.append(self.f(x if v is None else self.ball.move(x, v)).detach())
                on_batch(len(some))
        return torch.cat(found)

    def _check_inside(self, x: Tensor) -> None:
        lower, upper = self.ball.lower, self.ball.upper
        if lower is not None and upper is not None and bool(((x < lower) | (x > upper)).any()):
            raise InputError(
                f"the images must lie in the bounds [{lower.amin().item():g}, {upper.amax().item():g}], "
                f"got [{x.amin().item():.4g}, {x.amax().item():.4g}].",
                hint="put the normalisation inside the model, so that the images stay in their own range.",
            )
