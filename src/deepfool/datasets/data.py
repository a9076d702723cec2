"""The base class of every data set: named, labelled samples, read by index."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from deepfool.errors import InputError


class Data(ABC):
    """Labelled samples, read batch by batch. `deepfool.datasets.load` makes one from names, files, arrays or datasets.

    >>> from deepfool.datasets import load
    >>> data = load((torch.rand(5, 1, 8, 8), torch.arange(5)))
    >>> data.batch([4, 0]).shape, data.labels[[4, 0]].tolist()
    (torch.Size([2, 1, 8, 8]), [4, 0])
    """

    name: str
    """A short name for reports; built-in sets are loaded by this name."""
    classes: tuple[str, ...]
    """The name of each label, "" where there is none; empty if no names are known."""
    numbered: bool = True
    """Whether the labels are numbers that somebody chose; otherwise they only number the names of the classes."""

    def __init__(self, name: str, labels: Tensor | None, classes: tuple[str, ...] = ()) -> None:
        self.name = name
        self.classes = classes
        self._labels = labels
        self._fingerprint: str | None = None

    @property
    def labels(self) -> Tensor:
        """The true label of each sample (int64), -1 where it is unknown."""
        if self._labels is None:
            self._labels = self._read_labels()
        return self._labels

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def batch(self, indices: Sequence[int] | Tensor) -> Tensor:
        """Some samples as one float32 tensor: bytes are scaled to [0, 1], floats are not changed."""

    def images(self) -> Tensor:
        """All samples as one tensor, in uint8 if they are stored that way (used for training)."""
        return self.batch(range(len(self)))

    def fingerprint(self) -> str:
        """The SHA-256 of the content, labels included; it does not depend on where the data came from."""
        if self._fingerprint is None:
            self._fingerprint = self._compute_fingerprint()
        return self._fingerprint

    def file(self, index: int) -> str | None:
        """The file of a sample, relative to its folder; None if it has none."""
        return None

    def _read_labels(self) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} was made without labels and cannot read them")

    @abstractmethod
    def _compute_fingerprint(self) -> str: ...

    def __repr__(self) -> str:
        classes = f", {len(self.classes)} classes" if self.classes else ""
        return f"{type(self).__name__}({self.name}: {len(self)} samples{classes})"


def positions(indices: Sequence[int] | Tensor, count: int) -> list[int]:
    """Indices as a checked list; a boolean mask works too.

    >>> positions(torch.tensor([True, False, True]), 3)
    [0, 2]
    >>> positions([3], 3)
    Traceback (most recent call last):
    ...
    deepfool.errors.InputError: indices must lie in 0..2, got 3.
    """
    if isinstance(indices, Tensor):
        if indices.dtype == torch.bool:
            if indices.shape != (count,):
                raise InputError(f"a mask must have shape ({count},), got {tuple(indices.shape)}.")
            indices = indices.nonzero()[:, 0]
        indices = indices.tolist()
    chosen = [int(index) for index in indices]
    for index in chosen:
        if not 0 <= index < count:
            raise InputError(f"indices must lie in 0..{count - 1}, got {index}.")
    return chosen


def to_unit(stored: Tensor) -> Tensor:
    """Bytes as float32 in [0, 1]; floats as float32, unscaled.

    >>> to_unit(torch.tensor([0, 255], dtype=torch.uint8)), to_unit(torch.tensor([7.5]).double())
    (tensor([0., 1.]), tensor([7.5000]))
    """
    return stored.float() / 255 if stored.dtype == torch.uint8 else stored.float()


def hash_tensors(*tensors: Tensor) -> str:
    """The SHA-256 of some tensors: type, shape and bytes of each.

    >>> hash_tensors(torch.zeros(2, 2)) == hash_tensors(torch.zeros(4))
    False
    """
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
