"""`deepfool table`: the numbers of runs, for a document or a spreadsheet."""

from __future__ import annotations

from pathlib import Path

import typer

from deepfool.cli.output import echo


def print_table(
    runs: list[Path] = typer.Argument(..., metavar="RUN...", help="Run folders."),
    style: str = typer.Option("markdown", "--format", help="markdown, csv or latex."),
    eps: list[str] = typer.Option(
        [], metavar="EPS", help="Add the accuracy within EPS, such as 0.5 or 8/255; may be repeated."
    ),
) -> None:
    """Print a table with one row per run: how it was measured, accuracy, rho_adv and its interval, median, cost."""
    from deepfool.reporting.tables import format_table
    from deepfool.runs.records import Run

    echo(format_table([Run(run) for run in runs], style, eps=eps), nl=False)
