"""`deepfool merge`: join the shards of a run."""

from __future__ import annotations

from pathlib import Path

import typer

from deepfool.cli.output import echo


def merge_runs(
    runs: list[Path] = typer.Argument(..., metavar="RUN...", help="Run folders that differ only in their samples."),
    out: Path = typer.Option(..., "--out", "-o", metavar="DIR", help="The new run folder."),
) -> None:
    """Join runs on different samples of the same data into one."""
    from deepfool.runs.merging import merge
    from deepfool.runs.records import Run

    merged = merge([Run(run) for run in runs], out)
    state = "complete" if merged.complete else f"{merged.expected - merged.count} samples are missing"
    echo(f"{merged.folder}: {merged.count} samples, {state}", err=True)
