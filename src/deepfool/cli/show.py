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
    as_json: bool = typer.Option(False, "--json", help="Print everything as JSON."),
) -> None:
    """Show the results of a run."""

    from deepfool.metrics import summarize
    from deepfool.runs.records import Run

    summary = summarize(Run(run))
    if as_json:
        echo(json.dumps(summary, allow_nan=False))
        return
    draw_summary(make_console(width=100), summary)


def draw_summary(console: Console, summary: Mapping[str, Any]) -> None:
    """A table of the main results, with warnings below."""
    from rich import box
    from rich.table import Table

    from deepfool.cli.audit import draw_audit
    from deepfool.runs.audit.checklist import Audit

    own = summary["norm"]
    table = Table(box=box.SIMPLE_HEAD, title=f"{summary['model']} on {summary['data']}, {summary['attack']}, {own}")
    table.add_column("")
    table.add_column("value", justify="right")
    table.add_column("95 % interval", justify="right")
    table.add_row("samples", f"{summary['samples']} of {summary['expected']}", "")
    table.add_row("accuracy", *_cells(summary["accuracy"]))
    table.add_row("fooled", *_cells(summary["fooled"]))
    table.add_row(f"rho_adv ({own})", *_cells(summary["rho_adv"]))
    if own != "l2":
        table.add_row("rho_adv (l2)", *_cells(summary["rho_adv_l2"]))
    table.add_row("median relative", *_cells(summary["quantiles_relative"]["0.5"]))
    table.add_row(f"median {own}", *_cells(summary["quantiles"]["0.5"]))
    for words, value in _tell_evidence(summary):
        table.add_row(words, value, "")
    table.add_row("iterations, mean", _number(summary["iterations"]["mean"]), "")
    table.add_row("seconds of attack", _number(summary["seconds"]), "")
    console.print(table)
    for warning in summary["warnings"]:
        console.print(f"warning: {warning}", style="yellow", soft_wrap=True, highlight=False, markup=False)
    if summary["audit"] is not None:
        draw_audit(console, Audit.of_dict(summary["audit"]))
    console.print(summary["run"], soft_wrap=True, highlight=False, markup=False)


def _tell_evidence(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What the perturbations were found by and how many had not converged, where that is not the usual."""
    evidence, open_ = summary["evidence"], summary["not_converged"]
    if set(evidence) - {"gradients", "unknown"}:
        yield "found by", ", ".join(f"{kind} {count}" for kind, count in evidence.items())
    if open_:
        yield "not converged", str(open_)


def _cells(estimate: Mapping[str, Any]) -> tuple[str, str]:
    if estimate["value"] is None:
        return "-", ""
    sign = "" if estimate["exact"] or estimate["value"] == "inf" else ">= "
    high = "no upper limit" if estimate["high"] == "inf" else _number(estimate["high"])
    return f"{sign}{_number(estimate['value'])}", f"{_number(estimate['low'])} .. {high}"


def _number(value: Any) -> str:
    return "-" if value is None else value if isinstance(value, str) else f"{value:.4g}"
