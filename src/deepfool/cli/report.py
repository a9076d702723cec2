"""`deepfool report`: the results of a run as an HTML page."""

from __future__ import annotations

from pathlib import Path

import typer

from deepfool.cli.output import echo


def report_runs(
    runs: list[Path] = typer.Argument(..., metavar="RUN...", help="Run folders; several make a comparison."),
    out: Path | None = typer.Option(
        None, "--out", "-o", metavar="FILE", help="The page (default: report.html in the folder of the first run)."
    ),
    gallery: bool = typer.Option(True, "--gallery/--no-gallery", help="Show samples."),
) -> None:
    """Write one self-contained HTML file: verdict, curves, classes, gallery, and how it was measured.

    Reads only the run folders.
    """
    from deepfool.reporting.page import write_report

    echo(write_report(runs, out, gallery=gallery))
