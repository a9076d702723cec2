"""`load` turns whatever the caller has into `Data`."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from deepfool.datasets import arrays, bundled, fetching, wrapped
from deepfool.datasets.catalog import BUILTINS
from deepfool.datasets.data import Data
from deepfool.errors import InputError
from deepfool.values import as_whole

NAMES: tuple[str, ...] = (*BUILTINS, *bundled.SAMPLES)
"""The data sets with a name."""

LARGEST_SIDE = 65_536
"""Of images, in pixels."""

KINDS = ("folder:DIR", "npz:FILE", "hf:NAME")


def load(
    spec: Any, *, split: str = "test", size: int | None = None, on_progress: fetching.OnProgress = lambda _: None
) -> Data:
    """Make `Data` from a name, a path, a PyTorch dataset or loader, or a pair (samples, labels).

    - `mnist`, `cifar10`: the full data sets, fetched into the cache on first use (`on_progress` shows the progress);
    - `mnist-sample`, `cifar10-sample`: parts of their test splits, included in the package;
    - `folder:DIR`: image files, labelled by sub-folder, `labels.json` or `labels.csv`;
    - `npz:FILE`: arrays `x` and `y`;
    - `hf:NAME`, `hf:NAME:CONFIG`, `hf:DIR`: a data set of Hugging Face's `datasets`.

    `split` chooses a split of a data set that has several (see `has_splits`). For all others it must be "test".
    `size` is the side to which images of `folder:` (default: 224) and `hf:` are resized and cropped; arrays keep their
    shape.

    >>> load("mnist-sample")
    Arrays(mnist-sample: 1000 samples, 10 classes)
    >>> load("mnits")
    Traceback (most recent call last):
    ...
    deepfool.errors.InputError: there is no data set called 'mnits'. Hint: did you mean mnist?
    """
    if size is not None and not 1 <= (as_whole(size) or 0) <= LARGEST_SIDE:
        raise InputError(f"size must be a whole number of pixels, 1 to {LARGEST_SIDE}, got {size!r:.80}.")
    size = as_whole(size)
    if not isinstance(split, str):
        raise InputError(f"split must be a name such as test, got {split!r:.80}.")
    if split != "test" and not has_splits(spec):
        given = repr(spec) if isinstance(spec, str) else f"a {type(spec).__name__}"
        raise InputError(f"{given} has no splits to choose from, got {split!r}.", hint="leave the split out.")
    if isinstance(spec, str):
        return _load_named(spec, split, size, on_progress)
    if isinstance(spec, Data):
        return spec
    if isinstance(spec, DataLoader):
        return wrapped.from_loader(spec)
    if isinstance(spec, Dataset):
        return wrapped.from_dataset(spec)
    if isinstance(spec, tuple | list) and len(spec) == 2 and isinstance(spec[0], Tensor | np.ndarray):
        return arrays.from_pair(spec[0], spec[1])
    raise InputError(
        f"data must be a name, a torch Dataset or DataLoader, or a pair (samples, labels), got {type(spec).__name__}.",
        hint="for any other kind of dataset, give (x, labels).",
    )


def has_splits(spec: Any) -> bool:
    """Whether a data set has splits to choose from.

    >>> has_splits("mnist"), has_splits("npz:x.npz"), has_splits("folder:images")
    (True, False, False)
    """
    if not isinstance(spec, str):
        return False
    kind, colon, place = spec.partition(":")
    if kind == "hf" and colon:
        return not (Path(place).expanduser() / "state.json").is_file()  # a single table, written by save_to_disk
    return not colon


def _load_named(spec: str, split: str, size: int | None, on_progress: fetching.OnProgress) -> Data:
    kind, colon, place = spec.partition(":")
    if spec in bundled.SAMPLES:
        if split != "test":
            raise InputError(
                f"{spec} has only the test split, got {split!r}.",
                hint=f"{bundled.SAMPLES[spec].origin} has all of them.",
            )
        return bundled.read_sample(spec)
    if spec in BUILTINS:
        if split not in BUILTINS[spec].splits:
            raise InputError(f"{spec} has the splits {' and '.join(BUILTINS[spec].splits)}, got {split!r}.")
        if not fetching.split_file(spec, split).exists():
            fetching.fetch(spec, on_progress=on_progress)
        return fetching.read(spec, split)
    if colon and place:
        if kind == "folder":
            from deepfool.datasets.folder import Folder

            return Folder(Path(place).expanduser(), size or 224)
        if kind == "npz":
            return arrays.from_npz(Path(place).expanduser())
        if kind == "hf":
            from deepfool.datasets.hub import from_hub

            return from_hub(place, split=split, size=size)
    raise InputError(f"there is no data set called {spec!r}.", hint=_suggest(spec))


def _suggest(spec: str) -> str:
    if Path(spec).is_dir():
        return f"for a folder of images give folder:{spec}."
    if spec.endswith(".npz"):
        return f"for a file give npz:{spec}."
    if close := difflib.get_close_matches(spec, NAMES, n=1):
        return f"did you mean {close[0]}?"
    return f"choose from {', '.join((*NAMES, *KINDS))}."
