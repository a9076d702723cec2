"""Data sets of Hugging Face's `datasets` library: by name from the Hub, or from a folder written by save_to_disk."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepfool.datasets.data import Data, positions, to_unit
from deepfool.datasets.pictures import open_picture, read_picture
from deepfool.datasets.wrapped import stack
from deepfool.errors import DataError, require


class Hub(Data):
    """A table with a column of images and a column of labels, found by their types; decoded on demand.

    If the first image is grey, all are read as grey (1 channel), otherwise as RGB. Without `size` they are not
    resized, and must all have the same size.
    """

    def __init__(self, table: Any, name: str, size: int | None) -> None:
        library = _import_library()
        picture, label = _find_columns(library, table.features, name)
        # Not decoded by the library: the bytes go through the same code as every other image.
        table = table.select_columns([column for column in (picture, label) if column])
        self._pictures = table.cast_column(picture, library.Image(decode=False))
        self._column = picture
        self._size = size
        if not len(table):
            raise DataError(f"{name} is empty.")
        super().__init__(name, _read_column(table, label, name), _class_names(library, table.features, label))
        self._grey = self._is_grey()

    def batch(self, indices: Sequence[int] | Tensor) -> Tensor:
        return to_unit(self._pixels(positions(indices, len(self))))

    def images(self) -> Tensor:
        return self._pixels(list(range(len(self))))

    def file(self, index: int) -> str | None:
        path = self._cell(index).get("path")
        return Path(path).name if path else None

    def _pixels(self, indices: list[int]) -> Tensor:
        if not indices:
            return self._pixels([0])[:0]
        pixels = [
            read_picture(io.BytesIO(self._bytes(i)), self._where(i), size=self._size, grey=self._grey) for i in indices
        ]
        return stack(pixels, indices, self.name)

    def _compute_fingerprint(self) -> str:
        digest = hashlib.sha256(f"size {self._size}\n".encode())
        for index, label in enumerate(self.labels.tolist()):
            digest.update(f"{label} {hashlib.sha256(self._bytes(index)).hexdigest()}\n".encode())
        return digest.hexdigest()

    def _is_grey(self) -> bool:
        with open_picture(io.BytesIO(self._bytes(0)), self._where(0)) as first:
            return first.mode in ("1", "L", "I", "I;16")

    def _cell(self, index: int) -> Mapping[str, Any]:
        cell: Mapping[str, Any] | None = self._pictures[index][self._column]
        return cell or {}

    def _bytes(self, index: int) -> bytes:
        cell = self._cell(index)
        if cell.get("bytes"):
            return bytes(cell["bytes"])
        if cell.get("path"):
            try:
                return Path(cell["path"]).read_bytes()
            except OSError as error:
                raise DataError(f"{cell['path']} (row {index} of {self.name}) cannot be read: {error}") from error
        raise DataError(f"row {index} of {self.name} holds no image.")

    def _where(self, index: int) -> str:
        file = self.file(index)
        return f"row {index} of {self.name}" + (f" ({file})" if file else "")


def from_hub(place: str, *, split: str, size: int | None) -> Hub:
    """`NAME`, `NAME:CONFIG`, or a folder that save_to_disk wrote."""
    library = _import_library()
    folder = Path(place).expanduser()
    if folder.is_dir() and any((folder / mark).is_file() for mark in ("dataset_dict.json", "state.json")):
        table = _open_folder(library, folder, split)
        return Hub(table, folder.resolve().name, size)
    if folder.is_dir():
        raise DataError(
            f"{folder} was not written by save_to_disk.", hint=f"for a folder of image files give folder:{place}."
        )
    name, _, config = place.partition(":")
    try:
        table = library.load_dataset(name, config or None, split=split)
    # The library raises its own errors, those of its HTTP clients, and OSError; here they all mean the same.
    except Exception as error:
        raise DataError(
            f"hf:{place} ({split}) could not be loaded: {type(error).__name__}: {error}",
            hint="check the name, the split and the network. Offline, a folder written by save_to_disk works, and "
            "HF_HUB_OFFLINE=1 avoids the library's retries.",
        ) from error
    return Hub(table, name.rsplit("/", 1)[-1], size)


def _open_folder(library: Any, folder: Path, split: str) -> Any:
    try:
        found = library.load_from_disk(str(folder))
    except Exception as error:
        raise DataError(f"{folder} cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(found, library.DatasetDict):
        return found  # a single table has no splits
    if split not in found:
        raise DataError(f"{folder} has no split {split!r}.", hint=f"it has {', '.join(found)}.")
    return found[split]


def _import_library() -> Any:
    return require("datasets", extra="hf", purpose="hf: data")


def _find_columns(library: Any, features: Mapping[str, Any], name: str) -> tuple[str, str | None]:
    pictures = [column for column, kind in features.items() if isinstance(kind, library.Image)]
    if len(pictures) != 1:
        found = ", ".join(f"{column}: {type(kind).__name__}" for column, kind in features.items())
        raise DataError(f"{name}: expected one column of images, got {len(pictures)} ({found}).")
    labels = [column for column, kind in features.items() if isinstance(kind, library.ClassLabel)]
    if not labels:
        # Some sets store plain integers; only a column named label or labels is accepted.
        labels = [c for c in ("label", "labels") if c in features and _is_whole(features[c])]
    if len(labels) > 1:
        labels = [column for column in labels if column in ("label", "labels")] or labels
    if len(labels) > 1:
        raise DataError(
            f"{name} has several columns of labels: {', '.join(labels)}.",
            hint="rename the one to use to `label` and write the set with save_to_disk.",
        )
    return pictures[0], labels[0] if labels else None


def _is_whole(feature: Any) -> bool:
    return str(getattr(feature, "dtype", "")).startswith(("int", "uint"))


def _read_column(table: Any, label: str | None, name: str) -> Tensor:
    if label is None:
        return torch.full((len(table),), -1)
    values = table.select_columns([label]).with_format(None)[:][label]
    labels = torch.tensor([-1 if value is None else int(value) for value in values])
    if int(labels.min()) < -1:
        raise DataError(f"{name}: labels must be 0 or more (-1 where unknown), got {int(labels.min())}.")
    return labels


def _class_names(library: Any, features: Mapping[str, Any], label: str | None) -> tuple[str, ...]:
    kind = features[label] if label else None
    return tuple(kind.names) if isinstance(kind, library.ClassLabel) and kind.names else ()
