"""What is asked of an attack: the inputs, the goal, the norm, and where the answer may lie.

Samples are rows of flat features in the working precision (float32 for half-precision inputs). The model only ever sees
`Question.inputs`, which have the shape, type and memory layout of what the user gave.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from deepfool.attacks.shared.adversarial import Adversarial
from deepfool.attacks.shared.alternatives import Read
from deepfool.attacks.shared.goals import Goal
from deepfool.errors import InputError
from deepfool.norms import norm


@dataclass(frozen=True)
class Question:
    """A batch to attack. Nothing here changes while an attack runs."""

    x_0: Tensor
    """(n, d), working precision."""
    scores: Tensor
    """(n, c) at x_0: of the classes, or of the alternatives that `read` makes of what the model returns."""
    label: Tensor
    """(n,): the predicted classes."""
    goal: Goal
    read: Read | None
    """How the aim reads what the model returns (`aims`); None: as it is."""
    p: float
    lower: Tensor | None
    upper: Tensor | None
    """(n, d), or None where nothing bounds the inputs."""
    mask: Tensor | None
    """(n, d) booleans: which features may change; None means all."""
    like: Tensor
    """The user's x: shape, type and memory layout of what the model is given."""
    everyone: Tensor
    """(n,): all rows."""
    channels: int = 1
    """For p = 0: how many features count as one, the channels of a pixel; 1 where features are counted."""

    @property
    def classes(self) -> int:
        return self.scores.shape[1]

    @property
    def unit(self) -> str:
        return "feature" if self.channels == 1 else "pixel"

    def measure(self, r: Tensor) -> Tensor:
        """The size of perturbations (k, d) in the norm that is asked for."""
        return norm(r, self.p, self.channels)

    def of(self, rows: Tensor, values: Tensor) -> Tensor:
        """values[rows], for reading only: where that is all of them, they are not copied."""
        return values if rows is self.everyone else values.index_select(0, rows)

    def reading(self, rows: Tensor) -> Callable[[Tensor], Tensor] | None:
        """How to read what the model returns for these samples; None: as it is."""
        return None if self.read is None else partial(self.read, rows)

    def box(self, rows: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The bounds of these samples, (k, d) each, or None twice."""
        if self.lower is None or self.upper is None:
            return None, None
        return self.of(rows, self.lower), self.of(rows, self.upper)

    def walls(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The bounds of these samples where there are some: for p = 0 there always are."""
        if self.lower is None or self.upper is None:
            raise InputError("this attack needs bounds.", hint="bounds=(0, 1) for images.")
        return self.of(rows, self.lower), self.of(rows, self.upper)

    def inputs(self, rows: Tensor, y: Tensor) -> Tensor:
        """The points y (k, d) of these samples as the model takes them: inside the box, shaped, typed."""
        return self.shaped(self.clamp(rows, y))

    def clamp(self, rows: Tensor, y: Tensor) -> Tensor:
        """y moved into the box, and rounded to the inputs' own precision if that is half."""
        lower, upper = self.box(rows)
        if lower is not None:
            y = y.clamp(lower, upper)
        return y if self.like.dtype == y.dtype else y.to(self.like.dtype).to(y.dtype)

    def shaped(self, y: Tensor) -> Tensor:
        """Flat points in the shape, type and memory layout of the inputs."""
        like = self.like
        x = y.to(like.dtype).view(len(y), *like.shape[1:])
        if x.ndim == 4 and like.is_contiguous(memory_format=torch.channels_last) and not like.is_contiguous():
            x = x.contiguous(memory_format=torch.channels_last)
        return x

    def clip(self, rows: Tensor, r: Tensor) -> Tensor:
        """r cut where x_0 + r would leave the box."""
        lower, upper = self.box(rows)
        if lower is None or upper is None:
            return r
        x_0 = self.of(rows, self.x_0)
        return r.clamp(lower - x_0, upper - x_0)

    def settled(self, rows: Tensor, r: Tensor) -> Tensor:
        """r as the model sees it: the point x_0 + r, clipped and rounded, minus x_0."""
        x_0 = self.of(rows, self.x_0)
        return self.clamp(rows, x_0 + r) - x_0

    def masked(self, rows: Tensor, w: Tensor) -> Tensor:
        """Gradients (k, d) or (k, m, d), zero on the features that may not change."""
        if self.mask is None:
            return w
        mask = self.mask[rows]
        return w * (mask if w.ndim == 2 else mask.unsqueeze(1))

    def begin_at(self, start: Tensor | Adversarial | None) -> Tensor:
        """The perturbations (n, d) to begin a search with: none, or those that lead to the points `start`."""
        if start is None:
            return torch.zeros_like(self.x_0)
        points = start.x if isinstance(start, Adversarial) else start
        r = points.detach().to(self.x_0).reshape(self.x_0.shape) - self.x_0
        return self.clip(self.everyone, r if self.mask is None else r * self.mask)
