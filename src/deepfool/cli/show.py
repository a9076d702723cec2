"""`deepfool show`: the results of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from deepfool.cli.output import echo, make_console

if TYPE_CHECKING:
    from rich.console import Console


def show_run(
    run: Path = typer.Argument(..., help="A run folder."),
    eps: list[str] = typer.Option(
        [], metavar="EPS", help="Show the accuracy within EPS, such as 0.5 or 8/255; may be repeated."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print everything as JSON."),
) -> None:
    """Show the results of a run."""

    from deepfool.metrics import summarize
    from deepfool.runs.records import Run

    summary = summarize(Run(run), eps=eps or None)
    if as_json:
        echo(json.dumps(summary, allow_nan=False))
        return
    draw_summary(make_console(width=100), summary)


def draw_summary(console: Console, summary: Mapping[str, Any]) -> None:
    """The verdict, a table of the main results, and what else to know."""
    from rich import box
    from rich.table import Table

    from deepfool.cli.audit import draw_audit
    from deepfool.reporting.times import format_duration
    from deepfool.runs.audit.checklist import Audit

    own = summary["norm"]
    title = f"{summary['model']} on {summary['data']}\n{summary['setup']}"
    table = Table(box=box.SIMPLE_HEAD, title=title)
    table.add_column("")
    table.add_column("value", justify="right")
    table.add_column("95 % interval", justify="right")
    table.add_row("samples", f"{summary['samples']} of {summary['expected']}", "")
    if summary["classes_decide"]:
        table.add_row("accuracy", *_cells(summary["accuracy"]))
    kept = "accuracy" if summary["classes_decide"] else "decisions that hold"
    for each in summary["robust_accuracy"]:
        table.add_row(f"{kept} within {own} {each['text']}", *_cells(each["accuracy"], bound=True))
        if each["certified"] is not None:
            table.add_row("  certified", *_cells(each["certified"], sign=">= "))
    table.add_row("fooled", *_cells(summary["fooled"]))
    table.add_row(f"rho_adv ({own})", *_cells(summary["rho_adv"], bound=True))
    if (bracket := summary["bracket"]) is not None:
        table.add_row("  smallest known", *_cells(bracket["upper"], bound=True))
        table.add_row("  certified", *_cells(bracket["lower"], sign=">= "))
        table.add_row("  exact samples", *_cells(bracket["exact"]))
    if lost := summary["headline"]["unanswered"]:
        table.add_row("  of those with an answer", *_cells(summary["rho_answered"]))
        table.add_row("  without an answer", str(lost), "")
    if own != "l2":
        table.add_row("rho_adv (l2)", *_cells(summary["rho_adv_l2"], bound=True))
    table.add_row("median relative", *_cells(summary["quantiles_relative"]["0.5"], bound=True))
    table.add_row(f"median {own}", *_cells(summary["quantiles"]["0.5"], bound=True))
    for words, value in _tell_evidence(summary):
        table.add_row(words, value, "")
    table.add_row("iterations, mean", _number(summary["iterations"]["mean"]), "")
    table.add_row("time of the attack", format_duration(summary["seconds"]), "")
    console.print(table)
    _say_verdict(console, summary)
    if summary["audit"] is not None:
        draw_audit(console, Audit.of_dict(summary["audit"]))
    console.print(summary["run"], soft_wrap=True, highlight=False, markup=False)


STYLES = {"good": "", "warning": "yellow", "bad": "red"}


def _say_verdict(console: Console, summary: Mapping[str, Any]) -> None:
    """The headline, why searches had no answer, and the warnings."""
    verdict, style = summary["verdict"], STYLES[summary["headline"]["level"]]
    lines = [(verdict["lead"], style), *((f"  {each}", style) for each in verdict["failures"])]
    lines += [(each, "") for each in verdict["proofs"]]
    lines += [(each, "") for each in verdict["lines"] if "pixels may leave" in each]
    lines += [(f"warning: {each}", "yellow") for each in summary["notes"]]
    for line, look in lines:
        console.print(line, style=look, soft_wrap=True, highlight=False, markup=False)


def _tell_evidence(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What the perturbations were found by and how many had not converged, where that is not the usual."""
    evidence, open_ = summary["evidence"], summary["not_converged"]
    if set(evidence) - {"gradients", "unknown"}:
        yield "found by", ", ".join(f"{kind} {count}" for kind, count in evidence.items())
    if open_:
        yield "not converged", str(open_)


def _cells(estimate: Mapping[str, Any], *, bound: bool = False, sign: str = "") -> tuple[str, str]:
    """A value and its interval; `bound` marks what an attack found, which is an upper bound."""
    from deepfool.metrics.formatting import NOT_KNOWN, format_interval

    if not estimate["exact"]:
        return NOT_KNOWN, ""
    if estimate["value"] is None:
        return "-", ""
    low, high = (None if end is None else float(end) for end in (estimate["low"], estimate["high"]))
    return f"{'<= ' if bound else sign}{_number(estimate['value'])}", format_interval(low, high)


def _number(value: Any) -> str:
    from deepfool.metrics.formatting import format_number

    return "-" if value is None else format_number(float(value))
