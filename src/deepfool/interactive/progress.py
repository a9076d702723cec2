"""A progress bar in the output of a notebook cell.

Drawn with what IPython itself has (a display that can be replaced), and not with tqdm or rich: those need ipywidgets in
a notebook, and print a warning where it is missing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from markupsafe import Markup

from deepfool.display.curves import LINE
from deepfool.display.tables import box, paragraph

REDRAW_EVERY = 0.2
"""Seconds. Each redraw is a message to the browser, and small models finish hundreds of batches in a second."""


def in_notebook() -> bool:
    """Whether this runs in the kernel of a notebook: Jupyter, VS Code, Colab; not in a script or a terminal.

    >>> in_notebook()
    False
    """
    ipython = sys.modules.get("IPython")  # without it there is no notebook, and no need to import it
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


class Bar:
    """A bar in the output of the cell. It appears with the first `show`; `drawing` makes one."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._drawn = 0.0

    def show(self, done: int, total: int, note: str) -> None:
        """Move the bar."""
        now = time.monotonic()
        if self._handle is not None and done < total and now - self._drawn < REDRAW_EVERY:
            return
        self._drawn = now
        bar = Markup(
            '<progress value="{}" max="{}" style="width:16rem;vertical-align:middle;accent-color:{}"></progress>'
        ).format(done, max(1, total), LINE)
        line = Markup('<div style="font-variant-numeric:tabular-nums">{} &nbsp;{:,} of {:,} {}</div>')
        self._put(box(line.format(bar, done, total, note)))

    def end(self, line: str) -> None:
        """Replace the bar, if there is one, by a line that stays."""
        if self._handle is not None:
            self._put(box(paragraph(line, faint=True)))

    def _put(self, html: str) -> None:
        from IPython.display import HTML, display

        if self._handle is None:
            self._handle = display(HTML(html), display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(HTML(html))  # type: ignore[no-untyped-call]


@contextmanager
def drawing() -> Iterator[Bar]:
    """A bar for the time of a `with` block; if that fails, the bar says where it stopped."""
    bar = Bar()
    try:
        yield bar
    except BaseException:
        bar.end("Stopped. What is finished is kept: run the cell again to resume.")
        raise
