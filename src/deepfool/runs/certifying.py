"""certify_run(): certificates for the rows of a run that is there.

They go into `certificates.jsonl`, batch by batch, so a run can be certified in several sittings, and again with more
time. The records are not touched: what was verified stays verified.
"""

from __future__ import annotations

import copy
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import filelock
import numpy as np

from deepfool import __version__
from deepfool.attacks.shared.aims import find_goal
from deepfool.certificates.checking import certifiable
from deepfool.datasets import Data
from deepfool.errors import RunError
from deepfool.models.sources import Source
from deepfool.outcomes import Proof, Status
from deepfool.runs import manifests
from deepfool.runs.asking import refuse_proof
from deepfool.runs.execution import choose_device
from deepfool.runs.local import run_here, run_in_processes
from deepfool.runs.proofs import CERTIFICATES, QUESTION, describe_question, find_end
from deepfool.runs.proving import PAUSE, check_seconds, choose_together
from deepfool.runs.records import Run
from deepfool.runs.rows import Row, encode_row
from deepfool.runs.verification import find_subjects
from deepfool.runs.worker import DTYPES, Job, Unproved, read_classifier
from deepfool.runs.writing import LOCK, unwritable, write_all
from deepfool.values import check_callable, check_optional_count

TOGETHER = 32
"""Samples at once, at most."""


def certify_run(
    run: Run,
    model: Any = None,
    data: Any = None,
    *,
    seconds: float = 1.0,
    device: str = "cpu",
    workers: int | None = None,
    may_run_code: bool = False,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Run:
    """Add certified lower bounds to a run, and return it.

    Samples that are exact, or were given as much time before, are left as they are: a call that was stopped is resumed
    by the same call, and one with more `seconds` goes on where it pays.

    Args:
        run: the run, complete or not.
        model, data: needed only if the run was made from objects; they must have the hashes in the manifest.
        seconds: how long to work on each sample.
        device: where the model confirms what is found; the proof itself is computed on the CPU.
        workers: how many processes share the samples; None for this one.
        may_run_code: if the manifest names code as the model (`py:`), it is run only with this.
        on_progress: called with how many of the samples that need it are done, and how many there are.

    >>> import tempfile, torch
    >>> from deepfool import evaluate
    >>> model, data = torch.nn.Linear(4, 3), (torch.rand(8, 4), torch.zeros(8, dtype=torch.long))
    >>> with tempfile.TemporaryDirectory() as here:
    ...     run = certify_run(evaluate(model, data, out=here), model, data)
    ...     [row["proof"] for row in run.rows()].count("EXACT")
    8
    """
    check_seconds(seconds)
    check_callable(on_progress, "on_progress")
    workers = check_optional_count(workers, "workers")
    source, samples = find_subjects(run, model, data, may_run_code=may_run_code)
    return certify_rows(
        run, source, samples, seconds=seconds, device=choose_device(device), workers=workers, on_progress=on_progress
    )


def certify_rows(
    run: Run,
    source: Source,
    samples: Data,
    *,
    seconds: float,
    device: str = "cpu",
    workers: int | None = None,
    knobs: Mapping[str, Any] | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Run:
    """The same with the model and the data at hand, and perhaps the knobs of the attack."""
    wanted = find_wanted(run, seconds)
    if not wanted:
        return run
    job = Job(
        model=source.module, fingerprint=source.fingerprint, attack=run.identity["attack"]["name"], p=run.p,
        knobs=dict(_read_knobs(run) if knobs is None else knobs), device=device, dtype=run.identity["dtype"],
        certify=seconds,
    )  # fmt: skip
    refuse_proof(job.knobs)
    kind = {"device": device, "dtype": DTYPES[job.dtype]}
    f = read_classifier(copy.deepcopy(source.module).to(**kind), job.knobs)
    first = samples.batch([wanted[0]["index"]]).to(**kind)
    certifiable(f, first, p=run.p, seconds=seconds, goal=find_goal(job.knobs))
    plan = _Plan(samples, wanted, choose_together(TOGETHER, seconds))
    several = workers is not None and workers > 1
    groups = run_in_processes(job, plan, workers or 1) if several else run_here(job, plan, source.module)
    done = 0
    with _Writer(run, seconds) as writer, closing(groups):  # so that workers end here, whatever is raised
        begin = time.monotonic()
        for group in groups:
            writer.append(group.rows)
            done += len(group.rows)
            on_progress(done, len(wanted))
            if time.monotonic() - begin < PAUSE / 4:  # small networks seldom take all the time they are given
                plan.together = min(TOGETHER, 2 * plan.together)
            begin = time.monotonic()
    return run


class _Plan:
    """The samples in batches whose size may change on the way."""

    def __init__(self, samples: Data, wanted: Sequence[Row], together: int) -> None:
        self.samples, self.wanted, self.together = samples, wanted, together

    def __iter__(self) -> Iterator[Unproved]:
        start = 0
        while start < len(self.wanted):
            rows = self.wanted[start : start + self.together]
            start += len(rows)
            index = [row["index"] for row in rows]
            yield Unproved(
                index, np.asarray(self.samples.batch(index)), [-1] * len(rows), [row["label"] for row in rows],
                [math.inf if row["r_p"] is None else float(row["r_p"]) for row in rows],
            )  # fmt: skip


def find_wanted(run: Run, seconds: float) -> list[Row]:
    """The rows that more work may help: those that are not exact, and were not given as much time before."""
    return [
        row
        for row in run.rows()
        if row["status"] != Status.MISCLASSIFIED.name
        and row.get("proof") != Proof.EXACT.name
        and ("proof" not in row or row.get("proof_limit", 0) < seconds)
    ]


def _read_knobs(run: Run) -> dict[str, Any]:
    """What was asked of the attack, from the manifest; tensors are not kept there."""
    knobs = dict(run.identity["attack"]["knobs"])
    for name in QUESTION:
        if isinstance(knobs.get(name), Mapping):
            raise RunError(
                f"the {name} of {run.folder} were a tensor, which a manifest does not keep.",
                hint="certify while measuring: evaluate(..., certify=SECONDS).",
            )
    if isinstance(bounds := knobs.get("bounds"), list):
        if any(isinstance(end, Mapping | list) for end in bounds):
            raise RunError(
                f"the bounds of {run.folder} were tensors, which a manifest does not keep.",
                hint="certify while measuring: evaluate(..., certify=SECONDS).",
            )
        knobs["bounds"] = tuple(manifests.read_number(end) for end in bounds)
    if isinstance(knobs.get("threshold"), str):
        knobs["threshold"] = manifests.read_number(knobs["threshold"])
    return knobs


class _Writer:
    """Appends to `certificates.jsonl`: only one process does it, and what it has written survives a kill."""

    def __init__(self, run: Run, seconds: float) -> None:
        self.run, self.path = run, run.folder / CERTIFICATES
        self._lock = filelock.FileLock(run.folder / LOCK, timeout=0)
        self._head = {
            "certificates": describe_question(run.identity), "seconds": seconds, "started": manifests.now(),
            "deepfool": __version__,
        }  # fmt: skip

    def __enter__(self) -> _Writer:
        try:
            self._lock.acquire()
        except filelock.Timeout:
            raise RunError(f"another process is writing to {self.run.folder}.", hint="wait for it.") from None
        except (OSError, NotImplementedError) as error:
            raise unwritable(self.run.folder, error) from error
        try:
            if self.path.exists():
                os.truncate(self.path, find_end(self.run.folder, self.run.identity))
            self._stream = self.path.open("ab", buffering=0)
            write_all(self._stream, json.dumps(self._head).encode() + b"\n")
        except OSError as error:
            self._lock.release()
            raise unwritable(self.path, error) from error
        except BaseException:
            self._lock.release()
            raise
        return self

    def append(self, rows: Sequence[Row]) -> None:
        try:
            write_all(self._stream, b"".join(map(encode_row, rows)))
        except OSError as error:
            raise unwritable(self.path, error) from error

    def __exit__(self, *error: object) -> None:
        self._stream.close()
        self._lock.release()
