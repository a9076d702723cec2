"""evaluate(): attack every sample of some data, and record the results in a run folder."""

from __future__ import annotations

import copy
import signal
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import nn

from deepfool import __version__
from deepfool.attacks.shared.aims import find_goal, read_goal
from deepfool.attacks.shared.arguments import Bounds
from deepfool.attacks.shared.registry import Attack, find_attack, list_knobs, name_attack
from deepfool.certificates.checking import certifiable
from deepfool.datasets import Data, load
from deepfool.errors import InputError, RunError
from deepfool.models.sources import Source, resolve
from deepfool.norms import check_p
from deepfool.runs import consistency, manifests
from deepfool.runs.asking import make_plain, refuse_proof
from deepfool.runs.audit.auditing import audit_at_the_end, is_audited
from deepfool.runs.cautions import list_cautions
from deepfool.runs.certifying import certify_rows
from deepfool.runs.collecting import keep_gallery
from deepfool.runs.execution import choose_device
from deepfool.runs.labels import check_true_labels, match_labels, name_alternatives
from deepfool.runs.local import run_here, run_in_processes
from deepfool.runs.naming import default_folder
from deepfool.runs.proving import check_seconds, choose_together
from deepfool.runs.ray_cluster import check_address, run_on_ray
from deepfool.runs.records import Run
from deepfool.runs.rows import Group, Ints, Row
from deepfool.runs.worker import DTYPES, Batch, Job, describe_job, read_classifier
from deepfool.runs.writing import RunWriter
from deepfool.values import as_whole, check_callable, check_count, check_flag, check_optional_count, check_path

ENGINES = ("local", "ray")


@dataclass(frozen=True)
class Progress:
    """How far a run is; passed to `on_progress` after each batch is written."""

    done: int
    total: int
    seconds: float
    """Since this session started to measure."""
    rate: float
    """Samples per second in this session."""
    rho: float
    """The mean of ||r|| / ||x|| over the samples fooled so far, in the norm of the attack; NaN if there are none. It is
    rho_adv so far if `censored` is 0."""
    fooled: int
    censored: int
    auditing: bool = False
    """All samples are measured, and the audit begins."""
    certifying: tuple[int, int] | None = None
    """All samples are measured; how many of those that had no certificate have one now, and how many there are."""

    @property
    def seconds_left(self) -> float:
        return (self.total - self.done) / self.rate if self.rate > 0 else float("inf")


class Interrupted(KeyboardInterrupt):
    """The run was stopped with Ctrl-C. Finished samples are written, and the run can be resumed."""

    def __init__(self, run: Run, done: int) -> None:
        super().__init__(
            f"stopped after {done} of {run.expected} samples; they are in {run.folder}. Rerun the command to resume."
        )
        self.run = run


def evaluate(
    model: Any,
    data: Any,
    attack: str | Attack = "deepfool",
    *,
    out: str | Path | None = None,
    p: float = 2,
    bounds: Bounds | None = None,
    goal: str | None = None,
    arch: Any = None,
    split: str = "test",
    size: int | None = None,
    limit: int | None = None,
    indices: Sequence[int] | str | None = None,
    shard: tuple[int, int] | None = None,
    batch_size: int | str = "auto",
    device: str = "auto",
    dtype: str = "float32",
    seed: int = 0,
    skip_misclassified: bool = False,
    save_perturbations: bool = False,
    workers: int | None = None,
    engine: str = "local",
    ray_address: str | None = None,
    compile: bool = False,
    audit: bool = True,
    certify: float | None = None,
    on_start: Callable[[Path], None] = lambda _: None,
    on_progress: Callable[[Progress], None] = lambda _: None,
    on_stop: Callable[[], None] = lambda: None,
    loaded: Data | None = None,
    **knobs: Any,
) -> Run:
    """Attack every sample, and write one row for each into a run folder.

    If an earlier call with the same arguments stopped, for whatever reason, this one resumes it. A folder that holds
    another run, or other files, is refused. Except for rounding (1e-5), rows do not depend on the batch size, the
    engine or the number of workers. They do if the model is random, or if its scores depend on the rest of the batch:
    such a model is measured with an `InconsistentModelWarning`.

    Args:
        model: a spec (`lenet-mnist`, `timm:resnet18`, ...) or a module; see `deepfool.models`.
        data: a name, a path, a dataset or a pair (samples, labels); see `deepfool.datasets.load`.
        attack: a name from `deepfool.attacks.shared.registry`, `module:function`, or a function.
        out: the run folder; None for a folder in `runs/` that is named after what is measured (see
            `deepfool.runs.naming`).
        p: the norm to minimise.
        bounds: (lowest, highest) value of the inputs; None for no bounds, as in the paper.
        goal: what counts as a changed decision, as for the attacks; None for another label. Goals that are not about
            classes (`labels`, `within:0.5`, ...) do not use the labels of the data: y is what the model predicts.
        arch: for `file:` models, the architecture of the weights.
        split, size: passed on to `load`.
        limit, indices, shard: which samples; the first `limit` of `indices`, and the i-th of n parts of those.
        batch_size: samples per batch; "auto" starts with a common size and halves it when memory runs out.
        device: "cpu", "cuda", "cuda:1", "mps", or "auto" for the best one available.
        dtype: float16, bfloat16, float32 or float64, for the model and its inputs.
        seed: for attacks that use random numbers.
        skip_misclassified: do not attack samples that the model gets wrong. Off by default, as in the paper: the
            distance is measured from the predicted label, right or wrong.
        save_perturbations: store r, which `deepfool verify` needs.
        workers: number of processes (or Ray actors); None for this process, or as many as the Ray cluster can hold.
        engine: "local" or "ray".
        ray_address: the Ray cluster; None starts Ray on this machine.
        compile: run the model through torch.compile. It takes a minute to start, and pays off in long runs.
        audit: check at the end, on a few samples, how far to trust the numbers (see `deepfool.audit`); runs of fewer
            than 200 samples are not audited.
        certify: seconds a sample for a certified lower bound on each distance (see `deepfool.certify`); None for none.
            A model that cannot be certified is refused before anything is measured. Rows that are there already get
            their certificates at the end.
        on_start: called with the run folder before it is opened.
        on_progress: called with a `Progress` after each batch.
        on_stop: called at the first Ctrl-C; the batch is then finished, unless Ctrl-C is pressed again.
        loaded: the data, if you have loaded it from its name already; `data` is still what the manifest says.
        **knobs: other arguments of the attack, such as `overshoot`, `max_iter`, `weights` or `subspace`.

    >>> import tempfile
    >>> data = (torch.rand(20, 4), torch.zeros(20, dtype=torch.long))
    >>> with tempfile.TemporaryDirectory() as here:
    ...     run = evaluate(torch.nn.Linear(4, 3), data, out=f"{here}/run")
    ...     run.complete, sorted(next(run.rows()))[:3]
    (True, ['adv_label', 'backwards', 'batch'])
    """
    begin = time.monotonic()
    if as_whole(batch_size) is not None:
        batch_size = check_count(batch_size, "batch_size")  # type: ignore[arg-type]
    workers = check_optional_count(workers, "workers")
    out = None if out is None else check_path(out, "out")
    skip_misclassified = check_flag(skip_misclassified, "skip_misclassified")
    save_perturbations, compile = check_flag(save_perturbations, "save_perturbations"), check_flag(compile, "compile")
    audit, certify = check_flag(audit, "audit"), None if certify is None else check_seconds(certify)
    for each, name in ((on_start, "on_start"), (on_progress, "on_progress"), (on_stop, "on_stop")):
        check_callable(each, name)
    samples = load(data, split=split, size=size) if loaded is None else loaded
    selection = manifests.select(len(samples), limit=limit, indices=indices, shard=shard)
    source = _resolve_untouched(model, arch)
    aim, told = read_goal(goal)[0], {} if goal is None or goal == "other" else {"goal": str(goal)}
    if aim.reads == "classes":
        samples = match_labels(source, samples)
        check_true_labels(source, samples, selection)
    else:
        samples = name_alternatives(aim, source, samples, skip_misclassified)
    device = choose_device(device)
    job = describe_job(
        model, source, attack, p=p, arch=arch, device=device, dtype=dtype, seed=seed,
        skip_misclassified=skip_misclassified, keep_perturbations=save_perturbations, compile=compile,
        may_halve=isinstance(batch_size, str), certify=certify,
        knobs={**make_plain(knobs, samples.batch([int(selection[0])]), check_p(p)), **_given(bounds=bounds, **told)},
    )  # fmt: skip
    if skip_misclassified and bool((samples.labels[selection] < 0).any()):
        raise InputError(
            "skip_misclassified needs true labels, but some samples have none.", hint="leave it out, or add labels."
        )
    together = _choose_batch_size(batch_size, samples, device)
    if certify is not None:
        refuse_proof(job.knobs)
        f = read_classifier(copy.deepcopy(source.module).to(dtype=DTYPES[dtype]), job.knobs)
        first = samples.batch(selection[:1].tolist()).to(DTYPES[dtype])
        certifiable(f, first, p=job.p, seconds=certify, goal=find_goal(job.knobs))
        together = choose_together(together, certify) if isinstance(batch_size, str) else together
    run_batches = _choose_engine(engine, job, source, workers, ray_address)
    tally = _Tally(len(selection))
    session = manifests.describe_session(
        device=device, engine=engine, workers=workers, batch_size=together, batch_size_asked=batch_size,
        **_given(certify=certify),
    )  # fmt: skip
    identity = _identify(job, samples, selection)
    story = _tell_story(source, samples, data, split=split, size=size, arch=arch)
    if out is None:
        out = default_folder(identity, story, usual=list_knobs(find_attack(attack)), shard=shard)
    on_start(out)
    writer = RunWriter(out, identity, selection=selection, story=story, session=session, on_row=tally.add_row)
    with writer, _stopping_after_batch(on_stop) as stop:
        if tally.done < tally.total:
            _look_at_model(writer, source.module, samples.batch(selection[: consistency.SAMPLES].tolist()), job)
        tally.start()
        plan = _plan(samples, selection, writer, together, stop)
        if tally.done < tally.total:
            with closing(run_batches(plan)) as groups:  # so that workers end here, whatever is raised
                for group in groups:
                    writer.append(group)
                    tally.add(group)
                    on_progress(tally.progress())
        left = {"finished": manifests.now()} if tally.done == tally.total else {"stopped": manifests.now()}
        writer.note(**left, seconds=round(time.monotonic() - begin, 3), rows_after=tally.done)
        if tally.done == tally.total:
            measured = tally.done > tally.done_before
            keep_gallery(Run(out), samples, job, source.module, batch_size=together, renew=measured)
    run = Run(out)
    if tally.done < tally.total:
        if not stop.is_set():
            raise RunError(
                f"{tally.total - tally.done} samples were not processed.", hint="rerun the command to resume."
            )
        raise Interrupted(run, tally.done)
    try:
        if certify is not None:
            so_far = tally.progress()
            certify_rows(
                run, source, samples, seconds=certify, device=device, knobs=job.knobs, workers=workers,
                on_progress=lambda done, total: on_progress(replace(so_far, certifying=(done, total))),
            )  # fmt: skip
        if audit and aim.reads == "classes" and is_audited(run, renew=tally.done > tally.done_before):
            on_progress(replace(tally.progress(), auditing=True))
            audit_at_the_end(run, samples, job, source.module)
    except KeyboardInterrupt:
        raise Interrupted(run, tally.done) from None
    return run


def _given(**arguments: Any) -> dict[str, Any]:
    """Those that are not None."""
    return {name: value for name, value in arguments.items() if value is not None}


def _resolve_untouched(model: Any, arch: Any) -> Source:
    """The model. A module is copied, because ours changes its mode, dtype and device."""
    return resolve(copy.deepcopy(model) if isinstance(model, nn.Module) else model, arch=arch)


def _look_at_model(writer: RunWriter, module: nn.Module, x: torch.Tensor, job: Job) -> None:
    """Check on a few samples whether the scores are stable; note the outcome, and warn if they are not."""
    facts = consistency.look_twice(module, x, device=job.device, dtype=DTYPES[job.dtype])
    writer.note(scores=facts)
    for caution in list_cautions(facts):
        warnings.warn(caution, consistency.InconsistentModelWarning, stacklevel=4)  # of who calls deepfool.evaluate


def _identify(job: Job, samples: Data, selection: Ints) -> dict[str, Any]:
    """What the rows depend on."""
    return {
        "deepfool": __version__,
        "model": {"sha256": job.fingerprint},
        "data": {"sha256": samples.fingerprint(), "samples": len(samples)},
        "indices": manifests.format_indices(selection),
        "attack": {"name": name_attack(job.attack), "knobs": manifests.describe_value(job.knobs)},
        "p": manifests.describe_value(job.p),
        "dtype": job.dtype,
        # Otherwise left out: runs from before this option existed can be resumed.
        **({"compile": True} if job.compile else {}),
        "seed": job.seed,
        "skip_misclassified": job.skip_misclassified,
        "perturbations": job.keep_perturbations,
    }


def _tell_story(
    source: Source, samples: Data, data: Any, *, split: str, size: int | None, arch: Any
) -> dict[str, Any]:  # fmt: skip
    """Where model and data came from, to find them again; the hashes in the identity say if they are the same."""
    return {
        "model": {"spec": source.spec, "arch": arch if isinstance(arch, str) else None},
        "data": {
            "spec": data if isinstance(data, str) else None, "name": samples.name, "split": split, "size": size,
            "classes": list(samples.classes),
        },
    }  # fmt: skip


def _choose_batch_size(asked: int | str, samples: Data, device: str) -> int:
    """A size that keeps the device busy without filling the memory: the larger the samples, the fewer at once."""
    if not (isinstance(asked, str) and asked == "auto"):
        if as_whole(asked) is None:
            raise InputError(f"batch_size must be a whole number or 'auto', got {asked!r:.80}.")
        return check_count(asked, "batch_size")  # type: ignore[arg-type]
    features = max(1, samples.batch([0])[0].numel())
    most = 128 if device == "cpu" else 512
    fitting = 2**22 * most // 128 // features
    return max(1, min(most, 1 << fitting.bit_length() - 1 if fitting else 1))


def _choose_engine(
    engine: str, job: Job, source: Source, workers: int | None, ray_address: str | None
) -> Callable[[Iterator[Batch]], Generator[Group, None, None]]:
    if not isinstance(engine, str) or engine not in ENGINES:
        raise InputError(f"engine must be {' or '.join(ENGINES)}, got {engine!r}.")
    if workers is not None:
        workers = check_count(workers, "workers")
    if engine == "ray":
        if ray_address is not None:
            check_address(ray_address)  # fail now, not after everything else is ready
        return lambda plan: run_on_ray(job, plan, workers, ray_address)
    if ray_address is not None:
        raise InputError(f"a Ray address was given ({ray_address}), but the engine is {engine}.", hint="--engine ray.")
    if workers is not None and workers > 1:
        return lambda plan: run_in_processes(job, plan, workers)
    return lambda plan: run_here(job, plan, source.module)


def _plan(samples: Data, selection: Ints, writer: RunWriter, together: int, stop: threading.Event) -> Iterator[Batch]:
    """The unfinished batches, cut from the selection at fixed places and read when they are needed."""
    labels = samples.labels
    # A copy from before anything runs: rows written since then belong to batches that were planned already.
    done = writer.done.copy()
    for start in range(0, len(selection), together):
        if stop.is_set():
            return
        chunk = selection[start : start + together]
        index = chunk[~done[chunk]].tolist()
        if index:
            yield Batch(index, np.asarray(samples.batch(index)), labels[index].tolist())


class _Tally:
    """The figures of `Progress`, updated row by row, so that memory does not grow with the number of samples."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = self.fooled = self.censored = self.counted = 0
        self.ratios = 0.0

    def start(self) -> None:
        self.begin, self.done_before = time.monotonic(), self.done

    def add_row(self, row: Row) -> None:
        self.done += 1
        searched = row["status"] != "MISCLASSIFIED"
        self.fooled += row["status"] == "FOOLED"
        self.censored += row["r_p"] is None
        if searched and row["r_p"] is not None and row["x_p"] > 0:
            self.counted += 1
            self.ratios += row["r_p"] / row["x_p"]

    def add(self, group: Group) -> None:
        for row in group.rows:
            self.add_row(row)

    def progress(self) -> Progress:
        seconds = max(1e-9, time.monotonic() - self.begin)
        return Progress(
            done=self.done, total=self.total, seconds=seconds, rate=(self.done - self.done_before) / seconds,
            rho=self.ratios / self.counted if self.counted else float("nan"), fooled=self.fooled,
            censored=self.censored,
        )  # fmt: skip


@contextmanager
def _stopping_after_batch(on_stop: Callable[[], None]) -> Iterator[threading.Event]:
    """The first Ctrl-C sets the event, and the batch is finished; the second one stops at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread may handle signals
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        on_stop()

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.SIG_DFL)
