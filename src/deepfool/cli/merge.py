"""`deepfool merge`: put the shards of a run together."""

from __future__ import annotations

from pathlib import Path

import typer


def merge_runs(
    runs: list[Path] = typer.Argument(..., metavar="RUN...", help="Run folders that differ in their samples alone."),
    out: Path = typer.Option(..., "--out", "-o", metavar="DIR", help="The folder to make."),
) -> None:
    """Put runs on different samples of the same data together into one."""
    from deepfool.runs.merging import merge
    from deepfool.runs.records import Run

    merged = merge([Run(run) for run in runs], out)
    state = "complete" if merged.complete else f"{merged.expected - merged.count} samples are still to be measured"
    typer.echo(f"{merged.folder}: {merged.count} samples, {state}", err=True)
