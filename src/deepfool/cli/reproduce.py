"""`deepfool reproduce`: make the paper's tables and figures again, beside the published ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from deepfool.cli.output import describing, echo, make_console

if TYPE_CHECKING:
    from rich.console import Console

    from deepfool.experiments.session import Step

LINE_EVERY = 10.0
"""Seconds between two lines about the same part when there is no terminal."""


def reproduce_paper(
    out: Path = typer.Option(Path("runs/reproduction"), metavar="DIR", help="Output folder."),
    scale: str = typer.Option(
        "default", help="smoke (a quick test, not a measurement), default, or full (the paper's sizes)."
    ),
    only: list[str] = typer.Option([], metavar="NAME", help="table1, figure6, ...; may be repeated."),
    images: Path | None = typer.Option(
        None, metavar="DIR", help="Folder of labelled ImageNet images, for the ImageNet networks."
    ),
    engine: str = typer.Option("local", help="local, or ray (a cluster)."),
    workers: int | None = typer.Option(None, help="Worker processes (or Ray actors)."),
    threads: int | None = typer.Option(None, min=1, help="Processor threads of this process."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="Print only errors."),
) -> None:
    """Make the paper's tables and figures again. The same command resumes where it stopped."""
    import torch

    from deepfool.experiments import reproduce
    from deepfool.runs.evaluation import Interrupted
    from deepfool.runs.execution import keep_freed_memory

    keep_freed_memory()
    console = make_console(stderr=True, quiet=quiet)
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        with _drawing(console) as draw:
            page = reproduce(
                out, scale=scale, only=only, images=images, engine=engine, workers=workers, on_progress=draw
            )
    except (Interrupted, KeyboardInterrupt):
        echo(f"stopped; the measurements so far are in {out}. Run the same command to resume.", err=True)
        raise typer.Exit(130) from None
    echo(f"{page}")


@contextmanager
def _drawing(console: Console) -> Iterator[Callable[[Step], None]]:
    """A progress bar for each part on a terminal; otherwise a line now and then."""
    if console.quiet:
        yield lambda _: None
        return
    if not console.is_terminal:
        yield _saying(console)
        return

    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    columns = (describing(), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task("", total=None)

        def draw(step: Step) -> None:
            description = f"{step.experiment}: {step.part}"
            bars.update(task, description=description, completed=step.done, total=step.total or None)

        yield draw


def _saying(console: Console) -> Callable[[Step], None]:
    last, said = 0.0, ""

    def say(step: Step) -> None:
        nonlocal last, said
        name = f"{step.experiment}: {step.part}"
        if name == said and time.monotonic() - last < LINE_EVERY:
            return
        last, said = time.monotonic(), name
        count = f", {step.done}/{step.total}" if step.total else ""
        console.print(f"{name}{count}", soft_wrap=True, highlight=False, markup=False)

    return say
