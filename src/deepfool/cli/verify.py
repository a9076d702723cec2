"""`deepfool verify`: look again at what a run stored."""

from __future__ import annotations

import json
from pathlib import Path

import typer


def verify_run(
    run: Path = typer.Argument(..., help="A run folder with perturbations."),
    model: str | None = typer.Option(None, help="The model, if the manifest does not say where it is."),
    data: str | None = typer.Option(None, help="The data, if the manifest does not say where they are."),
    device: str = typer.Option("cpu", help="cpu, cuda, cuda:1, mps or auto."),
    batch_size: int = typer.Option(37, min=1, help="For the trial in another batch size."),
    as_json: bool = typer.Option(False, "--json", help="For programs."),
) -> None:
    """Recompute labels and norms from the stored perturbations; exit code 1 if they are not as the run says."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from deepfool.records import Run
    from deepfool.verification import verify

    found = verify(Run(run), model, data, device=device, batch_size=batch_size)
    if as_json:
        typer.echo(json.dumps(found.as_dict(), allow_nan=False))
    else:
        table = Table("", "still fooled", "same label as then", "note", box=box.SIMPLE_HEAD)
        for trial in found.trials:
            survive = f"{trial.changed} of {trial.tried}" if trial.tried else "-"
            table.add_row(trial.what, survive, str(trial.same) if trial.tried else "-", trial.skipped)
        (Console() if Console().is_terminal else Console(width=120)).print(table)
        typer.echo(f"norms: {found.fooled - len(found.wrong_norms)} of {found.fooled} as in the rows")
        typer.echo(f"labels at x: {found.fooled - len(found.wrong_labels)} of {found.fooled} as in the rows")
    if not found.holds:
        typer.secho(f"{run} does not hold: its rows are not what its perturbations do.", err=True, fg="red")
        raise typer.Exit(1)
