"""How long there is. Time is the wall's; `now` can be replaced, by CPU time for a benchmark on a busy machine."""

from __future__ import annotations

import time
from collections.abc import Callable

now: Callable[[], float] = time.perf_counter


class TimeIsOverError(Exception):
    """A pass was given up because its time was over."""


class Watch:
    """A number of seconds from now on.

    >>> Watch(1e6).over()
    False
    """

    def __init__(self, seconds: float) -> None:
        self.begun, self.seconds = now(), seconds

    def spent(self) -> float:
        return now() - self.begun

    def over(self) -> bool:
        return self.spent() >= self.seconds

    def check(self) -> None:
        """Raises `TimeIsOverError` if it is."""
        if self.over():
            raise TimeIsOverError
