"""`deepfool compare`: compare two runs on the same samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from deepfool.cli.output import echo, make_console, plain

if TYPE_CHECKING:
    from deepfool.metrics.estimates import Estimate
    from deepfool.metrics.pairing import Pairing


def compare_runs(
    a: Path = typer.Argument(..., help="A run folder."),
    b: Path = typer.Argument(..., help="Another run folder, on the same data."),
    norm: str | None = typer.Option(None, help="l1, l2 or linf (default: the norm that both minimised)."),
    anyway: bool = typer.Option(
        False, "--anyway", help="Show the figures of two models that were measured in different ways."
    ),
    report: Path | None = typer.Option(
        None, metavar="FILE", help="Also write a page with both runs: curves, and the same samples side by side."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print everything as JSON."),
) -> None:
    """Say which of two models is more robust, and whether that is beyond chance: both on the same samples.

    Models that were measured in different ways (attack, norm, bounds, knobs) are refused.
    """
    from deepfool.metrics.pairing import pair
    from deepfool.runs.records import Run

    found = pair(Run(a), Run(b), norm, anyway=anyway)
    if report is not None:
        from deepfool.reporting.page import write_report

        echo(f"report: {write_report([found.a, found.b], report)}", err=True)
    if as_json:
        echo(json.dumps(found.as_dict(), allow_nan=False))
        return
    _draw(found)
    for note in found.notes:
        echo(f"note: {note}", err=True, fg="yellow")


def _draw(pairing: Pairing) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from deepfool.metrics.health import write_measured
    from deepfool.metrics.pairing import name_norm, write_p

    console, found = make_console(width=100), pairing.found
    sides = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for letter, run in zip("AB", pairing.runs, strict=True):
        about = (letter, run.manifest["model"]["spec"], write_measured(run.identity), str(run.folder))
        sides.add_row(*(Text(plain(text), overflow="fold") for text in about))
    console.print(sides)
    name = name_norm(pairing.a, pairing.norm)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column(f"||r|| / ||x|| in {name}", overflow="fold")
    table.add_column("value", justify="right")
    table.add_column("95 % interval", justify="right")
    table.add_row("samples in both", str(found.pairs), "")
    for letter, rho, lost, bracket in (
        ("A", found.rho_a, found.censored_a, found.bracket_a), ("B", found.rho_b, found.censored_b, found.bracket_b),
    ):  # fmt: skip
        cells = ("not known", f"{lost} without an answer") if lost else _cells(rho, "<= ")
        table.add_row(f"rho_adv of {letter}", *cells)
        if bracket is not None:
            table.add_row("  certified", *_cells(bracket.lower, ">= "))
    if found.mean_difference is None:
        table.add_row("mean of B - A", "not known", "")
    else:
        table.add_row("mean of B - A", *_cells(found.mean_difference))
        table.add_row("median of B - A", *_cells(found.median_difference))
        table.add_row("larger in A, in B, equal", f"{found.larger_in_a}, {found.larger_in_b}, {found.ties}", "")
        table.add_row("Wilcoxon signed-rank test", write_p(found.p_value), "")
    console.print()
    console.print(table)
    console.print()
    console.print(Text(plain(pairing.sentence), style="bold"))


def _cells(estimate: Estimate, sign: str = "") -> tuple[str, str]:
    from deepfool.metrics.formatting import format_number

    return f"{sign}{format_number(estimate.value)}", f"{format_number(estimate.low)} .. {format_number(estimate.high)}"
