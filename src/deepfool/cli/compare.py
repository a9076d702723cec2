"""`deepfool compare`: compare two runs on the same samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from deepfool.cli.output import echo, make_console

if TYPE_CHECKING:
    from deepfool.metrics import Comparison


def compare_runs(
    a: Path = typer.Argument(..., help="A run folder."),
    b: Path = typer.Argument(..., help="Another run folder, on the same data."),
    norm: str | None = typer.Option(None, help="l1, l2 or linf (default: the norm that both minimised)."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Compare two runs sample by sample: paired differences with intervals, and the Wilcoxon signed-rank test."""
    from rich import box
    from rich.table import Table

    from deepfool.metrics import check_same_data, compare, shared_norm
    from deepfool.runs.records import Run

    one, other = Run(a), Run(b)
    check_same_data(one, other)
    chosen = shared_norm(one, other, norm)
    found = compare(one.records(), other.records(), chosen)
    if as_json:
        echo(json.dumps({"a": str(a), "b": str(b), **found.as_dict()}, allow_nan=False))
        return
    name = f"l{one.p:g}" if chosen == "p" else chosen
    table = Table(box=box.SIMPLE_HEAD, title=f"||r|| / ||x|| in {name}, {found.pairs} samples in both")
    table.add_column("")
    table.add_column("value", justify="right")
    table.add_row("rho_adv of A", str(found.rho_a))
    table.add_row("rho_adv of B", str(found.rho_b))
    table.add_row("mean of B - A", str(found.mean_difference) if found.mean_difference else "unknown")
    table.add_row("median of B - A", str(found.median_difference))
    table.add_row("larger in A, in B, equal", f"{found.larger_in_a}, {found.larger_in_b}, {found.ties}")
    table.add_row("Wilcoxon, p-value", f"{found.p_value:.3g}")
    make_console(width=100).print(table)
    for line in _explain(found):
        echo(line, err=True)


def _explain(found: Comparison) -> list[str]:
    lines = []
    if found.only_a or found.only_b:
        lines.append(f"left out: {found.only_a} samples of A and {found.only_b} of B that are not in both runs.")
    if found.mean_difference is None:
        lines.append(
            f"{found.censored_a} samples of A and {found.censored_b} of B were not fooled, so the mean difference is "
            f"unknown. The median and the test rank them above all others."
        )
    return lines
