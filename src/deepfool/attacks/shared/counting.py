"""The model as attacks see it: points in, scores and gradients out, every pass counted for the samples that took it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from deepfool.attacks.shared.lifting import Lifted
from deepfool.attacks.shared.question import Question
from deepfool.attacks.shared.rounding import Rounding
from deepfool.classifier import Classifier
from deepfool.classifier.jacobian import Tangent, difference
from deepfool.norms import seem_finite

Combine: TypeAlias = "Callable[[Tensor, Tensor], Tensor]"
"""From rows and their scores (k, c) to the combination of scores (k, c) whose gradient is wanted."""


class CountedModel:
    """A classifier, asked about points of a question."""

    def __init__(self, f: Classifier, asked: Question, rounding: Rounding, opening: Tangent | None) -> None:
        self.f, self.asked, self.rounding = f, asked, rounding
        self.forwards = torch.ones_like(asked.label)  # the look at x_0
        self.backwards = torch.zeros_like(asked.label)
        self._opening = opening
        self.masks = () if opening is None else opening.masks
        """What hides gradients in the model and is seen through, by name."""
        if any(name in ("tanh at the end", "sigmoid at the end") for name in self.masks):
            self.rounding.squash()

    def _take(self, rows: Tensor) -> None:
        """Say which samples the next points belong to, where the model depends on that."""
        if isinstance(self.f.model, Lifted):
            self.f.model.take(rows)

    def count(self, rows: Tensor, *, forwards: int = 0, backwards: int = 0) -> None:
        """Note passes of these samples; a sample may appear in `rows` several times."""
        for counter, passes in ((self.forwards, forwards), (self.backwards, backwards)):
            if passes:
                counter.index_add_(0, rows, torch.full_like(rows, passes))

    def spent(self, rows: Tensor) -> Tensor:
        """The passes of these samples so far, forward and backward."""
        return self.asked.of(rows, self.forwards) + self.asked.of(rows, self.backwards)

    def look(self, rows: Tensor, y: Tensor) -> Tensor:
        """The scores at the points y of these samples."""
        self.count(rows, forwards=1)
        self._take(rows)
        with torch.no_grad():
            z = self.f(self.asked.inputs(rows, y)).detach()
            return z if self.asked.read is None else self.asked.read(rows, z)

    def linearise(self, rows: Tensor, y: Tensor, *, hidden: bool = False) -> Tangent:
        """The linearisation at the points y of these samples; its rows are counted by whoever takes them.

        `hidden`: keep what the last hidden layer returns.
        """
        self.count(rows, forwards=1)
        self._take(rows)
        tangent = Tangent(self.f, self.asked.inputs(rows, y), hidden=hidden, unmask=bool(self.masks))
        return tangent.through(self.asked.reading(rows))

    def linearise_inputs(self, rows: Tensor) -> Tangent:
        """The linearisation at x_0; the first time, the forward pass was already made."""
        kept, self._opening = self._opening, None
        if kept is None:
            return self.linearise(rows, self.asked.x_0[rows], hidden=True)
        return kept if len(rows) == len(self.asked.x_0) else kept.narrow(rows)

    def gradient(self, rows: Tensor, y: Tensor, of: Combine | None = None) -> tuple[Tensor, Tensor]:
        """The scores at the points y, and the gradient there of one combination of them: a forward pass and a row.

        `of` says which combination; the margin of the goal unless given. The gradient is zero on features that may not
        change, and zero altogether where it is not finite: there is no direction to go.
        """
        z, _, g = self.guided_gradient(rows, y, of)
        return z, g

    def guided_gradient(self, rows: Tensor, y: Tensor, of: Combine | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """The same for a model that hides gradients: its scores, the guide (see `unmasking`), and the gradient of the
        combination that `of` chooses by the guide. Where nothing is hidden, the guide is the scores."""
        self._take(rows)
        tangent = Tangent(self.f, self.asked.inputs(rows, y), unmask=bool(self.masks))
        tangent.through(self.asked.reading(rows))
        z, guide = tangent.scores, tangent.guide
        seeds = (of or self.margin_seeds)(rows, guide)
        g = tangent.row(seeds).to(y.dtype)
        self.count(rows, forwards=1, backwards=1)
        self.learn_rounding(rows, y, g, seeds, tangent)
        g = self.asked.masked(rows, g)
        return z, guide, g if seem_finite(g) else g.masked_fill(~g.isfinite().all(1, keepdim=True), 0)

    def learn_rounding(self, rows: Tensor, y: Tensor, g: Tensor, seeds: Tensor, tangent: Tangent) -> None:
        """Learn how much may be rounding from a gradient at y, of the combination `seeds` of the guide.

        Rounding is that of the scores: a flat last operation flattens it too, so the gradient counts as much less as
        the combination of the scores is smaller than that of the guide.
        """
        weight = seeds.abs().sum(1) / 2
        if tangent.guide is not tangent.scores:
            weight = weight * (seeds * tangent.guide).sum(1).abs() / (seeds * tangent.scores).sum(1).abs()
        self.rounding.learn(rows, y, g, weight=weight)

    def margin_seeds(self, rows: Tensor, z: Tensor) -> Tensor:
        """The combination of scores that is the margin of the goal."""
        return difference(z, *self.asked.goal.pair(rows, z))
