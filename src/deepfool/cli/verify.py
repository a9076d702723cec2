"""`deepfool verify`: check the stored perturbations of a run."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from deepfool.cli.options import RUN_CODE
from deepfool.cli.output import echo, make_console


def verify_run(
    run: Path = typer.Argument(..., help="A run folder with stored perturbations."),
    model: str | None = typer.Option(None, help="The model, if the manifest does not name it."),
    data: str | None = typer.Option(None, help="The data, if the manifest does not name it."),
    device: str = typer.Option("cpu", help="cpu, cuda, cuda:1, mps or auto."),
    batch_size: int = typer.Option(37, min=1, help="Batch size of the trial in another batch size."),
    run_code: bool = RUN_CODE,
    as_json: bool = typer.Option(False, "--json", help="Print the outcome as JSON."),
) -> None:
    """Recompute labels and norms from the stored perturbations; exit code 1 if they do not match the rows."""
    from rich import box
    from rich.table import Table

    from deepfool.runs.records import Run
    from deepfool.runs.verification import verify
    from deepfool.runs.verified import keep_verification

    opened = Run(run)
    found = verify(opened, model, data, device=device, batch_size=batch_size, may_run_code=run_code)
    keep_verification(opened, found.as_dict())
    if as_json:
        echo(json.dumps(found.as_dict(), allow_nan=False))
    else:
        table = Table("", "still fooled", "same label as in the rows", "note", box=box.SIMPLE_HEAD)
        for trial in found.trials:
            survive = f"{trial.changed} of {trial.tried}" if trial.tried else "-"
            table.add_row(trial.what, survive, str(trial.same) if trial.tried else "-", trial.skipped)
        make_console(width=120).print(table)
        echo(f"norms: {found.fooled - len(found.wrong_norms)} of {found.fooled} match the rows")
        echo(f"labels at x: {found.fooled - len(found.wrong_labels)} of {found.fooled} match the rows")
    if not found.holds:
        echo(f"{run} does not hold: its rows do not match its perturbations.", err=True, fg="red")
        raise typer.Exit(1)
