"""What the page shows: one or more models, the data if there is any, and what a run has found about its samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepfool.attacks.shared.registry import ATTACKS, find_attack, takes
from deepfool.classifier import Classifier
from deepfool.datasets import Data
from deepfool.errors import DataError, InputError
from deepfool.models.sources import Source
from deepfool.reporting.naming import name_class, names_of_network
from deepfool.runs.records import Run

MOST_FEATURES = 200
"""Inputs with one dimension of up to this many features can be filled in by hand."""
CHUNK = 10_000
"""Rows of a table that are read at once."""
WITH_PATHS = ("onnx", "export", "file", "hf", "folder", "npz")
"""Specs that name a file or a folder."""


@dataclass(frozen=True)
class Exhibit:
    """What is on show. All models take inputs of the same shape."""

    models: tuple[Source, ...]
    shape: tuple[int, ...]
    classes: tuple[int, ...]
    """How many each model has."""
    data: Data | None = None
    data_spec: str | None = None
    rho: dict[int, float] | None = None
    """What a run found for its samples: index -> rho, the most fragile first."""
    box: tuple[Tensor, Tensor] | None = None
    """Of a table: for each feature the smallest and the largest value that occurs."""

    @property
    def kind(self) -> str:
        """ "picture", "row" (can be filled in), or "signal" (can only be picked)."""
        if len(self.shape) == 3 and self.shape[0] in (1, 3):
            return "picture"
        return "row" if len(self.shape) == 1 and self.shape[0] <= MOST_FEATURES else "signal"

    def dtype(self, model: int) -> torch.dtype:
        """What the model computes in."""
        weights = [p.dtype for p in self.models[model].module.parameters() if p.is_floating_point()]
        return weights[0] if weights else torch.float32

    def name(self, model: int, label: int) -> str:
        """The name of a class, from the model or the data."""
        return name_class(self.names(model), label)

    def names(self, model: int) -> list[str]:
        """The names of all classes of a model."""
        source, count = self.models[model], self.classes[model]
        known = source.classes or names_of_network(source.spec)
        if not known and self.data is not None:
            known = self.data.classes
        return [name_class(known, label) for label in range(count)]


def open_exhibit(
    models: Sequence[Source],
    data: Data | None = None,
    *,
    data_spec: str | None = None,
    run: Run | None = None,
    shape: tuple[int, ...] | None = None,
) -> Exhibit:
    """Check that models, data and run go together, and call each model once.

    >>> from deepfool.models.sources import resolve
    >>> exhibit = open_exhibit([resolve("lenet-mnist")])
    >>> exhibit.kind, exhibit.shape, exhibit.classes
    ('picture', (1, 28, 28), (10,))
    """
    if not models:
        raise InputError("a model was expected, got none.", hint="--model lenet-mnist.")
    shape = _find_shape(models, data, shape)
    first = data.batch([0]) if data is not None and len(data) else torch.zeros(1, *shape)
    classes = []
    for source in models:
        weights = [p.dtype for p in source.module.parameters() if p.is_floating_point()]
        f = Classifier(source.module)
        with f.frozen(), torch.no_grad():
            classes.append(f(first.to(weights[0] if weights else torch.float32)).shape[1])
    exhibit = Exhibit(tuple(models), shape, tuple(classes), data, data_spec, None if run is None else _read_rho(run))
    if exhibit.kind == "row" and data is not None and len(data):
        exhibit = replace(exhibit, box=_find_box(data))
    if run is not None and data is not None and exhibit.rho and max(exhibit.rho) >= len(data):
        raise InputError(f"{run.folder} was measured on other data: it has a sample {max(exhibit.rho)}.")
    return exhibit


def _find_shape(models: Sequence[Source], data: Data | None, given: tuple[int, ...] | None) -> tuple[int, ...]:
    known = {source.input_shape: source.spec for source in models if source.input_shape is not None}
    if len(known) > 1:
        told = " and ".join(f"{spec} takes {tuple(shape or ())}" for shape, spec in known.items())
        raise InputError(f"models that are compared must take the same inputs, but {told}.")
    samples = tuple(data.batch([0]).shape[1:]) if data is not None and len(data) else None
    shape = next(iter(known), None) or given or samples
    if shape is None:
        raise InputError(
            f"{models[0].spec} does not say what inputs it takes.",
            hint="give data with --data, or the side of its images with --size (and --grey).",
        )
    if samples is not None and samples != tuple(shape):
        raise DataError(
            f"the model takes inputs of shape {tuple(shape)}, the data has samples of shape {samples}.",
            hint="images of folder: and hf: are resized by --size.",
        )
    return tuple(shape)


def _read_rho(run: Run) -> dict[int, float]:
    records = run.records()
    ratio = records.ratio("p")
    usable = np.flatnonzero(records.fooled & np.isfinite(ratio))
    order = usable[np.argsort(ratio[usable], kind="stable")]
    return {int(records.index[i]): float(ratio[i]) for i in order}


def find_data_of_run(run: Run) -> str:
    """The data that a run was measured on, as one would name it on the command line."""
    spec = run.manifest["data"].get("spec")
    if not isinstance(spec, str):
        raise InputError(f"{run.folder} was not measured on data with a name.", hint="name the data with --data.")
    return spec


def describe(exhibit: Exhibit) -> dict[str, Any]:
    """What the page needs to know before the first question."""
    data = exhibit.data
    return {
        "models": [
            {"name": _short(source.spec), "spec": source.spec, "classes": exhibit.names(i)}
            for i, source in enumerate(exhibit.models)
        ],
        "shape": list(exhibit.shape),
        "kind": exhibit.kind,
        "drawable": exhibit.kind == "picture" and exhibit.shape[0] == 1 and exhibit.shape[1] == exhibit.shape[2],
        "uploads": exhibit.kind == "picture" and exhibit.shape[1] == exhibit.shape[2],
        "data": None
        if data is None
        else {"name": _short(exhibit.data_spec or data.name), "count": len(data), "classes": _present(data)},
        "ranked": exhibit.rho is not None,
        "attacks": [{"name": name, "any_norm": takes(find_attack(name), "p")} for name in ATTACKS],
        "range": _range_of(exhibit),
    }


def _short(spec: str) -> str:
    """A spec without the folders of its path, which are too long for a heading.

    >>> _short("onnx:/some/where/net.onnx"), _short("lenet-mnist")
    ('onnx:net.onnx', 'lenet-mnist')
    """
    kind, colon, rest = spec.partition(":")
    shortened = colon and "/" in rest and kind in WITH_PATHS
    return f"{kind}:{Path(rest).name}" if shortened else spec


def _present(data: Data) -> list[dict[str, Any]]:
    labels, counts = np.unique(data.labels.numpy(), return_counts=True)
    return [
        {"label": int(label), "name": name_class(data.classes, int(label)), "count": int(count)}
        for label, count in zip(labels, counts, strict=True)
        if label >= 0
    ]


def _range_of(exhibit: Exhibit) -> dict[str, list[float]] | None:
    """The smallest and largest value of each feature of a table, and an ordinary row to begin with."""
    if exhibit.kind != "row":
        return None
    if exhibit.data is None or exhibit.box is None:
        return {"low": [], "high": [], "median": [0.0] * exhibit.shape[0]}
    low, high = exhibit.box
    some = exhibit.data.batch(range(min(len(exhibit.data), CHUNK))).double()
    return {"low": low.tolist(), "high": high.tolist(), "median": some.median(0).values.tolist()}


def _find_box(data: Data) -> tuple[Tensor, Tensor]:
    """For each feature the smallest and the largest value that occurs."""
    parts = [data.batch(range(i, min(i + CHUNK, len(data)))).double() for i in range(0, len(data), CHUNK)]
    lows, highs = zip(*((part.amin(0), part.amax(0)) for part in parts), strict=True)
    return torch.stack(lows).amin(0), torch.stack(highs).amax(0)
