"""What the commands print, and the one place where text from others is made harmless.

Names of models, data, classes and attacks come from manifests, records and label files that somebody else may have
written. Square brackets in them are not markup, and control characters are shown, not executed: an escape sequence
could hide lines, change the window title, or worse.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

# Control characters except tab and newline; bytes of a file name that are not text; marks that change the direction of
# writing, which can make one name look like another.
_HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def plain(text: object) -> str:
    r"""Text with its control characters escaped, except newlines and tabs.

    >>> plain("d[v2]\x1b[31m\r")
    'd[v2]\\x1b[31m\\r'
    """
    return _HARMFUL.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


def echo(text: object = "", *, err: bool = False, fg: str | None = None, nl: bool = True) -> None:
    """Print a line of plain text to stdout or stderr, in colour on a terminal."""
    typer.secho(plain(text), err=err, fg=fg, nl=nl)


def make_console(*, stderr: bool = False, quiet: bool = False, width: int | None = None) -> Console:
    """A console that prints all text as plain text; `width` is the line width where there is no terminal."""
    from rich.console import Console
    from rich.text import Text

    class PlainConsole(Console):
        """The texts of tables, titles and lines are all rendered here."""

        def render_str(self, text: str, **how: Any) -> Text:
            return super().render_str(plain(text), **how)

    console = PlainConsole(stderr=stderr, quiet=quiet, markup=False, emoji=False)
    if width is None or console.is_terminal:
        return console
    return PlainConsole(stderr=stderr, quiet=quiet, markup=False, emoji=False, width=width)
