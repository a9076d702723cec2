"""`deepfool report`: what a run found, as a page to look at."""

from __future__ import annotations

from pathlib import Path

import typer

from deepfool.cli.options import RUN_CODE
from deepfool.cli.output import echo


def report_runs(
    runs: list[Path] = typer.Argument(..., metavar="RUN...", help="Run folders; several make a comparison."),
    out: Path | None = typer.Option(
        None, "--out", "-o", metavar="FILE", help="The page (default: report.html in the folder of the first run)."
    ),
    gallery: bool = typer.Option(True, "--gallery/--no-gallery", help="Show samples; may attack a few of them again."),
    model: str | None = typer.Option(None, help="The model, if the manifest does not say where it is."),
    data: str | None = typer.Option(None, help="The data, if the manifest does not say where they are."),
    run_code: bool = RUN_CODE,
) -> None:
    """Write one self-contained HTML file: verdict, curves, classes, gallery, and how it was measured."""
    from deepfool.reporting.page import write_report

    path = write_report(runs, out, gallery=gallery, model=model, data=data, may_run_code=run_code)
    echo(path)
