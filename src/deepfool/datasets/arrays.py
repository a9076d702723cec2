"""Data in memory: tensors, NumPy arrays, .npz files."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepfool.attacks.shared.arguments import check_dense
from deepfool.datasets.data import Data, hash_tensors, positions, to_unit
from deepfool.errors import DataError, InputError


class Arrays(Data):
    """Samples in one tensor, along its first dimension.

    >>> data = Arrays("dots", torch.tensor([[0, 255]], dtype=torch.uint8), torch.tensor([1]))
    >>> data.batch([0])
    tensor([[0., 1.]])
    """

    def __init__(self, name: str, x: Tensor, labels: Tensor, classes: tuple[str, ...] = ()) -> None:
        super().__init__(name, labels, classes)
        self._x = x

    def batch(self, indices: Sequence[int] | Tensor) -> Tensor:
        return to_unit(self._x[positions(indices, len(self))])

    def images(self) -> Tensor:
        return self._x

    def _compute_fingerprint(self) -> str:
        return hash_tensors(self._x, self.labels)


def from_pair(x: Any, labels: Any, *, name: str = "arrays", classes: tuple[str, ...] = ()) -> Arrays:
    """Make data from PyTorch or NumPy samples and labels (None if unknown).

    Tensors keep their layout. NumPy images of type uint8 may be (n, h, w), (n, h, w, c) or (n, c, h, w).

    >>> from_pair(np.zeros((4, 8, 8, 3), np.uint8), [0, 1, 0, 1]).images().shape
    torch.Size([4, 3, 8, 8])
    """
    stored = _check_tensor(x, name) if isinstance(x, Tensor) else channels_first(np.asarray(x), name)
    if stored.ndim < 2 or not len(stored):
        raise DataError(
            f"{name}: expected at least one sample, with the samples along the first of two or more dimensions, "
            f"got shape {tuple(stored.shape)}."
        )
    if stored.dtype != torch.uint8 and not stored.is_floating_point():
        raise DataError(
            f"{name}: expected uint8 (bytes, to be scaled to [0, 1]) or floats, got {stored.dtype}.",
            hint="convert with .astype('uint8') or .astype('float32').",
        )
    if stored.is_floating_point() and not bool(torch.isfinite(stored).all()):
        worst = int((~torch.isfinite(stored).flatten(1).all(1)).nonzero()[0])
        raise DataError(f"{name}: sample {worst} holds a value that is not finite.")
    return Arrays(name, stored, as_labels(labels, len(stored), name), classes)


def from_npz(path: Path) -> Arrays:
    """Read `x` or `images`, `y` or `labels`, and optionally `classes` from a .npz file; never a pickle.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as here:
    ...     np.savez(Path(here) / "dots.npz", x=np.zeros((3, 2), np.float32), y=[0, 1, 1])
    ...     from_npz(Path(here) / "dots.npz")
    Arrays(dots: 3 samples)
    """
    if not path.is_file():
        raise DataError(
            f"{path}: there is no such file.",
            hint="relative paths start at the current folder.",
        )
    try:
        # Opened here because NumPy would leave a broken archive open.
        with path.open("rb") as stream:
            file = np.load(stream, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise zipfile.BadZipFile("it holds a single array; write it with np.savez")
            found = {key: file[key] for key in file.files if key in _KEYS}
            others = sorted(set(file.files) - set(found))
    except Exception as error:  # NumPy and zipfile raise many kinds of errors on broken files
        raise DataError(f"{path} cannot be read as an .npz archive of plain arrays: {error}") from error
    x = _one_of(found, ("x", "images"), path)
    labels = _one_of(found, ("y", "labels"), path)
    if x is None or (labels is None and others):
        missing = "x or images" if x is None else "y or labels"
        raise DataError(f"{path}: expected an array named {missing}, got {', '.join([*found, *others]) or 'none'}.")
    classes = tuple(str(name) for name in found["classes"].ravel()) if "classes" in found else ()
    data = from_pair(x, labels, name=str(path), classes=classes)  # messages name the whole path
    data.name = path.stem
    return data


_KEYS = ("x", "images", "y", "labels", "classes")


def _one_of(found: dict[str, np.ndarray[Any, Any]], keys: tuple[str, str], path: Path) -> np.ndarray[Any, Any] | None:
    if all(key in found for key in keys):
        raise DataError(f"{path} holds both {keys[0]} and {keys[1]}: which one is meant?", hint="keep one of them.")
    return next((found[key] for key in keys if key in found), None)


def channels_first(array: np.ndarray[Any, Any], name: str) -> Tensor:
    """A NumPy array as a tensor. uint8 images become (n, c, h, w); anything else keeps its shape.

    >>> channels_first(np.zeros((2, 28, 28), np.uint8), "digits").shape
    torch.Size([2, 1, 28, 28])
    """
    if array.dtype == object or array.dtype.kind not in "biuf":
        raise DataError(f"{name}: expected an array of numbers, got {array.dtype}.")
    if array.dtype == np.longdouble and array.dtype != np.float64:
        raise DataError(
            f"{name}: numbers of more than 64 bits cannot be used, got {array.dtype}.",
            hint="convert with .astype('float64').",
        )
    if array.dtype == np.uint8 and array.ndim == 3:
        array = array[:, None]
    elif array.dtype == np.uint8 and array.ndim == 4:
        first, last = array.shape[1], array.shape[3]
        # There are fewer channels than rows or columns, so the smaller of the two is the number of channels.
        if first == last and array.shape != (len(array), 1, 1, 1):
            raise DataError(
                f"{name}: cannot tell which axis of {array.shape} holds the channels.",
                hint="give a torch tensor of shape (n, c, h, w).",
            )
        array = array.transpose(0, 3, 1, 2) if last < first else array
    native = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    # torch shares the memory, and would warn about a read-only array.
    return torch.from_numpy(native if native.flags.writeable else native.copy())


def _check_tensor(x: Tensor, name: str) -> Tensor:
    """A dense tensor on the CPU."""
    try:
        return check_dense(x, name).detach().cpu()
    except InputError as error:
        raise DataError(str(error)) from error


def as_labels(labels: Any, count: int, name: str) -> Tensor:
    """Labels as int64, one per sample; None means all are unknown.

    >>> as_labels(None, 2, "x"), as_labels(np.array([1, 0], np.uint8), 2, "x")
    (tensor([-1, -1]), tensor([1, 0]))
    """
    if labels is None:
        return torch.full((count,), -1)
    try:
        given = _check_tensor(labels, name).numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{name}: labels must be integers, one per sample, got {type(labels).__name__}: {error}"
        ) from error
    if given.shape != (count,):
        hint = "for one-hot rows give labels.argmax(1)." if given.ndim == 2 and len(given) == count else None
        raise DataError(f"{name}: expected {count} labels, one per sample, got shape {given.shape}.", hint=hint)
    if given.dtype.kind not in "biu":
        raise DataError(f"{name}: labels must be integers, got {given.dtype}.")
    if given.size and int(given.max()) > np.iinfo(np.int64).max:  # would overflow into another label
        raise DataError(f"{name}: labels must be class numbers, got {int(given.max())}.")
    whole = torch.from_numpy(given.astype(np.int64))
    if int(whole.min()) < -1:
        raise DataError(f"{name}: labels must be 0 or more (-1 where unknown), got {int(whole.min())}.")
    return whole
