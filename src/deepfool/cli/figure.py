"""`deepfool figure`: vector figures for papers."""

from __future__ import annotations

from pathlib import Path

import typer

from deepfool.cli.output import echo


def draw_run(
    words: list[str] = typer.Argument(
        ..., metavar="RUN... KIND", help="Run folders, then curve, histogram or classes."
    ),
    out: Path = typer.Option(..., "--out", "-o", metavar="FILE", help="The figure: .pdf, .svg, .eps or .png."),
) -> None:
    """Draw a figure of one run, or of several runs on the same axes."""
    from deepfool.errors import InputError
    from deepfool.reporting.figures import KINDS, draw_figure
    from deepfool.runs.records import Run

    *runs, kind = words
    if kind not in KINDS or not runs:
        raise InputError(f"expected run folders and then one of {', '.join(KINDS)}, got {' '.join(words)!r}.")
    echo(draw_figure([Run(run) for run in runs], kind, out))
