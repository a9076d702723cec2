"""`deepfool report`: the results of a run as an HTML page, and as a PDF."""

from __future__ import annotations

from pathlib import Path

import typer

from deepfool.cli.output import echo


def report_runs(
    runs: list[Path] = typer.Argument(..., metavar="RUN...", help="Run folders; several make a comparison."),
    out: Path | None = typer.Option(
        None, "--out", "-o", metavar="FILE", help="The page (default: report.html in the folder of the first run)."
    ),
    eps: list[str] = typer.Option(
        [], metavar="EPS", help="Show the accuracy within EPS, such as 0.5 or 8/255; may be repeated."
    ),
    gallery: bool = typer.Option(True, "--gallery/--no-gallery", help="Show samples."),
    criteria: Path | None = typer.Option(
        None, metavar="FILE", help="Criteria set beforehand (default: criteria.toml in the run folder, if it is there)."
    ),
    pdf: bool = typer.Option(
        False, "--pdf", help="Also print it to a PDF beside the page, with a first page to sign; needs a Chromium."
    ),
) -> None:
    """Write one self-contained HTML file: verdict, curves, classes, gallery, and how it was measured.

    Reads only the run folders, or one folder of `deepfool universal`. On paper it has a first page that can be signed.
    """
    from deepfool.reporting.page import write_report
    from deepfool.reporting.printing import print_page
    from deepfool.reporting.universals import write_universal_report
    from deepfool.universals.results import FIGURES

    if len(runs) == 1 and (runs[0] / FIGURES).exists():
        page = write_universal_report(runs[0], out)
    else:
        page = write_report(runs, out, gallery=gallery, criteria=criteria, eps=eps or None)
    echo(page)
    if pdf:
        echo(print_page(page, page.with_suffix(".pdf")))
