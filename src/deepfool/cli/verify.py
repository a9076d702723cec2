"""`deepfool verify`: look again at what a run stored."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from deepfool.cli.options import RUN_CODE

if TYPE_CHECKING:
    from deepfool.runs.verification import Verification


def verify_run(
    run: Path = typer.Argument(..., help="A run folder with perturbations."),
    model: str | None = typer.Option(None, help="The model, if the manifest does not say where it is."),
    data: str | None = typer.Option(None, help="The data, if the manifest does not say where they are."),
    device: str = typer.Option("cpu", help="cpu, cuda, cuda:1, mps or auto."),
    batch_size: int = typer.Option(37, min=1, help="For the trial in another batch size."),
    run_code: bool = RUN_CODE,
    as_json: bool = typer.Option(False, "--json", help="For programs."),
) -> None:
    """Recompute labels and norms from the stored perturbations; exit code 1 if they are not as the run says."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from deepfool.runs.records import Run
    from deepfool.runs.verification import verify

    found = verify(Run(run), model, data, device=device, batch_size=batch_size, may_run_code=run_code)
    _keep(run, found)
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


def _keep(folder: Path, found: Verification) -> None:
    """Leave the outcome in the run folder, for the report; a folder that cannot be written to is no reason to fail."""
    from deepfool import cache
    from deepfool.errors import DataError
    from deepfool.reporting.provenance import VERIFICATION
    from deepfool.runs.manifests import now
    from deepfool.runs.records import Run

    outcome = {"verified": now(), "model": Run(folder).identity["model"]["sha256"], **found.as_dict()}
    with suppress(DataError):
        cache.write(folder / VERIFICATION, json.dumps(outcome, allow_nan=False).encode())
