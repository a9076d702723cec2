"""`audit`: how far to trust what a run measured, or what an attack would measure on a model."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from deepfool.attacks.shared.arguments import Bounds
from deepfool.attacks.shared.registry import Attack
from deepfool.datasets import Data, load
from deepfool.errors import DeepFoolError, InputError, RunError, is_out_of_memory
from deepfool.models.sources import resolve
from deepfool.norms import check_p
from deepfool.runs import manifests
from deepfool.runs.asking import make_plain
from deepfool.runs.audit import on_the_model, on_the_result
from deepfool.runs.audit.checklist import AUDIT, LEAST, Audit, keep_audit
from deepfool.runs.audit.subject import (
    SAMPLES,
    STRONGEST,
    attack_with,
    choose_samples,
    make_subject,
    read_knobs,
    refuse_other_goals,
    spread,
)
from deepfool.runs.execution import choose_device
from deepfool.runs.records import Run
from deepfool.runs.rows import Records, Row
from deepfool.runs.verification import find_subjects
from deepfool.runs.worker import Batch, Job, describe_job
from deepfool.values import check_count

EVERY = 50
"""`evaluate` audits one of so many samples, and at most `SAMPLES`."""

AMONG = 4
"""Without a run, so many times more samples are attacked first, to choose from."""


class AuditWarning(UserWarning):
    """A run could not be audited; what it measured stands."""


def audit(
    subject: Any,
    data: Any = None,
    attack: str | Attack = STRONGEST,
    *,
    p: float = 2,
    bounds: Bounds | None = None,
    model: Any = None,
    arch: Any = None,
    split: str = "test",
    size: int | None = None,
    limit: int | None = None,
    samples: int = SAMPLES,
    device: str = "cpu",
    dtype: str = "float32",
    seed: int = 0,
    may_run_code: bool = False,
    **knobs: Any,
) -> Audit:
    """Check how far to trust a measurement, on a few samples: a checklist of pass, caution and fail.

    Of a run, its rows are checked, and the outcome is kept in its folder (`audit.json`). Of a model and data, what
    `attack` finds there. A few samples are attacked again with `smallest` at 100 and at 1000 passes, so an audit of 8
    samples takes about as long as 9,000 passes.

    Args:
        subject: a `Run`, or a model as in `evaluate`.
        data: as in `evaluate`; of a run, only if it was made from data in memory.
        attack, p, bounds, arch, split, size, dtype, seed, **knobs: as in `evaluate`; a run has its own.
        model: the model of a run, if it was made from a module.
        limit: choose among the first `limit` samples only.
        samples: how many samples to audit.
        device: "cpu", "cuda", "cuda:1", "mps", or "auto".
        may_run_code: allow code that the manifest of a run names as its model (`py:`).

    >>> import torch
    >>> found = audit(torch.nn.Linear(4, 3), (torch.rand(20, 4), None), samples=4)
    >>> found.verdict.value, found["gradients"].sentence
    ('pass', 'Each of 4 samples has a gradient to follow.')
    """
    samples, device = check_count(samples, "samples"), choose_device(device)
    if isinstance(subject, Run):
        return _audit_run(subject, model, data, samples=samples, device=device, may_run_code=may_run_code)
    if data is None:
        raise InputError("an audit needs a run, or a model and data.", hint="deepfool.audit(model, data).")
    refuse_other_goals(knobs)
    source = resolve(copy.deepcopy(subject) if isinstance(subject, nn.Module) else subject, arch=arch)
    chosen = load(data, split=split, size=size)
    job = describe_job(
        subject, source, attack, p=p, arch=arch, device=device, dtype=dtype, seed=seed, skip_misclassified=False,
        knobs={**make_plain(knobs, chosen.batch([0]), check_p(p)), **({} if bounds is None else {"bounds": bounds})},
    )  # fmt: skip
    selection = manifests.select(len(chosen), limit=limit)
    index = selection[spread(len(selection), AMONG * samples)].tolist()
    rows, _ = attack_with(job, source.module, Batch(index, np.asarray(chosen.batch(index)), [-1] * len(index)))
    records = Records.of(rows, job.p)
    picked = [rows[i] for i in sorted(choose_samples(records, samples).tolist())]
    return _go_through(source.module, chosen, job, picked, records)


def _audit_run(run: Run, model: Any, data: Any, *, samples: int, device: str, may_run_code: bool) -> Audit:
    source, loaded = find_subjects(run, model, data, may_run_code=may_run_code)
    identity = run.identity
    job = Job(
        model=source.module, fingerprint=source.fingerprint, attack=identity["attack"]["name"], p=run.p,
        knobs=read_knobs(identity["attack"]["knobs"]), device=device, dtype=identity["dtype"], seed=identity["seed"],
    )  # fmt: skip
    return _audit_rows(run, loaded, job, source.module, samples)


def is_audited(run: Run, *, renew: bool) -> bool:
    """Whether `evaluate` audits a run that it has completed: if it is large enough, and was not audited before."""
    return run.expected >= LEAST and (renew or not (run.folder / AUDIT).exists())


def audit_at_the_end(run: Run, data: Data, job: Job, module: nn.Module) -> None:
    """Audit a run that `evaluate` has completed. If that fails, there is a warning: what was measured stands."""
    try:
        _audit_rows(run, data, job, module, min(SAMPLES, run.expected // EVERY))
    except (DeepFoolError, MemoryError, RuntimeError) as error:
        if not (isinstance(error, DeepFoolError) or is_out_of_memory(error)):
            raise
        warnings.warn(f"there is no audit: {error}", AuditWarning, stacklevel=2)


def _audit_rows(run: Run, data: Data, job: Job, module: nn.Module, samples: int) -> Audit:
    records = run.records()
    wanted = set(records.index[choose_samples(records, samples)].tolist())
    if not wanted:
        raise RunError(f"{run.folder} has no rows to audit.")
    rows = sorted((row for row in run.rows() if row["index"] in wanted), key=lambda row: int(row["index"]))
    found = _go_through(module, data, replace(job, model=module), rows, records)
    keep_audit(run, found)
    return found


def _go_through(module: nn.Module, data: Data, job: Job, rows: Sequence[Row], records: Records) -> Audit:
    """The checklist."""
    subject = make_subject(module, data, job, rows, records)
    checks = [check for each in (*on_the_model.CHECKS, *on_the_result.CHECKS) for check in each(subject)]
    return Audit(tuple(checks), tuple(int(row["index"]) for row in rows))
