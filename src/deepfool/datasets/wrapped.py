"""A `torch.utils.data.Dataset` or `DataLoader` as `Data`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler, TensorDataset
from torch.utils.data import default_collate as collate_by_default

from deepfool.datasets.arrays import Arrays, channels_first, from_pair
from deepfool.datasets.data import Data, hash_tensors, positions, to_unit
from deepfool.errors import DataError, InputError


class Wrapped(Data):
    """A map-style dataset whose items are (sample, label, ...), read on demand.

    The first use of the labels reads the whole dataset once.

    >>> from torch.utils.data import Subset
    >>> whole = TensorDataset(torch.rand(9, 3), torch.arange(9))
    >>> Wrapped(Subset(whole, [8, 2])).labels
    tensor([8, 2])
    """

    def __init__(self, dataset: Dataset[Any], name: str = "") -> None:
        classes = getattr(dataset, "classes", ())
        named = isinstance(classes, list | tuple) and all(isinstance(each, str) for each in classes)
        super().__init__(name or type(dataset).__name__, None, tuple(classes) if named else ())
        self._dataset = dataset
        count = getattr(dataset, "__len__", None)
        if count is None or not hasattr(dataset, "__getitem__"):
            raise InputError(f"{self.name} must have __len__ and __getitem__, or be an IterableDataset.")
        self._count = int(count())
        if not self._count:
            raise DataError(f"{self.name} is empty.")
        if not torch.equal(self._item(0)[0], self._item(0)[0]):
            raise InputError(
                f"{self.name} returns a different sample each time item 0 is read.",
                hint="remove the random transforms: a measurement needs the same inputs each time.",
            )

    def __len__(self) -> int:
        return self._count

    def batch(self, indices: Sequence[int] | Tensor) -> Tensor:
        return to_unit(self._stack(positions(indices, self._count)))

    def images(self) -> Tensor:
        return self._stack(list(range(self._count)))

    def _stack(self, indices: list[int]) -> Tensor:
        if not indices:
            return self._item(0)[0][None][:0]
        return stack([self._item(index)[0] for index in indices], indices, self.name)

    def _item(self, index: int) -> tuple[Tensor, int]:
        return split_item(self._dataset[index], f"{self.name}[{index}]")

    def _read_labels(self) -> Tensor:
        return torch.tensor([self._item(index)[1] for index in range(self._count)])

    def _compute_fingerprint(self) -> str:
        digest, labels = hashlib.sha256(), []
        for index in range(self._count):
            sample, label = self._item(index)
            digest.update(f"{label} {hash_tensors(sample)}\n".encode())
            labels.append(label)
        self._labels = torch.tensor(labels)  # kept, to avoid reading the dataset again
        return digest.hexdigest()


def from_dataset(dataset: Dataset[Any]) -> Data:
    """Wrap a map-style dataset; read an iterable one to the end.

    >>> from_dataset(TensorDataset(torch.zeros(2, 3), torch.tensor([0, 1])))
    Arrays(TensorDataset: 2 samples)
    """
    if type(dataset) is TensorDataset and len(dataset.tensors) == 2:
        return from_pair(*dataset.tensors, name="TensorDataset")
    if isinstance(dataset, IterableDataset):
        return _gather(((split_item(item, _nth(dataset, n))) for n, item in enumerate(dataset)), dataset)
    return Wrapped(dataset)


def from_loader(loader: DataLoader[Any]) -> Data:
    """The data of a loader, in the order of its dataset; a loader that shuffles or samples is refused.

    Runs identify rows by their position in the data, so the order must be the same each time.

    >>> data = TensorDataset(torch.zeros(4, 3), torch.arange(4))
    >>> from_loader(DataLoader(data, batch_size=3)).labels
    tensor([0, 1, 2, 3])
    >>> from_loader(DataLoader(data, shuffle=True))
    Traceback (most recent call last):
    ...
    deepfool.errors.InputError: a DataLoader with a RandomSampler changes the order of the samples. Hint: ...
    """
    dataset = loader.dataset
    if not isinstance(dataset, IterableDataset):
        if (odd := _odd_sampler(loader)) is not None:
            raise InputError(
                f"a DataLoader with a {odd} changes the order of the samples.",
                hint="pass its dataset (or a torch.utils.data.Subset of it), or a loader with shuffle=False.",
            )
        if loader.collate_fn is collate_by_default:
            return from_dataset(dataset)
    if loader.batch_size is None:
        return _gather((split_item(item, _nth(dataset, n)) for n, item in enumerate(loader)), dataset)
    rows = []
    for number, batch in enumerate(loader):
        where = f"batch {number} of the DataLoader"
        if not isinstance(batch, tuple | list) or len(batch) < 2 or len(batch[0]) != len(batch[1]):
            raise DataError(f"{where}: expected a pair (samples, labels) of equal length, got {_describe(batch)}.")
        rows += [split_item(pair, where) for pair in zip(batch[0], batch[1], strict=True)]
    return _gather(rows, dataset)


def split_item(item: Any, where: str) -> tuple[Tensor, int]:
    """An item of a dataset as (sample, label).

    >>> split_item((np.zeros((4, 4, 3), np.uint8), 1), "item")[0].shape
    torch.Size([3, 4, 4])
    """
    if not isinstance(item, tuple | list) or len(item) < 2:
        raise DataError(
            f"{where}: expected a pair (sample, label), got {_describe(item)}.",
            hint="wrap the dataset so that its items are pairs.",
        )
    return _as_sample(item[0], where), _as_label(item[1], where)


def stack(samples: list[Tensor], indices: Sequence[int], name: str) -> Tensor:
    """Stack samples of one shape; the error names the first that differs.

    >>> stack([torch.zeros(2), torch.zeros(3)], [5, 6], "data")
    Traceback (most recent call last):
    ...
    deepfool.errors.DataError: data[6] has shape (3,), others have (2,). Hint: resize the samples to one size.
    """
    shape, dtype = samples[0].shape, samples[0].dtype
    for index, sample in zip(indices, samples, strict=True):
        if sample.shape != shape:
            raise DataError(
                f"{name}[{index}] has shape {tuple(sample.shape)}, others have {tuple(shape)}.",
                hint="resize the samples to one size.",
            )
        if sample.dtype != dtype:
            raise DataError(f"{name}[{index}] has type {sample.dtype}, others have {dtype}.")
    return torch.stack(samples)


def _gather(items: Iterable[tuple[Tensor, int]], dataset: Dataset[Any]) -> Arrays:
    name = type(dataset).__name__
    rows = list(items)
    if not rows:
        raise DataError(f"{name} is empty.")
    samples = stack([sample for sample, _ in rows], range(len(rows)), name)
    return from_pair(samples, [label for _, label in rows], name=name)


def _odd_sampler(loader: DataLoader[Any]) -> str | None:
    """The name of the sampler that changes the order, or None."""
    if type(loader.sampler) is not SequentialSampler:
        return type(loader.sampler).__name__
    if loader.batch_sampler is not None and type(loader.batch_sampler) is not BatchSampler:
        return type(loader.batch_sampler).__name__
    return None


def _as_sample(value: Any, where: str) -> Tensor:
    if isinstance(value, Tensor):
        sample = value.detach().cpu()
    elif isinstance(value, np.ndarray):
        # NumPy images are (h, w) or (h, w, c); this moves the channels first, as for arrays.
        sample = channels_first(value[None], where)[0]
    elif hasattr(value, "mode") and hasattr(value, "convert"):
        from deepfool.datasets.pictures import to_pixels, upright

        sample = to_pixels(upright(value, grey=value.mode in ("1", "L", "I;16")))
    else:
        raise DataError(f"{where}: expected a tensor, an array or an image as the sample, got {_describe(value)}.")
    if sample.dtype != torch.uint8 and not sample.is_floating_point():
        raise DataError(f"{where}: expected uint8 or floats, got {sample.dtype}.")
    if sample.is_floating_point() and not bool(torch.isfinite(sample).all()):
        raise DataError(f"{where} holds a value that is not finite.")
    return sample


def _as_label(value: Any, where: str) -> int:
    if isinstance(value, Tensor | np.ndarray) and value.ndim == 0:
        value = value.item()
    if isinstance(value, np.integer):
        value = int(value)
    if not isinstance(value, int) or value < -1:
        raise DataError(f"{where}: the label must be an integer (-1 where unknown), got {_describe(value)}.")
    return int(value)


def _nth(dataset: Dataset[Any], number: int) -> str:
    return f"{type(dataset).__name__}, item {number}"


def _describe(value: Any) -> str:
    kinds = ", ".join(type(each).__name__ for each in value) if isinstance(value, tuple | list) else ""
    return f"a {type(value).__name__} ({kinds})" if kinds else f"a {type(value).__name__} ({value!r:.40})"
