"""What is audited: a few samples, what the run found for them, and what the strongest attack finds there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from deepfool.attacks.shared.aims import find_goal
from deepfool.classifier import Classifier
from deepfool.classifier.classifier import OUTPUTS
from deepfool.datasets import Data
from deepfool.errors import InputError, RunError
from deepfool.outcomes import Status
from deepfool.runs.rows import Ints, Records, Row
from deepfool.runs.worker import Batch, Job, Worker

SAMPLES = 8
"""How many samples are audited: enough to tell 3 healthy networks from 11 troubled ones, and cheap."""

STRONGEST = "smallest"
STRONG, WEAK = 1000, 100
"""Passes per sample: what is taken for the smallest perturbation known, and a tenth of it."""
NORMS = (1.0, 2.0, float("inf"))
"""Those that the strongest attack works in."""

_SHARED = ("bounds", "target", "goal", "mask", "subspace", "weights", "schema", "threshold", "outputs")
"""The knobs that say what is asked, not how it is searched for: the strongest attack gets the same."""


@dataclass(frozen=True)
class Subject:
    """Everything that the checks look at."""

    module: nn.Module
    f: Classifier
    x: Tensor
    """The samples, on the device and in the precision of the run."""
    job: Job
    records: Records
    """All rows of the run."""
    rows: tuple[Row, ...]
    """Those of the samples."""
    weak: tuple[Row, ...]
    """What the strongest attack finds with a tenth of its passes; empty if it does not work in this norm."""
    strong: tuple[Row, ...]
    """What it finds with all of them."""
    r: Tensor | None
    """The perturbations of `strong`."""

    @property
    def bounds(self) -> Any:
        return self.job.knobs.get("bounds")

    def fooled(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """(x, r, labels) of the samples that the strongest attack fooled; None if there are none."""
        if self.r is None:
            return None
        keep = [i for i, row in enumerate(self.strong) if row["status"] == Status.FOOLED.name]
        label = torch.tensor([self.strong[i]["label"] for i in keep], device=self.x.device)
        return (self.x[keep], self.r[keep], label) if keep else None


def choose_samples(records: Records, samples: int) -> Ints:
    """The positions of the samples to audit: from the most fragile to the most robust, more of the robust ones.

    A search that went wrong ends with a perturbation that is too large: on a provably trained network, all 9 of 100
    rows that were off by more than 1.2 times were among the largest quarter. What was not fooled counts as the most
    robust; what was misclassified to begin with is left out.

    >>> rows = [{"index": i, "label": 0, "status": "FOOLED", "r_p": 100.0 - i, "x_p": 1.0} for i in range(100)]
    >>> choose_samples(Records.of(rows, p=2), 5).tolist()
    [99, 56, 25, 6, 0]
    """
    searched = np.flatnonzero(records.status != Status.MISCLASSIFIED)
    order = searched[np.argsort(records.r["p"][searched], kind="stable")]
    if len(order) <= samples:
        return order
    quantiles = 1 - np.linspace(1, 0, samples) ** 2 if samples > 1 else np.ones(1)
    return np.asarray(order[np.unique((quantiles * (len(order) - 1)).round().astype(np.int64))])


def spread(count: int, wanted: int) -> Ints:
    """At most `wanted` of `count` places, evenly spread, the first and the last among them.

    >>> spread(100, 3).tolist(), spread(2, 8).tolist()
    ([0, 50, 99], [0, 1])
    """
    return np.unique(np.linspace(0, count - 1, min(wanted, count)).round().astype(np.int64))


def refuse_other_goals(knobs: Mapping[str, Any]) -> None:
    """An error where the scores are not those of classes: the checks look at which class wins.

    >>> refuse_other_goals({"goal": "within:0.5"})
    Traceback (most recent call last):
    ...
    deepfool.errors.InputError: an audit looks at the scores of classes, and the goal within:0.5 has none. Hint: ...
    """
    aim = find_goal(knobs)
    if aim.reads != "classes":
        raise InputError(
            f"an audit looks at the scores of classes, and the goal {aim} has none.",
            hint="measure again with --attack smallest and a larger budget, and compare.",
        )


def make_subject(
    module: nn.Module, data: Data, job: Job, rows: Sequence[Row], records: Records, *, strong: int = STRONG
) -> Subject:
    """Attack the samples of these rows again with the strongest attack, at `strong` passes and a tenth of them."""
    refuse_other_goals(job.knobs)
    x = data.batch([row["index"] for row in rows])
    batch = Batch([row["index"] for row in rows], np.asarray(x), [-1] * len(rows))
    weak_rows: tuple[Row, ...] = ()
    strong_rows: tuple[Row, ...] = ()
    r = None
    if job.p in NORMS:
        weak_rows, _ = attack_with(_strongest(job, max(1, strong // 10)), module, batch)
        strong_rows, r = attack_with(_strongest(job, strong), module, batch)
    f, device, dtype = _as_classifier(module, job)
    return Subject(
        module, f, x.to(device=device, dtype=dtype), job, records, tuple(rows), weak_rows, strong_rows,
        None if r is None else r.to(device),
    )  # fmt: skip


def attack_with(job: Job, module: nn.Module, batch: Batch) -> tuple[tuple[Row, ...], Tensor]:
    """The rows of a batch, and its perturbations."""
    groups = Worker(replace(job, keep_perturbations=True), module).run(batch)
    r = np.concatenate([group.r for group in groups if group.r is not None])
    return tuple(row for group in groups for row in group.rows), torch.from_numpy(r)


def _strongest(job: Job, budget: int) -> Job:
    knobs = {name: job.knobs[name] for name in _SHARED if job.knobs.get(name) is not None}
    knobs["budget"] = budget
    return replace(job, attack=STRONGEST, knobs=knobs, skip_misclassified=False, compile=False, may_halve=True)


def _as_classifier(module: nn.Module, job: Job) -> tuple[Classifier, torch.device, torch.dtype]:
    """The model as the run read it, where and in the precision in which it ran."""
    worker = Worker(replace(job, attack=STRONGEST, compile=False), module)
    outputs = job.knobs.get("outputs")
    reading = outputs if outputs in OUTPUTS else "auto"
    f = Classifier(worker.f.model, threshold=job.knobs.get("threshold"), outputs=reading)
    return f, worker.device, worker.dtype


def read_knobs(knobs: Mapping[str, Any]) -> dict[str, Any]:
    """The knobs of a manifest as an attack takes them; an error where only a hash of one was kept.

    >>> read_knobs({"bounds": [0, 1], "max_iter": 50})
    {'bounds': (0, 1), 'max_iter': 50}
    """
    for name in _SHARED:
        if isinstance(knobs.get(name), Mapping) and "sha256" in knobs[name]:
            raise RunError(
                f"the run was measured with a tensor for {name}, of which the manifest keeps only the hash.",
                hint="`evaluate` audits such a run itself, at its end (audit=True).",
            )
    bounds = knobs.get("bounds")
    return {**knobs, **({"bounds": tuple(bounds)} if isinstance(bounds, list) else {})}
