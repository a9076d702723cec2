"""Progress of the commands: a bar on a terminal, a line now and then elsewhere, nothing if quiet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from deepfool.cli.output import plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import ProgressColumn

    from deepfool.datasets.fetching import Progress as Fetched

LINE_EVERY = 10.0
"""Seconds between two lines about the same thing where there is no terminal."""


class Bar:
    """What a command reports its progress to; `drawing` makes one."""

    def __init__(self, console: Console, bars: Any = None) -> None:
        self._console, self._bars = console, bars
        self.on_terminal = bars is not None
        self._task = None if bars is None else bars.add_task("", total=None, note="")
        self._last_line = {"": time.monotonic()}

    def show(self, name: str, done: int, total: int | None, note: str = "") -> None:
        """Move the bar. A new name starts a new one."""
        if self._bars is None:
            return
        new = self._bars.tasks[0].description != name
        if new:
            self._bars.reset(self._task)
        # Progress comes faster than the eye: it waits for the next redraw, except for a new name.
        self._bars.update(self._task, description=name, completed=done, total=total, note=note, refresh=new)

    def log(self, name: str, line: str, *, always: bool = False) -> None:
        """Print a line where there is no terminal, at once for a new name and then every few seconds."""
        now = time.monotonic()
        recent = name in self._last_line and now - self._last_line[name] < LINE_EVERY
        if self._bars is None and (always or not recent):
            self._last_line[name] = now
            self.say(line)

    def say(self, line: str) -> None:
        """Print a line that stays, on a terminal or elsewhere."""
        say(self._console, line)


def say(console: Console, line: str) -> None:
    """Print a line of plain text."""
    console.print(line, soft_wrap=True, highlight=False, markup=False)


@contextmanager
def drawing(console: Console, *, bytes: bool = False, times: bool = True) -> Iterator[Bar]:
    """A bar that counts steps or bytes; `times` adds the time taken and the time left."""
    if console.quiet or not console.is_terminal:
        yield Bar(console)
        return

    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TimeElapsedColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns: list[ProgressColumn] = [showing("description"), BarColumn()]
    columns += [DownloadColumn(), TransferSpeedColumn()] if bytes else [MofNCompleteColumn()]
    columns += [showing("note")]
    columns += [TimeElapsedColumn(), TimeRemainingColumn()] if times else []
    with Progress(*columns, console=console, transient=True) as bars:
        yield Bar(console, bars)


@contextmanager
def drawing_fetch(console: Console, name: str) -> Iterator[Callable[[Fetched], None]]:
    """The progress of fetching data: a bar on a terminal, one line per step elsewhere."""
    with drawing(console, bytes=True) as bar:
        last = ""

        def draw(progress: Fetched) -> None:
            nonlocal last
            line = f"{name}: {progress.step}"
            if (not bar.on_terminal and line != last) or (bar.on_terminal and progress.lasting):
                bar.say(line)
            else:
                bar.show(line, progress.done, progress.total)
            last = line

        yield draw


def showing(field: str) -> ProgressColumn:
    """A column that shows a text of the task, its description or its note, as plain text."""
    from rich.progress import Task, TextColumn
    from rich.text import Text

    class PlainColumn(TextColumn):
        def render(self, task: Task) -> Text:
            return Text(plain(task.description if field == "description" else task.fields[field]))

    return PlainColumn("")
