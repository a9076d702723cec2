"""`deepfool reproduce`: make the paper's tables and figures again, beside the published ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from deepfool.cli.output import echo, make_console
from deepfool.cli.progress import drawing

if TYPE_CHECKING:
    from rich.console import Console

    from deepfool.experiments.session import Step


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
    """The part that is being made, and how far it is."""
    with drawing(console) as bar:

        def draw(step: Step) -> None:
            name = f"{step.experiment}: {step.part}"
            bar.show(name, step.done, step.total or None)
            bar.log(name, f"{name}, {step.done}/{step.total}" if step.total else name)

        yield draw
