"""`deepfool table`: the numbers of runs, for a document or a spreadsheet."""

from __future__ import annotations

from pathlib import Path

import typer

from deepfool.cli.output import echo


def print_table(
    runs: list[Path] = typer.Argument(..., metavar="RUN...", help="Run folders."),
    style: str = typer.Option("markdown", "--format", help="markdown, csv or latex."),
) -> None:
    """Print a table with one row per run: accuracy, rho_adv and its interval, median, cost."""
    from deepfool.reporting.tables import format_table
    from deepfool.runs.records import Run

    echo(format_table([Run(run) for run in runs], style), nl=False)
