"""One reproduction in one folder: its settings, and what it stores.

    OUT/runs/        a run folder for each measurement (see `deepfool.runs.records`), which can be resumed
    OUT/checkpoints/ trainings that have begun, after each epoch
    OUT/parts/       everything computed, one JSON file each, with the settings it depends on
    OUT/results/     one JSON file for each experiment; the pages are made from these
    OUT/figures/     the figures

A part is not computed again while its settings stay the same, so a second `reproduce` resumes where the first one
stopped.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from deepfool import __version__, cache
from deepfool.errors import InputError, RunError
from deepfool.experiments.scales import Scale
from deepfool.runs import manifests

MARK = "reproduction.json"


@dataclass(frozen=True)
class Step:
    """The current step; passed to `on_progress`."""

    experiment: str
    part: str
    done: int = 0
    total: int = 0
    """Samples of this part; 0 if they are not counted."""


@dataclass
class Session:
    """Where and how a reproduction runs."""

    out: Path
    scale: Scale
    images: str | None = None
    """A folder of ImageNet images, labelled, for the ImageNet networks."""
    engine: str = "local"
    workers: int | None = None
    on_progress: Callable[[Step], None] = lambda _: None
    experiment: str = field(default="", init=False)
    """The experiment that is running."""
    networks: dict[str, Any] = field(default_factory=dict, init=False)
    """Networks loaded so far, by name."""

    def claim(self) -> None:
        """Take the folder, which must be new or hold a reproduction at this scale."""
        mark = self.out / MARK
        if mark.is_file():
            there = json.loads(mark.read_text("utf-8")).get("scale")
            if there != self.scale.name:
                raise RunError(
                    f"{self.out} holds a reproduction at the scale {there}, not {self.scale.name}.",
                    hint="give another folder with --out.",
                )
        elif self.out.is_dir() and any(self.out.iterdir()):
            raise InputError(f"{self.out} is not empty and does not hold a reproduction.", hint="give another folder.")
        else:
            write_json(mark, {"scale": self.scale.name, "started": manifests.now(), "deepfool": __version__})

    def report(self, part: str, done: int = 0, total: int = 0) -> None:
        self.on_progress(Step(self.experiment, part, done, total))

    def remember(
        self, part: str, settings: Mapping[str, Any], compute: Callable[[], Mapping[str, Any]]
    ) -> dict[str, Any]:
        """The result of `compute`, read from the file of this part if it was made with the same settings."""
        path = self.out / "parts" / f"{part}.json"
        # A JSON round trip, so that the types match those of the stored settings.
        wanted = json.loads(json.dumps({**settings, "deepfool": __version__}))
        if path.is_file():
            there = json.loads(path.read_text("utf-8"))
            if there["settings"] == wanted:
                return dict(there["value"])
        self.report(part)
        begin = time.monotonic()
        value = dict(compute())
        seconds = round(time.monotonic() - begin, 3)
        write_json(path, {"settings": wanted, "value": value, "seconds": seconds, "made": manifests.now()})
        return dict(json.loads(path.read_text("utf-8"))["value"])

    def run_folder(self, name: str, settings: Mapping[str, Any]) -> Path:
        """The folder under runs/ for exactly these settings."""
        return self.out / "runs" / f"{name}-{_key(settings)}"

    def checkpoint(self, name: str, settings: Mapping[str, Any]) -> Path:
        """The file of a training with exactly these settings, while it runs."""
        folder = self.out / "checkpoints"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{name}-{_key(settings)}.pt"

    def keep(self, experiment: str, result: Mapping[str, Any], seconds: float) -> None:
        """Store the result of an experiment; if it has not changed, the old file stays, with its date and duration."""
        path = self.out / "results" / f"{experiment}.json"
        if path.exists():
            filed = json.loads(path.read_text("utf-8"))
            if {key: filed.get(key) for key in result} == json.loads(json.dumps(result)):
                return
        about = {
            "experiment": experiment, "scale": self.scale.name, "made": manifests.now(), "seconds": round(seconds, 1),
            "provenance": describe_machine(), "engine": self.engine,
        }  # fmt: skip
        write_json(path, {**about, **result})


def _key(settings: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]


def describe_machine() -> dict[str, Any]:
    """Versions and cores; nothing that identifies the machine.

    >>> sorted(describe_machine())
    ['cores', 'deepfool', 'numpy', 'python', 'threads', 'torch']
    """
    session = manifests.describe_session()
    kept = {name: session[name] for name in ("deepfool", "torch", "numpy", "python")}
    return {**kept, "cores": os.cpu_count(), "threads": torch.get_num_threads()}


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file, completely or not at all; infinity and NaN raise."""
    cache.write(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def read_results(out: Path) -> dict[str, dict[str, Any]]:
    """The results that a folder holds, by experiment."""
    found = sorted((out / "results").glob("*.json"))
    return {path.stem: json.loads(path.read_text("utf-8")) for path in found}
