"""`deepfool universal`: one perturbation for all images."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from deepfool.cli.evaluate import read_bounds, read_folder, read_p, read_split
from deepfool.cli.options import ARCH, MEAN, MODEL, STD, add_preprocessing
from deepfool.cli.output import echo, make_console
from deepfool.cli.progress import drawing, drawing_fetch, say

if TYPE_CHECKING:
    from rich.console import Console

    from deepfool.universals.results import Progress, Universal


def find_universal(
    model: str = MODEL,
    data: str = typer.Option(..., metavar="DATA", help="What to find v on: mnist, cifar10, folder:DIR, npz:FILE, ..."),
    xi: str = typer.Option(..., metavar="XI", help="The radius: 0.04, 10/255, or 4% of the mean norm of the images."),
    p: str = typer.Option("inf", metavar="P", help="The norm: 1, 2 or inf."),
    method: str = typer.Option("gradient", metavar="NAME", help="gradient, or deepfool (the algorithm of 2017)."),
    test: str | None = typer.Option(None, metavar="DATA", help="What to judge on (default: the rest of --data)."),
    used: int | None = typer.Option(None, metavar="N", help="Images to find v on (default: 1000, or half of --data)."),
    held_out: int = typer.Option(1000, metavar="N", help="Images to judge on, none of them used; at most so many."),
    bounds: str | None = typer.Option(None, metavar="LOW,HIGH", help="Keep x + v within bounds (default: none)."),
    mask: Path | None = typer.Option(None, metavar="FILE", help="Which features may change: a .npy array of 0 and 1."),
    target: int | None = typer.Option(None, metavar="LABEL", help="The label that decisions should change to."),
    epochs: int | None = typer.Option(None, metavar="N", help="How often to go through the images used."),
    batch_size: int | None = typer.Option(None, metavar="N", help="Images at once."),
    wanted: float | None = typer.Option(None, metavar="SHARE", help="Stop once so many of the images used are fooled."),
    seed: int = typer.Option(0, metavar="N", help="Which images are used, and in which order."),
    curve: str | None = typer.Option(None, metavar="XI,XI,...", help="Search at these radii too, for a curve."),
    counts: str | None = typer.Option(None, metavar="N,N,...", help="Search with so many of the images used, too."),
    transfer: list[str] = typer.Option([], metavar="MODEL", help="Judge v on this model too; may be repeated."),
    split: str | None = typer.Option(None, metavar="NAME", help="Split of --data, if it has any (default: test)."),
    test_split: str | None = typer.Option(None, metavar="NAME", help="Split of --test, if it has any (default: test)."),
    size: int | None = typer.Option(None, metavar="PIXELS", help="Resize folder: and hf: images to this side length."),
    mean: str | None = MEAN,
    std: str | None = STD,
    arch: str | None = ARCH,
    device: str = typer.Option("auto", metavar="NAME", help="cpu, cuda, mps; auto uses a GPU if there is one."),
    out: str | None = typer.Option(None, metavar="DIR", help="The folder (default: in runs/, named by the search)."),
    report: bool = typer.Option(True, "--report/--no-report", help="Write report.html into the folder."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="Print only warnings and errors."),
    as_json: bool = typer.Option(False, "--json", help="Print the figures as JSON to stdout."),
) -> None:
    """Find one perturbation that changes the decision on most images, and judge it on images that were not used.

    If it is stopped, rerun the command to resume: it ends at the same perturbation.
    """
    from deepfool.datasets import load
    from deepfool.reporting.universals import write_universal_report
    from deepfool.runs.execution import keep_freed_memory
    from deepfool.universals.universal import universal

    keep_freed_memory()
    model = add_preprocessing(model, mean, std)
    console = make_console(stderr=True, quiet=quiet)
    norm = read_p(p)
    folder = read_folder(out) if out is not None else name_folder(model, data, p, xi, method, target, seed)
    split = read_split(split, data, "test")
    with drawing_fetch(console, data) as on_fetch:
        samples = load(data, split=split, size=size, on_progress=on_fetch)
    others = None
    if test is not None:
        with drawing_fetch(console, test) as on_fetch:
            others = load(test, split=read_split(test_split, test, "test"), size=size, on_progress=on_fetch)
    say(console, f"folder: {folder}")
    try:
        with _drawing(console) as draw:
            found = universal(
                model, samples, xi=xi, p=norm, method=method, test=others, used=used, held_out=held_out,
                bounds=read_bounds(bounds), mask=_read_mask(mask), target=target, epochs=epochs, batch_size=batch_size,
                wanted=wanted, seed=seed, curve=_split(curve), counts=read_counts(counts), transfer=transfer, arch=arch,
                device=device, out=folder, on_progress=draw,
            )  # fmt: skip
    except KeyboardInterrupt:
        echo("stopped; run the same command to resume", err=True)
        raise typer.Exit(130) from None
    if report:
        say(console, f"report: {write_universal_report(folder)}")
    if as_json:
        echo(json.dumps(found.figures(), allow_nan=False))
    else:
        _draw_tables(found, quiet)


def name_folder(model: str, data: str, p: str, xi: str, method: str, target: int | None, seed: int) -> Path:
    """The default folder of a search.

    >>> name_folder("lenet-mnist", "mnist-sample", "inf", "10/255", "gradient", None, 0).as_posix()
    'runs/universal-lenet-mnist-mnist-sample-pinf-xi=10..255'
    """
    parts = ["universal", model, data, f"p{p}", f"xi={xi}"]
    parts += [method] if method != "gradient" else []
    parts += [f"target={target}"] if target is not None else []
    parts += [f"seed={seed}"] if seed else []
    return Path("runs") / "-".join(re.sub(r"[^\w.=+-]+", "..", part).strip(".") for part in parts)[:200]


def _split(text: str | None) -> list[str]:
    return [] if text is None else [part.strip() for part in text.split(",")]


def read_counts(text: str | None) -> list[int]:
    """Numbers of images.

    >>> read_counts("10,100"), read_counts(None)
    ([10, 100], [])
    """
    from deepfool.errors import InputError

    try:
        return [int(part) for part in _split(text)]
    except ValueError:
        raise InputError(f"--counts must be whole numbers such as 10,100,1000, got {text!r}.") from None


def _read_mask(path: Path | None) -> Any:
    if path is None:
        return None
    import numpy as np
    import torch

    from deepfool.errors import DataError

    try:
        return torch.from_numpy(np.load(path, allow_pickle=False))
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path} cannot be read as a .npy array: {error}") from error


def _draw_tables(found: Universal, quiet: bool) -> None:
    """The figures, on stdout."""
    from rich import box
    from rich.table import Table

    from deepfool.metrics.formatting import format_number, format_percent

    if quiet:
        return
    console = make_console(width=100)
    table = Table(box=box.SIMPLE_HEAD, title=str(found))
    for name in ("", "xi", "images used", "fooled, not used", "95 % interval", "fooled, used"):
        table.add_column(name, justify="left" if not name else "right")

    def add(name: str, xi: float, images: int, rate: Any, used: Any) -> None:
        ends = f"{format_percent(rate.low)} .. {format_percent(rate.high)}"
        shown = "-" if used is None else format_percent(used.value)
        table.add_row(name, format_number(xi), str(images), format_percent(rate.value), ends, shown)

    add("v", found.xi, found.about["used"], found.rate, found.used_rate)
    for each in found.curve:
        add("other xi", each.xi, each.images, each.rate, each.used_rate)
    for each in found.counts:
        add("fewer images", each.xi, each.images, each.rate, each.used_rate)
    for other in found.transfer:
        add(f"on {other.model}", found.xi, found.about["used"], other.rate, None)
    console.print(table)
    for reached in found.reached:
        known = reached.xi < float("inf")
        told = format_number(reached.xi) if known else f"above {format_number(found.curve[-1].xi)}"
        console.print(f"smallest xi for {reached.share:.0%}: {told}", highlight=False)
    classes = found.about["classes"]
    shown = [f"{classes[row[0]] if row[0] < len(classes) else row[0]} ({row[1]} to {row[2]})" for row in found.ends()]
    console.print(f"labels without and with v: {', '.join(shown[:5])}", soft_wrap=True, highlight=False)


@contextmanager
def _drawing(console: Console) -> Iterator[Callable[[Progress], None]]:
    """The stage with its batches, and the share of the images used that is fooled."""
    from deepfool.metrics.formatting import format_percent

    with drawing(console) as bar:

        def draw(progress: Progress) -> None:
            known = progress.rate == progress.rate
            note = f"{format_percent(progress.rate)} of the images used are fooled" if known else ""
            bar.show(progress.stage, progress.done, progress.total, note)
            line = f"{progress.stage}: {progress.done}/{progress.total}{', ' if note else ''}{note}"
            bar.log(progress.stage, line, always=progress.done == progress.total)

        yield draw
