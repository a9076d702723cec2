"""The batches still to run: those of crashed workers first, then new ones, read only when there is room for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from deepfool.errors import RunError
from deepfool.runs.worker import Batch

ATTEMPTS = 3
"""How often a batch may crash its worker before the run gives up."""


@dataclass(eq=False)
class Task:
    """A batch, and how often it was running when a worker crashed."""

    batch: Batch
    crashes: int = 0


class Backlog:
    """Batches waiting for a worker.

    >>> import numpy as np
    >>> backlog = Backlog(Batch([i], np.zeros((1, 2)), [-1]) for i in range(2))
    >>> first = backlog.next()
    >>> backlog.retry(first, "exit code -9")
    >>> backlog.next() is first, backlog.next().batch.index, backlog.next()
    (True, [1], None)
    """

    def __init__(self, batches: Iterable[Batch]) -> None:
        self._source = iter(batches)
        self._again: deque[Task] = deque()
        self._ahead: Batch | None = None

    @property
    def has_retries(self) -> bool:
        """Whether a batch of a crashed worker is waiting."""
        return bool(self._again)

    def next(self) -> Task | None:
        """The next batch to run; None if there is none left."""
        if self._again:
            return self._again.popleft()
        self.read_ahead()
        batch, self._ahead = self._ahead, None
        return None if batch is None else Task(batch)

    def read_ahead(self) -> None:
        """Read the next new batch, so that it is there when a worker wants it."""
        if self._ahead is None:
            self._ahead = next(self._source, None)

    def put_back(self, task: Task) -> None:
        """Run a batch later: its worker never started on it."""
        self._again.append(task)

    def retry(self, task: Task, why: str) -> None:
        """Run a batch again after its worker crashed, or give up if it crashed too many workers."""
        task.crashes += 1
        if task.crashes >= ATTEMPTS:
            raise RunError(
                f"{task.batch} crashed a worker three times: {why}.",
                hint="a smaller --batch-size uses less memory; finished samples are kept.",
            )
        self._again.append(task)


def fail_to_start(why: str) -> RunError:
    """The error of workers that crash before they can run a batch."""
    return RunError(f"the workers crash before they can start: {why}.")
