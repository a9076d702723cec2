"""`deepfool spectrum`: where a model is fragile, by frequency and in random subspaces."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from deepfool.cli.evaluate import read_bounds, read_split
from deepfool.cli.options import ARCH, MODEL
from deepfool.cli.output import echo, make_console
from deepfool.cli.progress import drawing, drawing_fetch


def show_spectrum(
    model: str = MODEL,
    data: str = typer.Option(..., metavar="DATA", help="mnist, cifar10, mnist-sample, folder:DIR, npz:FILE, hf:NAME"),
    limit: int = typer.Option(100, metavar="N", min=1, help="Only the first N samples."),
    bands: int = typer.Option(8, metavar="N", min=0, help="Bands of the DCT, of about the same dimension."),
    dimensions: str | None = typer.Option(
        None, metavar="M,M,...", help="Dimensions of random subspaces (default: 1/128, 1/32, 1/8 and 1/2 of all)."
    ),
    bounds: str | None = typer.Option(None, metavar="LOW,HIGH", help="Keep x + r within bounds (default: none)."),
    seed: int = typer.Option(0, metavar="N", min=0, help="Of the random subspaces."),
    split: str | None = typer.Option(None, metavar="NAME", help="Split of the data, if it has any (default: test)."),
    size: int | None = typer.Option(None, metavar="PIXELS", help="Resize folder: and hf: images to this side length."),
    arch: str | None = ARCH,
    out: Path | None = typer.Option(None, "--out", "-o", metavar="FILE", help="Draw it: .pdf, .svg, .eps or .png."),
    into: Path | None = typer.Option(
        None, metavar="RUN", help="Keep it in this run folder, of the same model, and write its report again."
    ),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="Print only warnings and errors."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Measure distances in bands of frequencies and in random subspaces: one run of DeepFool, in l2, for each."""
    from rich import box
    from rich.table import Table

    from deepfool.datasets import load
    from deepfool.models.sources import resolve
    from deepfool.reporting.spectra import draw_spectrum, keep_spectrum, list_rows, measure_spectrum
    from deepfool.runs.records import Run

    wanted = None if dimensions is None else _read_dimensions(dimensions)
    run = None if into is None else Run(into)
    console, source = make_console(stderr=True, quiet=quiet), resolve(model, arch=arch)
    with drawing_fetch(console, data) as on_fetch:
        samples = load(data, split=read_split(split, data, "test"), size=size, on_progress=on_fetch)
    with drawing(console) as bar:

        def tell(name: str, done: int, total: int) -> None:
            bar.show(name, done, total)
            bar.log("", f"{done}/{total} {name}".rstrip(), always=done == total)

        found = measure_spectrum(
            source, samples, limit=limit, bands=bands, dimensions=wanted, bounds=read_bounds(bounds),
            seed=seed, on_progress=tell,
        )  # fmt: skip
    if as_json:
        echo(json.dumps(found.as_dict(), allow_nan=False))
    else:
        title = f"{found.model} on {found.data}, l2, deepfool"
        table = Table(
            "subspace", "dimensions", "median", "95 % interval", "fooled", "x sqrt(m/d)", "95 % interval",
            box=box.SIMPLE_HEAD, title=title,
        )  # fmt: skip
        for row in list_rows(found):
            table.add_row(*row)
        make_console(width=100).print(table)
    if run is not None:
        from deepfool.reporting.page import write_report

        keep_spectrum(run, source, found)
        echo(f"{write_report([run])}", err=as_json)
    if out is not None:
        echo(f"{draw_spectrum(found, out)}", err=as_json)


def _read_dimensions(text: str) -> list[int]:
    from deepfool.errors import InputError

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 10 for part in parts):
        raise InputError(f"--dimensions must be whole numbers such as 5,20,100, got {text!r:.80}.")
    return [int(part) for part in parts]
