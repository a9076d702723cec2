"""A case: a number that says which model, attack, inputs and arguments. The same number is the same case everywhere."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

import deepfool
from deepfool.attacks.shared import pruning
from tests.hostile.models import KINDS, Kind, Model

ANY_P, USUAL_P, L2, LINF = (1.0, 1.5, 2.0, 2.0, 4.0, math.inf), (1.0, 2.0, 2.0, math.inf), (2.0,), (math.inf,)

NORMS: dict[str, tuple[float, ...]] = {
    "deepfool": ANY_P, "smallest": USUAL_P, "superdeepfool": L2, "ddn": L2, "fmn": USUAL_P, "fab": USUAL_P,
    "fgsm": LINF, "lbfgs": L2,
}  # fmt: skip
"""Each attack, and the norms it takes."""

WEIGHTS = {"deepfool": 12, "smallest": 6, "lbfgs": 1}
"""How often an attack is drawn; 2 where nothing is said."""


@dataclass(frozen=True)
class Case:
    """What is drawn before anything is computed."""

    number: int
    kind: Kind
    attack: str
    dtype: torch.dtype
    n: int
    p: float
    bounds: str
    mask: str
    target: bool
    labels: bool
    training: bool
    strided: bool
    knobs: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def draw(number: int) -> Case:
        """Kinds take turns, so that a slice has all of them; the rest is drawn."""
        draw = random.Random(number)
        kind = list(KINDS.values())[number % len(KINDS)]
        attack = draw.choices(list(NORMS), [WEIGHTS.get(name, 2) for name in NORMS])[0]
        types = [torch.float32] * 5 + [torch.float64] * 2 + [torch.float16] * (2 if kind.half else 0)
        return Case(
            number=number, kind=kind, attack=attack, dtype=draw.choice(types),
            n=draw.randint(1, 2 if attack == "lbfgs" else 9),  # lbfgs takes one sample after the other
            p=draw.choice(NORMS[attack]),
            bounds=draw.choice(["none", "none", "numbers", "per feature", "per sample"]),
            mask=draw.choice(["none", "none", "none", "per feature", "per sample"]),
            target=draw.random() < 0.2, labels=draw.random() < 0.25, training=draw.random() < 0.3,
            strided=draw.random() < 0.1, knobs=_draw_knobs(draw, attack, kind.scale),
        )  # fmt: skip

    def __str__(self) -> str:
        knobs = ", ".join(f"{name}={value}" for name, value in self.knobs.items())
        extras = [name for name in ("target", "labels", "training", "strided") if getattr(self, name)]
        return (
            f"{self.kind.name}, {self.attack}({knobs}), p={self.p:g}, {str(self.dtype).removeprefix('torch.')}, "
            f"n={self.n}, bounds {self.bounds}, mask {self.mask}{''.join(', ' + name for name in extras)}"
        )

    def prepare(self) -> Setup:
        """The model, the inputs and the arguments."""
        generator = torch.Generator().manual_seed(self.number)
        model, shape = self.kind.build(generator)
        if isinstance(model, nn.Module):
            model = _used(model.to(self.dtype), generator, self.training)
        x = self.kind.scale * torch.rand(self.n, *shape, generator=generator)
        edge = torch.rand(x.shape, generator=generator)
        x = torch.where(edge < 0.03, torch.zeros_like(x), torch.where(edge > 0.97, self.kind.scale, x)).to(self.dtype)
        if self.strided:  # every other entry of something larger
            x = torch.stack([x, x + 1], -1)[..., 0]
        arguments = dict(self.knobs)
        if self.attack in ("deepfool", "smallest", "fmn", "fab"):
            arguments["p"] = self.p
        if self.kind.threshold is not None:
            arguments["threshold"] = self.kind.threshold
        lower, upper = _draw_bounds(self.bounds, x, self.kind.scale, generator)
        if lower is not None:
            plain = self.bounds == "numbers"
            arguments["bounds"] = (0.0, self.kind.scale) if plain else (lower, upper)
        mask = _draw_mask(self.mask, x, generator)
        if mask is not None:
            arguments["mask"] = mask
        setup = Setup(self, model, x, arguments, lower, upper, mask, Reader(model, self.kind))
        setup.add_labels(generator)
        return setup


def _draw_knobs(draw: random.Random, attack: str, scale: float) -> dict[str, Any]:
    """The defaults, or what costs less or comes nearer to an end of what is allowed."""
    knobs: dict[str, Any] = {}
    if attack == "deepfool" and draw.random() < 0.3:
        knobs = {"overshoot": draw.choice([0.0, 1e-4, 0.5]), "max_iter": draw.choice([1, 5, 50])}
    elif attack == "smallest" and draw.random() < 0.3:
        knobs = {"budget": draw.choice([10, 30, 50, 300])}
    elif attack == "superdeepfool":
        knobs = {"turns": draw.choice([1, 3, 10]), "max_iter": 20}
    elif attack in ("ddn", "fmn"):
        knobs = {"steps": draw.choice([1, 10, 40]), "step_size": scale}
        knobs |= {"first_norm": scale} if attack == "ddn" else {}
    elif attack == "fab":
        knobs = {"steps": draw.choice([1, 10, 20])} | ({"one_by_one": 2} if draw.random() < 0.2 else {})
    elif attack == "fgsm":
        knobs = {"eps": scale * draw.choice([0.05, 0.3, 1.0])}
    elif attack == "lbfgs":
        knobs = {"candidates": 2, "max_iter": 5, "brackets": 4, "bisections": 1}
    if attack != "smallest" and draw.random() < 0.4:
        knobs["tighten"] = draw.random() < 0.8
    return knobs


def _used(model: nn.Module, generator: torch.Generator, training: bool) -> nn.Module:
    """As a model comes out of a training script: with gradients, some weights frozen, perhaps still in training."""
    for i, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(i % 3 != 2)
        if i % 2 == 0:
            parameter.grad = torch.rand(parameter.shape, generator=generator).to(parameter.dtype)
    return model.train(training)


def _draw_bounds(kind: str, x: Tensor, scale: float, generator: torch.Generator) -> tuple[Tensor | None, Tensor | None]:
    """(lower, upper) in the type of x and with x inside; some features have no room, some have no bound."""
    if kind == "none":
        return None, None
    if kind == "numbers":
        return torch.zeros_like(x), torch.full_like(x, scale)
    shape = x.shape[1:] if kind == "per feature" else x.shape
    lowest, highest = (x.amin(0), x.amax(0)) if kind == "per feature" else (x, x)
    below, above = (scale * torch.rand(shape, generator=generator).to(x.dtype) for _ in range(2))
    special = torch.rand(shape, generator=generator)
    lower = torch.where(special < 0.05, lowest, torch.where(special > 0.97, -math.inf, lowest - below))
    upper = torch.where(special < 0.05, highest, torch.where(special > 0.95, math.inf, highest + above))
    return lower, upper


def _draw_mask(kind: str, x: Tensor, generator: torch.Generator) -> Tensor | None:
    if kind == "none":
        return None
    shape = x.shape[1:] if kind == "per feature" else x.shape
    return torch.rand(shape, generator=generator) < 0.7


class Reader:
    """How the harness reads a model: by itself, without the package."""

    def __init__(self, model: Model, kind: Kind) -> None:
        self.model = deepcopy(model).eval() if isinstance(model, nn.Module) else model
        self.double = deepcopy(self.model).double() if isinstance(self.model, nn.Module) else model
        self.cut = kind.cut

    def outputs(self, x: Tensor) -> Tensor:
        """(n, c) scores whose largest is the decision; one output becomes (cut, output)."""
        with torch.no_grad():
            z = (self.double if x.dtype == torch.float64 else self.model)(x)
        if z.ndim == 1 and len(z) != len(x):  # the batch dimension was squeezed away
            z = z[None]
        z = z.reshape(len(x), -1)
        return torch.cat([torch.full_like(z, self.cut), z], 1) if z.shape[1] == 1 else z

    def labels(self, x: Tensor) -> Tensor:
        return self.outputs(x).argmax(1)


@dataclass
class Setup:
    """A case that can be run."""

    case: Case
    model: Model
    x: Tensor
    arguments: dict[str, Any]
    lower: Tensor | None
    upper: Tensor | None
    mask: Tensor | None
    reader: Reader
    classes: int = 0
    target: Tensor | None = None

    def add_labels(self, generator: torch.Generator) -> None:
        """True labels, a few of them not what is predicted; targets, none of them what is predicted."""
        z = self.reader.outputs(self.x)
        predicted, self.classes = z.argmax(1), z.shape[1]
        other = torch.randint(1, self.classes, (len(z),), generator=generator)
        if self.case.labels:
            wrong = torch.rand(len(z), generator=generator) < 0.2
            self.arguments["labels"] = torch.where(wrong, (predicted + other) % self.classes, predicted)
        if self.case.target:
            self.target = self.arguments["target"] = (predicted + other) % self.classes

    @property
    def attack(self) -> Callable[..., deepfool.Adversarial]:
        return getattr(deepfool, self.case.attack)  # type: ignore[no-any-return]

    def run(self, rows: Tensor | None = None, x: Tensor | None = None, **changes: Any) -> deepfool.Adversarial:
        """The attack on all rows or on some, with other inputs or knobs if they are given."""
        x = self.x if x is None else x
        arguments = self.arguments | changes
        if rows is not None:
            x = x[rows]
            arguments = {name: self._of_rows(value, rows) for name, value in arguments.items()}
        with patch.object(pruning, "WORTH", 0):  # rows of models as small as these would all be taken
            return self.attack(self.model, x, **arguments)

    def _of_rows(self, value: Any, rows: Tensor) -> Any:
        """An argument for some of the rows: what has an entry per sample is cut, the rest stays."""
        if isinstance(value, tuple):
            return tuple(self._of_rows(part, rows) for part in value)
        per_sample = isinstance(value, Tensor) and (value.ndim == self.x.ndim or value.dtype == torch.long)
        return value[rows] if per_sample else value
