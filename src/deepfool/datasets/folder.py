"""A folder of image files, decoded on demand."""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor

from deepfool.datasets.data import Data, positions, to_unit
from deepfool.datasets.pictures import SUFFIXES, read_picture
from deepfool.errors import DataError

LARGEST_LABEL = 999_999


@dataclass(frozen=True)
class Entry:
    """One image of the folder."""

    file: str
    """Relative to the folder, with forward slashes."""
    label: int | str
    """Its number, or the name of its class."""
    name: str = ""
    """The name of the label, if it has one."""


class Folder(Data):
    """The images of a folder, as RGB of one size. Labels come from the first of these that exists:

    - `labels.json`: a list of objects with `file`, `label` and optionally `name`, or an object {file: label};
    - `labels.csv`: the columns file, label and optionally name, with or without a header;
    - one sub-folder per class, named after it.

    A label is the number of a class, its name, or -1 if unknown. Every image in the folder must have one. Names are
    numbered 0, 1, ... in alphabetical order; `evaluate` matches them to the classes of the model.
    """

    def __init__(self, root: Path, size: int = 224) -> None:
        if not root.is_dir():
            raise DataError(
                f"{root}: there is no such folder.",
                hint="relative paths start at the current folder.",
            )
        entries, classes, self.numbered = read_entries(root)
        super().__init__(root.resolve().name, torch.tensor([entry.label for entry in entries]), classes)
        self._root = root
        self._files = [entry.file for entry in entries]
        self._size = size

    def batch(self, indices: Sequence[int] | Tensor) -> Tensor:
        return to_unit(self._pixels(positions(indices, len(self))))

    def images(self) -> Tensor:
        return self._pixels(range(len(self)))

    def file(self, index: int) -> str | None:
        return self._files[index]

    def _pixels(self, indices: Sequence[int]) -> Tensor:
        pixels = torch.empty(len(indices), 3, self._size, self._size, dtype=torch.uint8)
        for row, index in enumerate(indices):
            path = self._root / self._files[index]
            pixels[row] = read_picture(path, str(path), size=self._size)
        return pixels

    def _compute_fingerprint(self) -> str:
        digest = hashlib.sha256(f"size {self._size}\n".encode())
        for file, label in zip(self._files, self.labels.tolist(), strict=True):
            try:
                content = (self._root / file).read_bytes()
            except OSError as error:
                raise DataError(f"{self._root / file} cannot be read: {error.strerror}.") from error
            digest.update(f"{label} {file}\n{hashlib.sha256(content).hexdigest()}\n".encode())
        return digest.hexdigest()


def read_entries(root: Path) -> tuple[list[Entry], tuple[str, ...], bool]:
    """The images of a folder with their labels, the names of the classes, and whether labels were given as numbers."""
    for name, reader in (("labels.json", _read_json), ("labels.csv", _read_csv)):
        if _is_there(root / name):
            entries = list(reader(root / name))
            _check_listed(root, root / name, entries)
            if any(isinstance(entry.label, str) for entry in entries):
                return *_number(root / name, entries), False
            return entries, _class_names(root / name, entries), True
    return *_read_sub_folders(root), False


def _number(path: Path, entries: list[Entry]) -> tuple[list[Entry], tuple[str, ...]]:
    """Entries whose labels are names, with numbers for them."""
    for entry in entries:
        if isinstance(entry.label, int) and entry.label >= 0:
            raise DataError(f"{path}: some labels are names, but that of {entry.file} is the number {entry.label}.")
    names = sorted({entry.label for entry in entries if isinstance(entry.label, str)})
    numbers = {name: number for number, name in enumerate(names)}
    return [replace(entry, label=numbers.get(str(entry.label), -1)) for entry in entries], tuple(names)


def _read_json(path: Path) -> Iterator[Entry]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except (ValueError, OSError) as error:
        raise DataError(f"{path} is not valid JSON: {error}") from error
    if isinstance(content, dict):
        content = [{"file": file, "label": label} for file, label in content.items()]
    if not isinstance(content, list):
        raise DataError(f"{path}: expected a list of {{file, label}} or an object {{file: label}}.")
    for number, row in enumerate(content):
        if not isinstance(row, dict) or not isinstance(row.get("file"), str):
            raise DataError(f"{path}: entry {number} must be an object with a file name under `file`, got {row!r}.")
        name = row.get("name")
        label = row.get("label", row.get("wnid", name))
        yield Entry(row["file"], _as_label(path, row["file"], label), "" if name is None else str(name))


def _read_csv(path: Path) -> Iterator[Entry]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            rows = [row for row in csv.reader(stream) if any(cell.strip() for cell in row)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as CSV: {error}") from error
    columns = ["file", "label", "name"]
    if rows and "file" in (heading := [cell.strip().lower() for cell in rows[0]]):
        if "label" not in heading:
            raise DataError(f"{path}: expected a column named label, got {', '.join(heading)}.")
        columns, rows = heading, rows[1:]
    for row in rows:
        cells = dict(zip(columns, (cell.strip() for cell in row), strict=False))
        label = cells.get("label", "")
        whole = int(label) if label.removeprefix("-").isdecimal() else label or None
        yield Entry(cells.get("file", ""), _as_label(path, cells.get("file", ""), whole), cells.get("name", ""))


def _as_label(path: Path, file: str, label: Any) -> int | str:
    if label is None:
        raise DataError(f"{path}: {file} has no label.", hint="use -1 if the label is unknown.")
    if isinstance(label, str) and label.strip() and not _looks_like_number(label):
        return label.strip()
    if isinstance(label, bool) or not isinstance(label, int):
        raise DataError(f"{path}: the label of {file} must be an integer, got {label!r}.")
    if not -1 <= label <= LARGEST_LABEL:
        raise DataError(f"{path}: the label of {file} must lie in -1..{LARGEST_LABEL}, got {label}.")
    return label


def _looks_like_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _check_listed(root: Path, path: Path, entries: list[Entry]) -> None:
    """Check that every listed file exists inside the folder, once, and that every image is listed."""
    if not entries:
        raise DataError(f"{path} lists no images.")
    listed: set[PurePosixPath] = set()
    for entry in entries:
        file = PurePosixPath(entry.file)
        # Symbolic links are followed, since many data sets use them; only the paths in the list are not trusted.
        if not file.parts or file.is_absolute() or ".." in file.parts or "\\" in entry.file or ":" in file.parts[0]:
            raise DataError(f"{path}: {entry.file!r} must be a path inside {root}, with forward slashes.")
        if not _is_there(root / file):
            raise DataError(f"{path}: {entry.file} is listed, but {root / file} does not exist.")
        if file in listed:
            raise DataError(f"{path}: {entry.file} is listed twice.")
        listed.add(file)
    for image in sorted(_images(root, "**/*")):
        if PurePosixPath(image.relative_to(root).as_posix()) not in listed:
            raise DataError(f"{image} has no label in {path}.", hint="list it, with -1 if its label is unknown.")


def _class_names(path: Path, entries: list[Entry]) -> tuple[str, ...]:
    names: dict[int, str] = {}
    for entry in entries:
        if (
            entry.name
            and isinstance(entry.label, int)
            and entry.label >= 0
            and names.setdefault(entry.label, entry.name) != entry.name
        ):
            raise DataError(
                f"{path}: label {entry.label} is named {names[entry.label]!r}, but {entry.name!r} at {entry.file}."
            )
    return tuple(names.get(label, "") for label in range(max(names) + 1)) if names else ()


def _read_sub_folders(root: Path) -> tuple[list[Entry], tuple[str, ...]]:
    folders = _folders(root)
    if loose := sorted(_images(root, "*")):
        raise DataError(
            f"{loose[0]} has no label.", hint="put it into a sub-folder named after its class, or add a labels.json."
        )
    entries = []
    for label, folder in enumerate(folders):
        if nested := _folders(folder):
            raise DataError(
                f"{nested[0]} is a folder inside the class folder {folder.name}.",
                hint=f"if {folder.name} is a split and not a class, give folder:{folder}.",
            )
        entries += [
            Entry(f"{folder.name}/{image.name}", label, folder.name)
            for image in sorted(_images(folder, "*"), key=lambda image: image.name)
        ]
    if not entries:
        raise DataError(
            f"{root} holds no images.",
            hint="expected one sub-folder per class, or image files with a labels.json or labels.csv.",
        )
    return entries, tuple(folder.name for folder in folders)


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if not path.name.startswith(".") and path.is_dir())


def _images(folder: Path, pattern: str) -> Iterator[Path]:
    for path in folder.glob(pattern):
        if any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue
        # Checked before the suffix: a broken link may stand for a whole class.
        if _is_there(path) and path.suffix.lower() in SUFFIXES:
            yield path


def _is_there(path: Path) -> bool:
    """Whether this is a file. Broken links and special files raise: skipping them would go unnoticed."""
    if path.is_file():
        return True
    if path.is_dir() or not os.path.lexists(path):
        return False
    what = "a broken link" if path.is_symlink() and not path.exists() else "neither a file nor a folder"
    raise DataError(f"{path} is {what}.", hint="repair or remove it.")
