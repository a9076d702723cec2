"""An inventory: the built-in data sets in the cache, and the samples in the package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from deepfool.datasets import bundled, fetching
from deepfool.datasets.catalog import BUILTINS


@dataclass(frozen=True)
class Entry:
    """One split of one data set."""

    name: str
    split: str
    samples: int
    shape: tuple[int, int, int]
    state: str
    """"cached", "shipped", or "not fetched"."""
    bytes: int
    """On disk; 0 if it is not there."""
    file: str


def take_stock(home: Path | None = None) -> list[Entry]:
    """List every data set with a name, present or not.

    >>> [(entry.name, entry.samples) for entry in take_stock() if entry.state == "shipped"]
    [('mnist-sample', 1000), ('cifar10-sample', 500)]
    """
    entries = []
    for builtin in BUILTINS.values():
        for split, known in builtin.splits.items():
            path = fetching.split_file(builtin.name, split, home)
            size = path.stat().st_size if path.exists() else 0
            state = "cached" if size else "not fetched"
            entries.append(Entry(builtin.name, split, known.count, builtin.shape, state, size, str(path)))
    for sample in bundled.SAMPLES.values():
        path = bundled.FOLDER / f"{sample.name}.png"
        size, shape = path.stat().st_size, BUILTINS[sample.origin].shape
        entries.append(Entry(sample.name, "test", len(sample.rows), shape, "shipped", size, str(path)))
    return entries
