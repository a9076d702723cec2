"""A scene: one side of a question while it is worked on, and how its parts are sent to the page."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from deepfool.classifier import Classifier
from deepfool.display.pixels import Pixels
from deepfool.live.exhibit import Exhibit
from deepfool.live.questions import Question, Side
from deepfool.live.tracing import Step
from deepfool.models.sources import Source

if TYPE_CHECKING:
    from deepfool.live.plane import Plane

AT_ONCE = 600_000
"""Entries of a batch at most, four photographs or 765 digits: a job can be stopped between two batches, and what a
network keeps of one stays small."""


@dataclass
class Answer:
    """What an attack has found."""

    attack: str
    r: Tensor
    """In the shape of x, float64."""
    fooled: bool
    label: int
    adv_label: int
    norm: float
    rho: float
    iterations: int
    reason: str
    seconds: float


@dataclass
class Scene:
    """One side of a question: a model, an attack, and what has been found so far."""

    number: int
    side: Side
    asked: Question
    exhibit: Exhibit
    label: int = -1
    answers: list[Answer] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    plane: Plane | None = None
    """What the map shows."""

    def __post_init__(self) -> None:
        self.source: Source = self.exhibit.models[self.side.model]
        self.dtype = self.exhibit.dtype(self.side.model)
        self.f = Classifier(self.source.module)
        self.x = self.asked.x.to(self.dtype)

    @property
    def best(self) -> Answer | None:
        """The smallest answer that fools."""
        return min((each for each in self.answers if each.fooled), key=lambda each: each.norm, default=None)

    @property
    def shown(self) -> Answer | None:
        """The answer that the page shows: the best one, but where two attacks are compared, that of this side."""
        own = [each for each in self.answers if each.fooled and each.attack == self.side.attack]
        return own[0] if own and len({side.attack for side in self.asked.sides}) > 1 else self.best

    @property
    def knobs(self) -> dict[str, Any]:
        """What every attack is told."""
        asked = self.asked
        bounds = asked.bounds
        if bounds is not None:
            low, high = (torch.as_tensor(bound).to(self.dtype) for bound in bounds)
            bounds = (low, high)
        return {"bounds": bounds, "target": asked.target, "goal": asked.goal, "mask": asked.mask}

    def probabilities(self, points: Tensor) -> Tensor:
        """(n, ...) points to (n, classes), in batches that leave room to stop."""
        step = max(1, AT_ONCE // max(1, points[0].numel()))
        with self.f.frozen(), torch.no_grad():
            parts = [self.f(some.to(self.dtype)).softmax(1) for some in cut(points, step)]
        return torch.cat(parts).double()

    def name(self, label: int) -> str:
        return self.exhibit.name(self.side.model, label)

    def clip(self, points: Tensor) -> Tensor:
        """Inside the box of the question."""
        if self.asked.bounds is None:
            return points
        low, high = (torch.as_tensor(bound, dtype=points.dtype) for bound in self.asked.bounds)
        return points.clamp(low, high)


def cut(points: Tensor, step: int) -> list[Tensor]:
    """In parts of up to `step`.

    >>> [len(part) for part in cut(torch.zeros(5), 2)]
    [2, 2, 1]
    """
    return [points[i : i + step] for i in range(0, len(points), step)]


def rank(probabilities: Tensor, count: int = 5) -> list[list[float]]:
    """The most probable classes: [label, probability].

    >>> rank(torch.tensor([0.25, 0.75]), 1)
    [[1, 0.75]]
    """
    order = probabilities.argsort(descending=True)[:count].tolist()
    return [[label, round(float(probabilities[label]), 6)] for label in order]


def send_numbers(values: Tensor) -> str:
    """As base64 of float32, little-endian, which the page reads without parsing.

    >>> send_numbers(torch.tensor([1.0]))
    'AACAPw=='
    """
    return base64.b64encode(values.detach().cpu().contiguous().numpy().astype("<f4").tobytes()).decode()


def send_bytes(values: np.ndarray[Any, np.dtype[np.uint8]]) -> str:
    """As base64."""
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()


def send_picture(picture: Pixels | Image.Image) -> str:
    """As a PNG in a data URI: without loss, whatever its size.

    >>> send_picture(np.zeros((2, 2), np.uint8))[:22]
    'data:image/png;base64,'
    """
    image, stream = Image.fromarray(picture) if isinstance(picture, np.ndarray) else picture, io.BytesIO()
    image.save(stream, "PNG")
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"
