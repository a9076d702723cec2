"""Runs of `evaluate` that are cached under the hash of everything they depend on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

from deepfool import __version__, cache
from deepfool.attacks.shared.registry import Attack, name_attack
from deepfool.errors import RunError
from deepfool.runs import manifests
from deepfool.runs.evaluation import evaluate
from deepfool.runs.records import Run
from deepfool.training.jobs import Job, Samples, identify_attack


@dataclass(frozen=True)
class Measurement:
    """One cached run: a model, some samples and an attack."""

    job: Job
    weights: str
    """The fingerprint of the model."""
    samples: Samples
    attack: str | Attack
    p: float
    knobs: Mapping[str, Any]
    limit: int | None
    perturbations: bool = False
    labels: bool = False

    @property
    def folder(self) -> Path:
        about = {
            "deepfool": __version__, "model": self.weights, "data": self.samples.data.fingerprint(),
            "attack": identify_attack(self.attack, self.knobs), "p": self.p, "seed": self.job.seed,
            "samples": min(len(self.samples.data), self.limit or len(self.samples.data)),
        }  # fmt: skip
        key = hashlib.sha256(json.dumps(manifests.describe_value(about), sort_keys=True).encode()).hexdigest()[:16]
        return self.job.place / ("perturbed" if self.perturbations else "judged") / key

    def run(self, model: Any, stage: str, epoch: int) -> Run:
        """Measure whatever the cache does not have yet."""
        folder, name = self.folder, name_attack(self.attack)
        cache.make_folder(folder.parent)
        # Another process that needs the same run waits here, and then finds it done.
        with filelock.FileLock(folder.with_suffix(".lock")):
            with suppress(RunError):
                if (run := Run(folder)).complete:
                    return run
            stopped: list[bool] = []
            run = evaluate(
                model, attack=self.attack, out=folder, p=self.p, limit=self.limit, seed=self.job.seed,
                save_perturbations=self.perturbations, skip_misclassified=self.labels, **self.samples.named(),
                on_progress=lambda now: self.job.report(stage, epoch, now.done, now.total, name=name),
                on_stop=lambda: stopped.append(True), audit=False,
                **{**self.job.how, "arch": self.job.how["arch"] if isinstance(model, str) else None}, **self.knobs,
            )  # fmt: skip
        if stopped:  # Ctrl-C during the last batch does not stop that run, but it must stop the fine-tuning
            raise KeyboardInterrupt
        return run
