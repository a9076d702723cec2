"""What the commands write to the terminal, and the one place where text of others is made harmless.

Names of models, data, classes and attacks come out of manifests, records and label files that somebody else may have
written. Square brackets in them are no markup, and control characters are shown, not obeyed: an escape sequence could
hide lines, change the title of the window, or worse.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import ProgressColumn

# Control characters, the escape among them, but for tab and line end; bytes of a file name that are no text and cannot
# be printed; marks that turn the direction of writing, by which one name can be made to read as another.
_HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def plain(text: object) -> str:
    r"""Text with its control characters written out; lines and tabs stay.

    >>> plain("d[v2]\x1b[31m\r")
    'd[v2]\\x1b[31m\\r'
    """
    return _HARMFUL.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


def echo(text: object = "", *, err: bool = False, fg: str | None = None, nl: bool = True) -> None:
    """A line of plain text, on stdout or stderr, in a colour where there is a terminal."""
    typer.secho(plain(text), err=err, fg=fg, nl=nl)


def make_console(*, stderr: bool = False, quiet: bool = False, width: int | None = None) -> Console:
    """A console that takes every text as plain text; `width` is that of its lines where there is no terminal."""
    from rich.console import Console
    from rich.text import Text

    class PlainConsole(Console):
        """Tables, titles and lines all have their texts rendered here."""

        def render_str(self, text: str, **how: Any) -> Text:
            return super().render_str(plain(text), **how)

    console = PlainConsole(stderr=stderr, quiet=quiet, markup=False, emoji=False)
    if width is None or console.is_terminal:
        return console
    return PlainConsole(stderr=stderr, quiet=quiet, markup=False, emoji=False, width=width)


def describing() -> ProgressColumn:
    """The column of a progress bar that tells what is going on."""
    from rich.progress import Task, TextColumn
    from rich.text import Text

    class Description(TextColumn):
        def render(self, task: Task) -> Text:
            return Text(plain(task.description))

    return Description("{task.description}")
