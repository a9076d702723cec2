"""Workers on this machine: this process, or several processes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing.connection import wait as wait_for_process
from multiprocessing.context import SpawnContext
from typing import Any

import torch
from torch import nn

from deepfool.errors import InputError
from deepfool.runs.backlog import ATTEMPTS, Backlog, Task, fail_to_start
from deepfool.runs.halves import count_cores
from deepfool.runs.rows import Group
from deepfool.runs.worker import Batch, Job, RemoteWorker, Worker


def run_here(job: Job, batches: Iterable[Batch], module: nn.Module | None = None) -> Generator[Group, None, None]:
    """Run batches in this process; `module` is the model if it is built already."""
    worker = Worker(job, module)
    for batch in batches:
        yield from worker.run(batch)


def run_in_processes(job: Job, batches: Iterable[Batch], workers: int) -> Generator[Group, None, None]:
    """Run batches in several processes that share the cores, and yield the rows of each as it finishes."""
    yield from work_through(_Pool(job, workers), Backlog(batches))


def work_through(pool: Any, backlog: Backlog) -> Generator[Group, None, None]:
    """Keep every worker of a pool busy until the backlog is empty.

    A crashed worker breaks the whole pool, and the pool cannot say which batch was to blame. So the batches that were
    running are retried one at a time: whichever crashes again did it on its own.
    """
    running: dict[Future[list[Group]], Task] = {}

    def fill() -> None:
        while len(running) < pool.workers and not any(task.crashes for task in running.values()):
            if running and backlog.has_retries:
                return
            if (task := backlog.next()) is None:
                return
            running[pool.submit(task.batch)] = task

    try:
        fill()
        while running:
            backlog.read_ahead()  # while the workers are busy
            future = next(iter(wait(running, return_when=FIRST_COMPLETED).done))
            groups: list[Group] = []
            if isinstance(future.exception(), BrokenProcessPool):
                _recover(pool, running, backlog)
            else:
                del running[future]
                groups = future.result()
            fill()  # before the rows are written, so that no worker waits for the disk
            yield from groups
    finally:
        pool.kill()


def _recover(pool: Any, running: dict[Future[list[Group]], Task], backlog: Backlog) -> None:
    """Start a new pool after a crash, and put the batches that were running back into the backlog."""
    wait(running)
    crashed = [future for future in running if isinstance(future.exception(), BrokenProcessPool)]
    started, why = pool.restart()
    for future in crashed:
        task = running.pop(future)
        if started:
            backlog.retry(task, why)
        else:
            backlog.put_back(task)


class _Pool:
    """A ProcessPoolExecutor that can be rebuilt after a crash."""

    def __init__(self, job: Job, workers: int) -> None:
        self.workers = workers
        self._failed_starts = 0
        try:
            # By value: shared tensors would need shared memory files, which can run out.
            self._payloads = [pickle.dumps(replace(job, device=device)) for device in _list_devices(job.device)]
        except Exception as error:
            raise InputError(
                f"the model or the attack cannot be sent to other processes: {error}.",
                hint="give the model as a spec, such as py:package.module:factory.",
            ) from error
        self._start()

    def _start(self) -> None:
        self._context = _RecordingContext()
        self._ready = self._context.RawValue("b", 0)  # no lock, which a killed worker could keep
        self._executor = ProcessPoolExecutor(
            self.workers, self._context, _start_worker, (self._payloads, share_cores(self.workers), self._ready)
        )

    def submit(self, batch: Batch) -> Future[list[Group]]:
        """Run a batch in the next free worker."""
        try:
            return self._executor.submit(_run, batch)
        except BrokenProcessPool as error:  # a worker crashed a moment ago
            future: Future[list[Group]] = Future()
            future.set_exception(error)
            return future

    def restart(self) -> tuple[bool, str]:
        """Replace a broken pool; says whether any worker had started, and how one of them ended."""
        self._executor.shutdown()
        ended = [process.exitcode for process in self._context.processes]
        # The pool itself terminates the other workers when one of them crashes.
        codes = [code for code in ended if code not in (0, None, -signal.SIGTERM)] or ended
        why = f"exit code {codes[0]}" if codes else "it did not start"
        started = bool(self._ready.value)
        self._failed_starts = 0 if started else self._failed_starts + 1
        if self._failed_starts >= ATTEMPTS:
            raise fail_to_start(why)
        self._start()
        return started, why

    def kill(self) -> None:
        """End all workers at once, whatever they are doing."""
        for process in self._context.processes:
            process.kill()
        self._executor.shutdown(cancel_futures=True)


class _RecordingContext(SpawnContext):
    """Starts processes by spawning, and remembers them: only Python 3.14 can kill the workers of a pool.

    Spawned, not forked: threads and GPUs do not survive a fork. Processes are named by number.
    """

    def __init__(self) -> None:
        super().__init__()
        self.processes: list[Any] = []

    def Process(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]  # noqa: N802  # as in the base class
        process = multiprocessing.get_context("spawn").Process(*args, **{**kwargs, "name": f"{len(self.processes)}"})
        self.processes.append(process)
        return process


def _list_devices(device: str) -> list[str]:
    if device == "cuda":
        return [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    return [device]


def share_cores(workers: int) -> int:
    """How many threads each worker gets.

    >>> share_cores(10**6)
    1
    """
    return max(1, count_cores() // workers)


_worker: RemoteWorker | None = None
"""The worker of this process, if it is one of a pool."""


def _start_worker(payloads: list[bytes], threads: int, ready: Any) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the parent decides what it means
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    number = int(multiprocessing.current_process().name)
    _worker = RemoteWorker(pickle.loads(payloads[number % len(payloads)]), threads)
    ready.value = 1


def _exit_with_parent() -> None:
    """End this process if its parent is killed: workers of a pool would wait for it forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for_process([parent.sentinel])
        os._exit(1)


def _run(batch: Batch) -> list[Group]:
    assert _worker is not None
    return _worker.run(batch)
