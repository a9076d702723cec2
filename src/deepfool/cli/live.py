"""`deepfool live`: a page on this machine to play with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from deepfool.cli.output import echo, make_console
from deepfool.cli.progress import drawing_fetch

if TYPE_CHECKING:
    from deepfool.live.exhibit import Exhibit


def serve_page(
    model: list[str] = typer.Option(
        ..., help="A network of the zoo, or timm:NAME, onnx:FILE, py:module:factory, ...; give two to compare them."
    ),
    data: str | None = typer.Option(None, help="Samples to choose from: mnist-sample, folder:DIR, npz:FILE, ..."),
    run: Path | None = typer.Option(None, metavar="DIR", help="A run folder: its most fragile samples come first."),
    arch: str | None = typer.Option(None, help="The architecture, for file: models."),
    split: str | None = typer.Option(None, help="The split, for data sets that have splits (default: test)."),
    size: int | None = typer.Option(None, help="The side of the images, if model or data do not say."),
    grey: bool = typer.Option(False, "--grey", help="Images of one channel, if the model does not say."),
    host: str = typer.Option("127.0.0.1", help="The address to listen on; others than loopback need the token."),
    port: int | None = typer.Option(None, min=0, max=65535, help="The port (default: the first free from 8765 on)."),
    open_browser: bool = typer.Option(True, "--open/--no-open", help="Open the page in a browser."),
) -> None:
    """Draw a digit or drop a photo, and watch the decision fall: a page on this machine, until Ctrl-C."""
    from deepfool.errors import require

    for package in ("starlette", "uvicorn"):
        require(package, extra="live", purpose="deepfool live")
    from deepfool.live.serving import serve

    exhibit = _open(model, data, run, arch=arch, split=split, size=size, grey=grey)
    serve(exhibit, host=host, port=port, open_browser=open_browser, on_ready=_say_ready)
    echo("stopped", err=True)


def _say_ready(url: str) -> None:
    echo(url)
    echo("Press Ctrl-C to stop.", err=True)


def _open(
    models: list[str], data: str | None, folder: Path | None, *, arch: str | None, split: str | None, size: int | None,
    grey: bool,
) -> Exhibit:  # fmt: skip
    from deepfool.cli.evaluate import read_split
    from deepfool.datasets import load
    from deepfool.errors import InputError
    from deepfool.live.exhibit import find_data_of_run, open_exhibit
    from deepfool.models.sources import resolve
    from deepfool.runs.records import Run

    if len(models) > 2:
        raise InputError(f"one model or two can be shown, got {len(models)}.")
    measured = None if folder is None else Run(folder)
    data = find_data_of_run(measured) if data is None and measured is not None else data
    sources = [resolve(spec, arch=arch if spec.startswith("file:") else None) for spec in models]
    samples = None
    if data is not None:
        known = next((source.input_shape for source in sources if source.input_shape is not None), None)
        side = size or (known[1] if known is not None and len(known) == 3 else None)
        with drawing_fetch(make_console(stderr=True), data) as on_fetch:
            samples = load(data, split=read_split(split, data, "test"), size=side, on_progress=on_fetch)
    shape = None if size is None else (1 if grey else 3, size, size)
    return open_exhibit(sources, samples, data_spec=data, run=measured, shape=shape)
