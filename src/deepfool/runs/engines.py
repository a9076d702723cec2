"""Where batches run: in this process, in several processes of this machine, or on Ray. The one file that names Ray.

An engine takes a `Job` (what to do), batches one by one as it has room for them, and yields their rows as they are
finished, in any order. It never writes: the caller alone does. Batches carry their samples, so workers need the model
and nothing else; a model given as a spec is built by the worker, a module is sent to it.

Workers may die. Their batch is given to another, at most `ATTEMPTS` times in all.
"""

from __future__ import annotations

import gc
import importlib
import math
import multiprocessing
import os
import pickle
import signal
import socket
import time
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from deepfool import errors
from deepfool.attacks.shared.adversarial import Adversarial, Status
from deepfool.attacks.shared.registry import Attack, find_attack, name_attack, run_attack, takes
from deepfool.classifier import Classifier
from deepfool.errors import DeepFoolError, InputError, MissingExtraError, RunError, is_out_of_memory
from deepfool.runs.execution import compile_model, keep_freed_memory, lay_out, prefers_channels_last
from deepfool.models.sources import resolve
from deepfool.norms import norm
from deepfool.runs.records import Group, Row

ATTEMPTS = 3
"""How often a batch is tried before it is taken to be what ends the workers."""

PATIENCE = 300.0
"""Seconds in which at least one Ray worker has to be up."""

TCP_PATIENCE = 5.0
"""Seconds in which the machine of a Ray cluster has to answer."""

DTYPES = {name: getattr(torch, name) for name in ("float16", "bfloat16", "float32", "float64")}


@dataclass(frozen=True)
class Job:
    """What every worker needs to know."""

    model: Any
    """A spec, or a module."""
    fingerprint: str
    """What the model must turn out to be, wherever it is built."""
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
    """Whether the model goes through torch.compile."""


@dataclass(frozen=True)
class Batch:
    """Samples to attack together, with their place in the data and their true labels (-1 where unknown)."""

    index: list[int]
    x: np.ndarray[Any, Any]
    true_label: list[int]

    def part(self, start: int, stop: int) -> Batch:
        return Batch(self.index[start:stop], self.x[start:stop], self.true_label[start:stop])

    def __str__(self) -> str:
        return f"the batch of {len(self.index)} that begins with sample {self.index[0]}"


class Worker:
    """The model on its device, ready to attack batch after batch."""

    def __init__(self, job: Job, module: nn.Module | None = None) -> None:
        self.job = job
        self.attack = find_attack(job.attack)
        if module is None:
            source = resolve(job.model, arch=job.arch)
            if source.fingerprint != job.fingerprint:
                raise RunError(
                    f"the model that a worker built is not the one of this run: "
                    f"expected {job.fingerprint[:16]}, got {source.fingerprint[:16]}.",
                    hint="the workers need the same weights and the same version of deepfool.",
                )
            module = source.module
        self.device = torch.device(job.device)
        self.dtype = DTYPES[job.dtype]
        module = module.to(device=self.device, dtype=self.dtype)
        self.channels_last: bool | None = None if prefers_channels_last(module) else False
        """Whether images are laid out with the channels last; None: it would pay, but was not tried yet."""
        module = compile_model(module) if job.compile else module
        self.f = Classifier(module, threshold=job.knobs.get("threshold"))
        self.most: int | None = None
        """How many samples fit at once, as far as it was found out."""

    def run(self, batch: Batch) -> list[Group]:
        """Attack a batch, in pieces if it does not fit in memory."""
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
        """The rows of a batch, or None if the memory did not suffice."""
        try:
            return self._attack(batch)
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, DeepFoolError) or not is_out_of_memory(error):
                raise
            return None

    def _halve(self, size: int, batch: Batch) -> None:
        if size == 1:
            raise RunError(
                f"the memory of {self.device} does not suffice for a single sample of {batch}.",
                hint="--knob candidates=10, --dtype float16, or another --device.",
            )
        if not self.job.may_halve:
            raise RunError(
                f"the memory of {self.device} does not suffice for {size} samples at once.",
                hint="give a smaller --batch-size, or auto; what was measured is kept.",
            )
        self.most = size // 2
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _attack(self, batch: Batch) -> Group:
        job = self.job
        given = dict(job.knobs)
        if takes(self.attack, "p"):
            given["p"] = job.p
        if takes(self.attack, "seed"):
            given["seed"] = job.seed
        if job.skip_misclassified:
            given["labels"] = torch.tensor(batch.true_label, device=self.device)
        begin = time.perf_counter()
        x = torch.tensor(batch.x).to(device=self.device, dtype=self.dtype)
        if self.channels_last is None:
            self.channels_last = self._takes_channels_last(x[:1])
        x = lay_out(x, channels_last=self.channels_last)
        cuda = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=cuda):
            # From the seed and the samples alone: a batch gives the same rows whoever runs it, and whenever.
            torch.manual_seed((job.seed * 1_000_003 + batch.index[0]) % 2**63)
            found = run_attack(self.attack, self.f, x, given)
        self._check(found)
        rows = make_rows(batch, x, found, job.p)
        seconds = (time.perf_counter() - begin) / len(rows)
        r = found.r.detach().cpu().numpy() if job.keep_perturbations else None
        return Group([{**row, "seconds": round(seconds, 9)} for row in rows], r)

    def _takes_channels_last(self, x: Tensor) -> bool:
        """Whether the model runs on that layout: a `view` inside it may refuse. Attacks of others are not asked to."""
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


def make_rows(batch: Batch, x: Tensor, found: Adversarial, p: float) -> list[Row]:
    """The rows of a batch. Norms are taken in float64, of the r that is returned, whatever the attack says of it.

    >>> x = torch.zeros(1, 2)
    >>> from deepfool import deepfool
    >>> found = deepfool(torch.nn.Linear(2, 2), x)
    >>> make_rows(Batch([5], x.numpy(), [-1]), x, found, 2)[0]["index"]
    5
    """
    sizes = {"l1": 1.0, "l2": 2.0, "linf": math.inf, "p": p}
    r_flat, x_flat = (each.detach().flatten(1).double() for each in (found.r, x))
    r_norms = {name: norm(r_flat, size).tolist() for name, size in sizes.items()}
    x_norms = {name: norm(x_flat, size).tolist() for name, size in sizes.items()}
    whole = {
        name: getattr(found, name).tolist() for name in ("label", "adv_label", "iterations", "forwards", "backwards")
    }
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
        if found.reason[i]:
            row["reason"] = found.reason[i]
        rows.append(row)
    return rows


def run_here(job: Job, batches: Iterable[Batch], module: nn.Module | None = None) -> Iterator[Group]:
    """The engine of this process; `module` is the model if it is built already."""
    worker = Worker(job, module)
    for batch in batches:
        yield from worker.run(batch)


def run_in_processes(job: Job, batches: Iterable[Batch], workers: int) -> Iterator[Group]:
    """Several processes of this machine, which share its cores."""
    yield from _work_through(_Processes(job, workers), workers, batches)


def run_on_ray(job: Job, batches: Iterable[Batch], workers: int | None, address: str | None) -> Iterator[Group]:
    """A Ray cluster: the one at `address`, the one this process is connected to, or one started on this machine."""
    crew = _RayActors(job, workers, address)
    yield from _work_through(crew, crew.workers, batches)


# How a crew is kept busy, whatever it is made of.


@dataclass(frozen=True)
class _Ready:
    """A worker is up."""


@dataclass(frozen=True)
class _Lost:
    """A worker has died."""

    why: str = ""


@dataclass(frozen=True)
class _Failed:
    """A worker met an error; exceptions themselves do not always survive the journey."""

    kind: str
    text: str

    @staticmethod
    def of(error: Exception) -> _Failed:
        if isinstance(error, DeepFoolError):
            return _Failed(type(error).__name__, str(error))
        return _Failed("RunError", f"a worker raised {type(error).__name__}: {error}")

    def as_error(self) -> DeepFoolError:
        kind = getattr(errors, self.kind, RunError)
        error: DeepFoolError = kind.__new__(kind)
        Exception.__init__(error, self.text)
        error.hint = None
        return error


_Event = _Ready | _Lost | _Failed | list[Group]


@dataclass
class _Task:
    batch: Batch
    attempts: int = 0


class _Crew(Protocol):
    def hire(self) -> None:
        """Start a worker; it reports _Ready, or _Failed, when it is up."""

    def give(self, worker: Hashable, batch: Batch) -> None:
        """Have an idle worker run a batch; it reports the rows, _Failed or _Lost."""

    def wait(self) -> tuple[Hashable, _Event]:
        """The next report of any worker."""

    def dismiss(self) -> None:
        """End all workers, at once."""


def _work_through(crew: _Crew, workers: int, batches: Iterable[Batch]) -> Iterator[Group]:
    """Give each idle worker the next batch; those of workers that died come first."""
    source = iter(batches)
    again: deque[_Task] = deque()
    busy: dict[Hashable, _Task] = {}
    idle: list[Hashable] = []
    stillborn = 0
    exhausted = False

    def next_task() -> _Task | None:
        nonlocal exhausted
        if again:
            return again.popleft()
        batch = next(source, None)
        exhausted = batch is None
        return None if batch is None else _Task(batch)

    try:
        for _ in range(workers):
            crew.hire()
        while not exhausted or busy or again:
            worker, event = crew.wait()
            task = busy.pop(worker, None)
            if isinstance(event, _Failed):
                raise event.as_error()
            if isinstance(event, _Lost):
                stillborn += task is None
                _mourn(event, task, early=stillborn > ATTEMPTS * workers)
                if task is not None:
                    again.append(task)
                if worker in idle:
                    idle.remove(worker)
                crew.hire()
            else:
                idle.append(worker)
            # The next batch goes out before the rows of this one are written: nobody waits for the disk.
            while idle and (task := next_task()) is not None:
                busy[idle[-1]] = task
                crew.give(idle.pop(), task.batch)
            if isinstance(event, list):
                yield from event
    finally:
        crew.dismiss()


def _mourn(event: _Lost, task: _Task | None, *, early: bool) -> None:
    """Go on after a worker's death, or not if it looks like the rule."""
    why = event.why or "no reason was given"
    if early:
        raise RunError(f"the workers die before they have begun: {why}.")
    if task is not None:
        task.attempts += 1
        if task.attempts >= ATTEMPTS:
            raise RunError(
                f"{task.batch} ended its worker {ATTEMPTS} times: {why}.",
                hint="a smaller --batch-size takes less memory; what was measured is kept.",
            )


# Processes of this machine.


@dataclass
class _Process:
    process: Any
    pipe: Connection


@dataclass
class _Processes:
    job: Job
    workers: int
    members: dict[int, _Process] = field(default_factory=dict)
    hired: int = 0

    def __post_init__(self) -> None:
        try:
            # By value: tensors are not to be shared, and files of shared memory can run out.
            self.payloads = [pickle.dumps(replace(self.job, device=device)) for device in self._devices()]
        except Exception as error:
            raise InputError(
                f"the model or the attack cannot be sent to other processes: {error}.",
                hint="give the model as a spec, such as py:package.module:factory.",
            ) from error

    def _devices(self) -> list[str]:
        if self.job.device == "cuda":
            return [f"cuda:{number}" for number in range(torch.cuda.device_count())]
        return [self.job.device]

    def hire(self) -> None:
        # Spawned, not forked: threads and devices do not survive a fork.
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        payload = self.payloads[self.hired % len(self.payloads)]
        process = context.Process(target=_serve, args=(there, payload, share_cores(self.workers)), daemon=True)
        process.start()
        there.close()  # so that the end of the process is seen at this end
        self.members[self.hired] = _Process(process, here)
        self.hired += 1

    def give(self, worker: Hashable, batch: Batch) -> None:
        with suppress(OSError):  # if it has died since, the pipe will say so
            self.members[worker].pipe.send(batch)  # type: ignore[index]

    def wait(self) -> tuple[Hashable, _Event]:
        pipes = {id(member.pipe): number for number, member in self.members.items()}
        pipe: Any = wait([member.pipe for member in self.members.values()])[0]
        number = pipes[id(pipe)]
        try:
            event: _Event = pipe.recv()
        except (EOFError, OSError):
            member = self.members.pop(number)
            member.process.join()
            member.pipe.close()
            event = _Lost(f"its exit code was {member.process.exitcode}")
        return number, event

    def dismiss(self) -> None:
        for member in self.members.values():
            member.process.kill()
            member.process.join()
            member.pipe.close()
        self.members.clear()


def share_cores(workers: int) -> int:
    """How many threads each of some workers gets.

    >>> share_cores(10**6)
    1
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // workers)


def _serve(pipe: Connection, payload: bytes, threads: int) -> None:
    """The life of a worker process: build the model, then batch after batch until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the driver decides what it means
    torch.set_num_threads(threads)
    keep_freed_memory()
    try:
        try:
            worker = Worker(pickle.loads(payload))
        except Exception as error:
            pipe.send(_Failed.of(error))
            return
        pipe.send(_Ready())
        while True:
            batch = pipe.recv()
            try:
                event: _Event = worker.run(batch)
            except Exception as error:
                event = _Failed.of(error)
            pipe.send(event)
    except (EOFError, OSError):
        return


# Ray.


class _Actor:
    """What runs in a Ray worker. Errors are returned, so that only a death looks like a death."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.worker: Worker | None = None

    def start(self) -> _Event:
        try:
            if self.job.device == "cpu":
                torch.set_num_threads(1)  # as many as Ray was asked to set aside
            keep_freed_memory()
            self.worker = Worker(self.job)
        except Exception as error:
            return _Failed.of(error)
        return _Ready()

    def run(self, batch: Batch) -> _Event:
        try:
            assert self.worker is not None
            return self.worker.run(batch)
        except Exception as error:
            return _Failed.of(error)


class _RayActors:
    """One actor per worker, each with a processor or a GPU of its own."""

    def __init__(self, job: Job, workers: int | None, address: str | None) -> None:
        self.ray = _import_ray()
        self.own = not self.ray.is_initialized()
        if self.own:
            _connect(self.ray, workers, address)
        gpu = job.device.startswith("cuda")
        there = int(self.ray.cluster_resources().get("GPU" if gpu else "CPU", 0))
        if there < 1:
            self.dismiss()
            raise RunError(f"the Ray cluster has no {'GPU' if gpu else 'CPU'}.", hint="choose another --device.")
        self.workers = min(workers, there) if workers else there
        try:
            self.job = self.ray.put(replace(job, device="cuda") if gpu else job)
        except Exception as error:
            self.dismiss()
            raise InputError(f"the model or the attack cannot be sent to Ray: {error}.") from error
        resources = {"num_cpus": 1, "num_gpus": 1} if gpu else {"num_cpus": 1}
        self.actor = self.ray.remote(**resources, max_restarts=0)(_Actor)
        self.members: dict[Any, Any] = {}
        """Reference of what is awaited -> the actor."""
        self.actors: list[Any] = []
        self.anyone_up = False

    def hire(self) -> None:
        actor = self.actor.remote(self.job)
        self.actors.append(actor)
        self.members[actor.start.remote()] = actor

    def give(self, worker: Hashable, batch: Batch) -> None:
        self.members[worker.run.remote(batch)] = worker  # type: ignore[attr-defined]

    def wait(self) -> tuple[Hashable, _Event]:
        ready, _ = self.ray.wait(list(self.members), num_returns=1, timeout=None if self.anyone_up else PATIENCE)
        if not ready:
            raise RunError(
                f"no Ray worker came up within {PATIENCE:.0f} s.", hint="does the cluster have room for one?"
            )
        actor = self.members.pop(ready[0])
        try:
            event: _Event = self.ray.get(ready[0])
            self.anyone_up = True
        except self.ray.exceptions.RayTaskError as error:
            event = _Failed.of(error)
        except self.ray.exceptions.RayError as error:
            event = _Lost(str(error).strip().splitlines()[0])
        return actor, event

    def dismiss(self) -> None:
        for actor in getattr(self, "actors", ()):
            self.ray.kill(actor)
        if self.own:
            self.ray.shutdown()


@contextmanager
def keeping_ray(workers: int | None = None, address: str | None = None) -> Iterator[None]:
    """Start Ray once for several runs; without this, each run on Ray starts and stops its own."""
    ray = _import_ray()
    own = not ray.is_initialized()
    if own:
        _connect(ray, workers, address)
    try:
        yield
    finally:
        if own:
            ray.shutdown()


def check_address(address: str) -> None:
    """Whether anybody listens at the address of a Ray cluster; Ray itself would try for minutes, and say nothing.

    >>> check_address("127.0.0.1:1")
    Traceback (most recent call last):
    ...
    deepfool.errors.RunError: no Ray cluster answers at 127.0.0.1:1: ... Hint: ...
    """
    if address == "auto":  # Ray looks for one on this machine, and says at once if there is none
        address = os.environ.get("RAY_ADDRESS", "auto")
    if address in ("auto", "local"):
        return
    host, port = _split_address(address)
    try:
        socket.create_connection((host, port), timeout=TCP_PATIENCE).close()
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise RunError(
            f"no Ray cluster answers at {address}: {why}.", hint="is it up, and is the port open? ray status tells."
        ) from error


def _split_address(address: str) -> tuple[str, int]:
    """Host and port of HOST:PORT or ray://HOST:PORT.

    >>> _split_address("ray://head.example:10001"), _split_address("[::1]:6379")
    (('head.example', 10001), ('::1', 6379))
    """
    host, colon, port = address.removeprefix("ray://").partition("?")[0].rstrip("/").rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port[:6]) < 2**16):
        raise InputError(f"a Ray address must be HOST:PORT, ray://HOST:PORT or auto, got {address!r}.")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _connect(ray: Any, workers: int | None, address: str | None) -> None:
    if address is not None:
        check_address(address)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        cores = max(workers or 1, os.cpu_count() or 1)
        quiet |= {"address": "local", "num_cpus": cores, "include_dashboard": False}
    else:
        quiet |= {"address": address}
    try:
        ray.init(**quiet)
    except Exception as error:
        raise RunError(f"Ray at {address or 'this machine'} cannot be reached: {error}.") from error


def _import_ray() -> Any:
    try:
        ray: Any = importlib.import_module("ray")
        importlib.import_module("ray.exceptions")
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "ray", extra="ray", purpose="--engine ray") from error
    return ray
