"""One call of `finetune`: the checked arguments that perturbing, training and judging share."""

from __future__ import annotations

import hashlib
import marshal
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepfool import __version__
from deepfool.attacks.shared.arguments import Bounds
from deepfool.attacks.shared.registry import ATTACKS, Attack, find_attack, name_attack
from deepfool.datasets import Data
from deepfool.errors import DataError
from deepfool.models.sources import Source
from deepfool.runs import manifests
from deepfool.training.processes import Team
from deepfool.training.results import OnProgress, Progress
from deepfool.training.sgd import Recipe


@dataclass(frozen=True)
class Samples:
    """A data set, and how the caller named it."""

    data: Data
    given: Any
    split: str
    size: int | None
    limit: int | None

    @property
    def count(self) -> int:
        return min(len(self.data), self.limit or len(self.data))

    def named(self) -> dict[str, Any]:
        """Arguments for `evaluate`: the name where there is one, so that the manifest says where the data came from."""
        where = {"split": self.split, "size": self.size}
        return {"data": self.given, **where} if isinstance(self.given, str) else {"data": self.data}

    def labels(self, role: str) -> Tensor:
        labels = self.data.labels[: self.count]
        if bool((labels < 0).any()):
            raise DataError(f"the {role} data have samples without a label: {self.data!r}.")
        return labels


@dataclass(frozen=True)
class Job:
    """The checked arguments of one call."""

    team: Team
    source: Source
    original: Any
    """The model before fine-tuning, as a spec or a module."""
    home: torch.device
    """The device of the caller's model."""
    perturb: str | Attack
    recipe: Recipe
    magnify: float
    mix: float
    fresh: bool
    judges: tuple[str, ...]
    judged: int
    seed: int
    p: float
    bounds: Bounds | None
    train: Samples
    test: Samples
    place: Path
    """The folder of perturbed sets and judgements."""
    how: dict[str, Any]
    """Arguments for `evaluate`: device, engine and workers."""
    knobs: dict[str, Any]
    device: str
    on_progress: OnProgress

    @property
    def reading(self) -> dict[str, Any]:
        """The knobs that say how to read the model as a classifier; training and judges need them too."""
        return {name: self.knobs[name] for name in ("threshold", "outputs") if name in self.knobs}

    def settings(self) -> dict[str, Any]:
        """Everything that the result depends on, ready for JSON."""
        attack = None if self.perturb == "clean" else identify_attack(self.perturb, self.knobs)
        described: dict[str, Any] = manifests.describe_value({
            "deepfool": __version__, "model": self.source.fingerprint, "spec": self.source.spec,
            "data": self.train.data.fingerprint(), "samples": self.train.count, "test": self.test.data.fingerprint(),
            "perturb": attack, "recipe": asdict(self.recipe), "magnify": self.magnify, "mix": self.mix,
            "fresh": self.fresh, "judges": self.judges, "judged": self.judged, "seed": self.seed, "p": self.p,
            "bounds": self.bounds,
        })  # fmt: skip
        return described

    def report(self, stage: str, epoch: int, done: int, total: int, **more: Any) -> None:
        if self.team.is_main:
            self.on_progress(Progress(stage, epoch, self.recipe.epochs, done, total, **more))


def identify_attack(attack: str | Attack, knobs: Mapping[str, Any]) -> dict[str, Any]:
    """Name and knobs; for an attack from outside this package also its code, which may change at any time.

    >>> identify_attack("deepfool", {"max_iter": 10})
    {'name': 'deepfool', 'knobs': {'max_iter': 10}}
    """
    name = name_attack(attack)
    described = {"name": name, "knobs": manifests.describe_value(dict(knobs))}
    if name in ATTACKS or name.startswith("deepfool."):
        return described
    function: Any = find_attack(attack)
    code = getattr(function, "__code__", None)
    held = [repr(cell.cell_contents) for cell in getattr(function, "__closure__", None) or ()]
    content = marshal.dumps(code) if code is not None else repr(function).encode()
    return {**described, "code": hashlib.sha256(content + repr(held).encode()).hexdigest()}
