"""What one worker does: it builds the model, then attacks (or certifies) batch after batch.

Batches carry their samples, so a worker needs the model and nothing else. A model given as a spec is built by the
worker; a module is sent to it. Workers never write: the process that started them does.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from deepfool.attacks.shared.adversarial import Adversarial, Evidence, Status
from deepfool.attacks.shared.aims import find_goal
from deepfool.attacks.shared.alternatives import open_aim
from deepfool.attacks.shared.arguments import count_channels
from deepfool.attacks.shared.registry import Attack, complete_knobs, find_attack, name_attack, run_attack, takes
from deepfool.classifier import Classifier
from deepfool.classifier.classifier import OUTPUTS
from deepfool.errors import DeepFoolError, InputError, RunError, is_out_of_memory
from deepfool.models.sources import Source, resolve
from deepfool.norms import check_p, norm, norm_of_whole
from deepfool.runs.execution import compile_model, keep_freed_memory, lay_out, prefers_channels_last
from deepfool.runs.proving import prove
from deepfool.runs.rows import Group, Row
from deepfool.runs.transfers import fetch, send
from deepfool.runs.weighing import weigh
from deepfool.values import check_count

LATER = ("goal", "subspace", "weights", "schema")
"""Knobs that are left out where they are not given: runs from before they existed can be resumed."""

DTYPES = {name: getattr(torch, name) for name in ("float16", "bfloat16", "float32", "float64")}


@dataclass(frozen=True)
class Job:
    """What every worker needs to know."""

    model: Any
    """A spec, or a module."""
    fingerprint: str
    """The hash that the model must have, wherever it is built."""
    attack: str | Attack
    p: float
    knobs: dict[str, Any]
    arch: Any = None
    device: str = "cpu"
    dtype: str = "float32"
    seed: int = 0
    skip_misclassified: bool = False
    keep_perturbations: bool = False
    may_halve: bool = True
    """Whether a batch that does not fit in memory is split."""
    compile: bool = False
    """Whether to run the model through torch.compile."""
    certify: float | None = None
    """Seconds a sample for a certificate; None for none."""


@dataclass(frozen=True)
class Batch:
    """Samples to attack together, with their indices in the data and their true labels (-1 if unknown)."""

    index: list[int]
    x: np.ndarray[Any, Any]
    true_label: list[int]

    def part(self, start: int, stop: int) -> Batch:
        return Batch(self.index[start:stop], self.x[start:stop], self.true_label[start:stop])

    def done_by(self, worker: Worker) -> Group:
        """What a worker makes of it."""
        return worker.attack_batch(self)

    def __str__(self) -> str:
        return f"the batch of {len(self.index)} that starts with sample {self.index[0]}"


@dataclass(frozen=True)
class Unproved(Batch):
    """Samples that were attacked before and are to be certified, with their labels then and the norms found."""

    label: list[int]
    norms: list[float]

    def part(self, start: int, stop: int) -> Unproved:
        piece = super().part(start, stop)
        return Unproved(piece.index, piece.x, piece.true_label, self.label[start:stop], self.norms[start:stop])

    def done_by(self, worker: Worker) -> Group:
        return worker.prove_batch(self)


def describe_job(
    model: Any, source: Source, attack: str | Attack, *, p: float, dtype: str, seed: int, knobs: dict[str, Any],
    skip_misclassified: bool, **rest: Any,
) -> Job:  # fmt: skip
    """What workers need to know for this attack on this model, checked."""
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise InputError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}.")
    seed = check_count(seed, "seed", least=0)
    function = find_attack(attack)
    if skip_misclassified and not takes(function, "labels"):
        raise InputError(f"the attack {name_attack(attack)} takes no labels, so it cannot skip misclassified samples.")
    complete = complete_knobs(function, knobs)
    complete.pop("p", None)  # belongs to the run
    for name in LATER:
        if complete.get(name) is None:
            complete.pop(name, None)
    return Job(
        # Workers can build the model of a spec themselves; anything else has to be sent to them.
        model=model if isinstance(model, str) else source.module, fingerprint=source.fingerprint, attack=attack,
        p=check_p(p), knobs=complete, dtype=dtype, seed=seed, skip_misclassified=skip_misclassified, **rest,
    )  # fmt: skip


class Worker:
    """The model on its device, ready to attack one batch after another."""

    def __init__(self, job: Job, module: nn.Module | None = None) -> None:
        self.job = job
        if module is None:
            source = resolve(job.model, arch=job.arch)
            if source.fingerprint != job.fingerprint:
                raise RunError(
                    f"a worker built another model than the one of this run: "
                    f"expected {job.fingerprint[:16]}, got {source.fingerprint[:16]}.",
                    hint="the workers need the same weights and the same version of deepfool.",
                )
            module = source.module
        self.device = torch.device(job.device)
        self.dtype = DTYPES[job.dtype]
        module = module.to(device=self.device, dtype=self.dtype)
        self.channels_last: bool | None = None if prefers_channels_last(module) else False
        """Whether images are stored with the channels last; None: it should be faster, but was not tried yet."""
        self.plain = read_classifier(module, job.knobs)
        """As it is, for certificates: what `compile_model` makes of it cannot be traced."""
        module = compile_model(module) if job.compile else module
        self.f = Classifier(module, threshold=job.knobs.get("threshold"), reads=find_goal(job.knobs).reads)
        self.most: int | None = None
        """How many samples fit in memory at once; None until memory runs out."""

    @cached_property
    def attack(self) -> Attack:
        return find_attack(self.job.attack)

    def run(self, batch: Batch) -> list[Group]:
        """Do a batch, in pieces if it does not fit in memory."""
        groups: list[Group] = []
        start = 0
        while start < len(batch.index):
            stop = min(len(batch.index), start + (self.most or len(batch.index)))
            found = self._try(batch.part(start, stop))
            if found is None:
                self._halve(stop - start, batch)
                continue
            groups.append(found)
            start = stop
        return groups

    def _try(self, batch: Batch) -> Group | None:
        """The rows of a batch, or None if it did not fit in memory."""
        try:
            return batch.done_by(self)
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, DeepFoolError) or not is_out_of_memory(error):
                raise
            return None

    def _halve(self, size: int, batch: Batch) -> None:
        if size == 1:
            raise RunError(
                f"a single sample of {batch} does not fit in the memory of {self.device}.",
                hint="try --knob candidates=10, --dtype float16, or another --device.",
            )
        if not self.job.may_halve:
            raise RunError(
                f"{size} samples at once do not fit in the memory of {self.device}.",
                hint="give a smaller --batch-size, or auto; finished samples are kept.",
            )
        self.most = size // 2
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def attack_batch(self, batch: Batch) -> Group:
        job = self.job
        given = dict(job.knobs)
        if takes(self.attack, "p"):
            given["p"] = job.p
        if takes(self.attack, "seed"):
            given["seed"] = job.seed
        if job.skip_misclassified:
            given["labels"] = torch.tensor(batch.true_label, device=self.device)
        begin = time.perf_counter()
        x = send(batch.x, self.device, self.dtype)
        if self.channels_last is None:
            self.channels_last = self._takes_channels_last(x[:1])
        x = lay_out(x, channels_last=self.channels_last)
        cuda = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=cuda):
            # Only from the seed and the samples: a batch gives the same rows whichever worker runs it.
            torch.manual_seed((job.seed * 1_000_003 + batch.index[0]) % 2**63)
            found = run_attack(self.attack, self.f, x, given)
        self._check(found)
        r = fetch(found.r) if job.keep_perturbations else None  # on its way while the rows are made
        rows = make_rows(batch, x, found, job.p, job.knobs)
        seconds = (time.perf_counter() - begin) / len(rows)
        rows = [{**row, "seconds": round(seconds, 9)} for row in rows]
        return Group(rows if job.certify is None else self._certify(rows, x, found, job.certify), r() if r else None)

    def prove_batch(self, batch: Unproved) -> Group:
        """Certificates for samples that were attacked before."""
        seconds = self.job.certify
        assert seconds is not None
        x = send(batch.x, self.device, self.dtype)
        with self.plain.frozen(), torch.no_grad():
            labels = open_aim(find_goal(self.job.knobs), self.plain(x)).label.tolist()
        for index, label, before in zip(batch.index, labels, batch.label, strict=True):
            if label != before:
                raise RunError(
                    f"the model predicts class {label} for sample {index}, but its row says {before}: there is no "
                    f"certificate for that."
                )
        proofs = prove(self.plain, x, batch.norms, p=self.job.p, seconds=seconds, knobs=self.job.knobs)
        return Group([{"index": index, **proof} for index, proof in zip(batch.index, proofs, strict=True)], None)

    def _certify(self, rows: list[Row], x: Tensor, found: Adversarial, seconds: float) -> list[Row]:
        """The rows with their certificates; samples that were skipped get none."""
        keep = [i for i, row in enumerate(rows) if row["status"] != Status.MISCLASSIFIED.name]
        if not keep:
            return rows
        which = torch.tensor(keep, device=x.device)
        norms = [math.inf if rows[i]["r_p"] is None else rows[i]["r_p"] for i in keep]
        proofs = prove(
            self.plain, x[which].contiguous(), norms, p=self.job.p, seconds=seconds, knobs=self.job.knobs,
            found=found.rows(which),
        )  # fmt: skip
        proved = dict(zip(keep, proofs, strict=True))
        return [{**row, **proved.get(i, {})} for i, row in enumerate(rows)]

    def _takes_channels_last(self, x: Tensor) -> bool:
        """Whether the model accepts that layout: a `view` in it may fail. Custom attacks always get the usual one."""
        if not isinstance(self.job.attack, str) or ":" in self.job.attack:
            return False
        try:
            with self.f.frozen(), torch.no_grad():
                self.f.model(lay_out(x, channels_last=True))
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            return False
        return True

    def _check(self, found: Adversarial) -> None:
        name = name_attack(self.job.attack)
        if found.p != self.job.p:
            raise InputError(
                f"the attack {name} minimises the l{found.p:g} norm, but the run measures l{self.job.p:g}.",
                hint=f"give --p {found.p:g} (p={found.p:g} in Python).",
            )


def read_classifier(module: nn.Module, knobs: Mapping[str, Any]) -> Classifier:
    """The classifier as an attack with these knobs reads it."""
    outputs = knobs.get("outputs")
    return Classifier(
        module, threshold=knobs.get("threshold"), outputs=outputs if outputs in OUTPUTS else "auto",
        reads=find_goal(knobs).reads,
    )  # fmt: skip


class RemoteWorker:
    """A worker in another process. Its errors are ones that can be sent back; if it fails to start, run() says so."""

    def __init__(self, job: Job, threads: int | None = None) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        keep_freed_memory()
        self._worker: Worker | None = None
        self._error: DeepFoolError | None = None
        try:
            self._worker = Worker(job)
        except Exception as error:
            self._error = _make_portable(error)

    def run(self, batch: Batch | None) -> list[Group]:
        """Attack a batch; None only checks that the worker is ready."""
        if self._worker is None:
            raise self._error or RunError("the worker did not start.")
        try:
            return [] if batch is None else self._worker.run(batch)
        except Exception as error:
            raise _make_portable(error) from error


def _make_portable(error: Exception) -> DeepFoolError:
    """An error that can be pickled, which those of a model or an attack may not be."""
    return error if isinstance(error, DeepFoolError) else RunError(f"a worker raised {type(error).__name__}: {error}")


def make_rows(
    batch: Batch, x: Tensor, found: Adversarial, p: float, knobs: Mapping[str, Any] | None = None
) -> list[Row]:
    """The rows of a batch. Norms are computed here, in float64, from the r that the attack returned; with the weights
    of the run, if it has some.

    >>> x = torch.zeros(1, 2)
    >>> from deepfool import deepfool
    >>> found = deepfool(torch.nn.Linear(2, 2), x)
    >>> make_rows(Batch([5], x.numpy(), [-1]), x, found, 2)[0]["index"]
    5
    """
    sizes = {"l1": 1.0, "l2": 2.0, "linf": math.inf, "p": p}
    r_flat, x_flat = (weigh(each.detach().flatten(1).double(), knobs or {}) for each in (found.r, x))
    channels = count_channels(found.unit, p, x)
    r_norms = {name: norm(r_flat, size, channels).tolist() for name, size in sizes.items()}
    x_norms = {name: norm_of_whole(x_flat, size, channels).tolist() for name, size in sizes.items()}
    whole = {
        name: getattr(found, name).tolist() for name in ("label", "adv_label", "iterations", "forwards", "backwards")
    }
    evidence, converged = found.evidence.tolist(), found.converged.tolist()
    rows = []
    for i, status in enumerate(found.status.tolist()):
        known = status in (Status.FOOLED, Status.MISCLASSIFIED)
        row: Row = {
            "index": batch.index[i],
            "true_label": batch.true_label[i] if batch.true_label[i] >= 0 else None,
            **{name: values[i] for name, values in whole.items()},
            "status": Status(status).name,
            **{f"r_{name}": values[i] if known and math.isfinite(values[i]) else None
               for name, values in r_norms.items()},
            **{f"x_{name}": values[i] for name, values in x_norms.items()},
        }  # fmt: skip
        if status == Status.FOOLED:
            row |= {"evidence": Evidence(evidence[i]).name.lower(), "converged": bool(converged[i])}
        if found.reason[i]:
            row["reason"] = found.reason[i]
        rows.append(row)
    return rows
