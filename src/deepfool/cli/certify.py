"""`deepfool certify`: proved lower bounds for a run that is there."""

from __future__ import annotations

from pathlib import Path

import typer

from deepfool.cli.options import RUN_CODE
from deepfool.cli.output import echo, make_console


def certify_folder(
    run: Path = typer.Argument(..., help="A run folder."),
    seconds: float = typer.Option(1.0, "--seconds", min=0, help="How long to work on each sample."),
    model: str | None = typer.Option(None, help="The model, if the manifest does not name it."),
    data: str | None = typer.Option(None, help="The data, if the manifest does not name it."),
    device: str = typer.Option("cpu", help="Where the model is run: cpu, cuda, cuda:1, mps or auto."),
    workers: int | None = typer.Option(None, metavar="N", min=1, help="Number of processes."),
    run_code: bool = RUN_CODE,
    report: bool = typer.Option(True, "--report/--no-report", help="Write report.html into the run folder again."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="Print only warnings and errors."),
    as_json: bool = typer.Option(False, "--json", help="Print the summary as JSON to stdout."),
) -> None:
    """Prove for each sample of a run that no perturbation below a certain size changes the decision.

    If it is stopped, rerun the command to resume; with more --seconds it goes on with the samples that are not exact.
    """
    from deepfool.cli.evaluate import show_certifying, tell_results
    from deepfool.cli.progress import drawing
    from deepfool.runs.certifying import certify_run, find_wanted
    from deepfool.runs.execution import keep_freed_memory
    from deepfool.runs.records import Run

    keep_freed_memory()
    opened, console = Run(run), make_console(stderr=True, quiet=quiet)
    try:
        with drawing(console) as bar:
            certify_run(
                opened, model, data, seconds=seconds, device=device, workers=workers, may_run_code=run_code,
                on_progress=lambda done, total: show_certifying(bar, done, total),
            )  # fmt: skip
    except KeyboardInterrupt:
        left = len(find_wanted(opened, seconds))
        echo(f"stopped with {left} samples left; rerun the command to resume.", err=True)
        raise typer.Exit(130) from None
    tell_results(console, opened, report=report, as_json=as_json)
