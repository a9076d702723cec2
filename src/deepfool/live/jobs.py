"""One worker, a short queue, and jobs that end as soon as nobody waits for them.

Attacks cannot be interrupted, but every one of them runs the model again and again. A hook at the model's door looks at
the job that runs in this thread, and raises `Stopped` there if the job was cancelled or took too long.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from deepfool.errors import DeepFoolError, is_out_of_memory

Event = tuple[str, dict[str, Any]]
Work = Callable[[], Iterator[Event]]

MOST_WAITING = 16
"""Jobs that may wait; more are turned away with a clear "busy"."""
MOST_SECONDS = 180.0
"""A job may run this long."""
PROGRESS_EVERY = 0.25
"""Seconds between two progress events."""

_here = threading.local()


class Stopped(BaseException):
    """The job was cancelled, or has taken too long."""


class BusyError(DeepFoolError):
    """There are too many jobs already."""


class Job:
    """A question under way. Events go to `events`, in the loop of the server; None is the end."""

    def __init__(self, tab: str, work: Work) -> None:
        self.tab, self.work = tab, work
        self.loop = asyncio.get_running_loop()
        self.events: asyncio.Queue[Event | None] = asyncio.Queue()
        self.cancelled = threading.Event()
        self.passes = 0
        self._began = self._told = 0.0

    def send(self, event: Event | None) -> None:
        """From any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self.loop.call_soon_threadsafe(self.events.put_nowait, event)

    def run(self) -> None:
        """Do the work in this thread and send what it finds; errors end as a sentence."""
        self._began = self._told = time.monotonic()
        _here.job = self
        try:
            if self.cancelled.is_set():
                return
            for event in self.work():
                self.send(event)
                self.look()
            self.send(("done", {"seconds": round(time.monotonic() - self._began, 3), "passes": self.passes}))
        except Stopped:
            if not self.cancelled.is_set():
                self.send(("failed", {"message": f"It was stopped after {MOST_SECONDS:.0f} seconds."}))
        except DeepFoolError as error:
            self.send(("failed", {"message": str(error)}))
        except Exception as error:
            told = "This machine does not have enough memory for that." if is_out_of_memory(error) else (
                f"Something went wrong in the model or the attack: {type(error).__name__}: {error}"
            )  # fmt: skip
            self.send(("failed", {"message": told[:500]}))
        finally:
            _here.job = None
            self.send(None)

    def look(self) -> None:
        """Go on, or raise Stopped."""
        if self.cancelled.is_set() or time.monotonic() - self._began > MOST_SECONDS:
            raise Stopped

    def tick(self) -> None:
        """The model is called once more."""
        self.look()
        self.passes += 1
        now = time.monotonic()
        if now - self._told > PROGRESS_EVERY:
            self._told = now
            self.send(("progress", {"passes": self.passes, "seconds": round(now - self._began, 1)}))


def watch_model(module: nn.Module) -> None:
    """Let jobs count the calls of a model, and be stopped at them. A model that takes no hooks runs on to the end."""

    def tick(*_: Any) -> None:
        job = getattr(_here, "job", None)
        if job is not None:
            job.tick()

    with contextlib.suppress(RuntimeError):
        module.register_forward_pre_hook(tick)


class Workshop:
    """The worker and its queue. A tab has one job: a new one takes the place of the last."""

    def __init__(self, most_waiting: int = MOST_WAITING) -> None:
        self.most_waiting = most_waiting
        self._waiting: deque[Job] = deque()
        self._running: Job | None = None
        self._changed = threading.Condition()
        self._closed = False
        self._worker = threading.Thread(target=self._run, name="deepfool-live", daemon=True)
        self._worker.start()

    def submit(self, job: Job) -> int:
        """Queue a job; returns how many are ahead of it, or raises BusyError."""
        self.cancel(job.tab)
        with self._changed:
            if len(self._waiting) >= self.most_waiting:
                raise BusyError("The server is busy: too many questions are waiting. Try again in a moment.")
            self._waiting.append(job)
            self._changed.notify()
            return len(self._waiting) - 1 + (self._running is not None)

    def ahead(self, job: Job) -> int:
        """How many jobs come before this one; 0 while it runs."""
        with self._changed:
            return self._waiting.index(job) + (self._running is not None) if job in self._waiting else 0

    def cancel(self, tab: str) -> None:
        """End what this tab has asked for so far."""
        with self._changed:
            for job in [each for each in (*self._waiting, self._running) if each is not None and each.tab == tab]:
                self.drop(job)

    def drop(self, job: Job) -> None:
        """End one job: out of the queue, or at its next call of the model."""
        job.cancelled.set()
        with self._changed:
            if job in self._waiting:
                self._waiting.remove(job)
                job.send(None)

    def close(self) -> None:
        """End all jobs and the worker."""
        with self._changed:
            self._closed = True
            for job in [each for each in (*self._waiting, self._running) if each is not None]:
                self.drop(job)
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                self._running = self._waiting.popleft()
            self._running.run()
            with self._changed:
                self._running = None
