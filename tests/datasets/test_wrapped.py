from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, SubsetRandomSampler, TensorDataset

from deepfool.datasets import load
from deepfool.errors import DataError, InputError


class Counted(Dataset[Any]):
    """Items from a list, with a count of how many were read."""

    classes = ("even", "odd")

    def __init__(self, items: list[Any]) -> None:
        self.items, self.reads = items, 0

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        return self.items[index]


class Stream(IterableDataset[Any]):
    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)


X = torch.rand(10, 3, 4, 4, generator=torch.Generator().manual_seed(0))
ITEMS = [(x, i % 2) for i, x in enumerate(X)]


def test_a_dataset_is_read_lazily() -> None:
    dataset = Counted(ITEMS)
    data = load(dataset)
    before = dataset.reads
    assert len(data) == 10
    assert torch.equal(data.batch([7, 1]), X[[7, 1]])
    assert dataset.reads == before + 2
    assert data.labels.tolist() == [0, 1] * 5
    assert data.classes == ("even", "odd")
    assert data.name == "Counted"
    assert data.batch([]).shape == (0, 3, 4, 4)
    assert torch.equal(data.images(), X)


def test_labels_come_with_the_fingerprint() -> None:
    dataset = Counted(ITEMS)
    data = load(dataset)
    before = dataset.reads
    mark = data.fingerprint()
    assert data.labels.tolist() == [0, 1] * 5
    assert data.fingerprint() == mark
    assert dataset.reads == before + 10
    assert load(Counted([*ITEMS[:-1], (X[9], 0)])).fingerprint() != mark
    assert load(Counted([*ITEMS[:-1], (X[8], 1)])).fingerprint() != mark


@pytest.mark.parametrize(
    ("sample", "shape", "value"),
    [
        (torch.full((1, 2, 2), 255, dtype=torch.uint8), (1, 2, 2), 1.0),
        (np.full((4, 5, 3), 255, np.uint8), (3, 4, 5), 1.0),
        (np.full((3, 4, 5), 51, np.uint8), (3, 4, 5), 0.2),
        (np.full(7, 2.5), (7,), 2.5),
        (Image.new("RGB", (5, 4), (255, 255, 255)), (3, 4, 5), 1.0),
        (Image.new("L", (5, 4), 51), (1, 4, 5), 0.2),
    ],
)
def test_samples_of_every_kind(sample: Any, shape: tuple[int, ...], value: float) -> None:
    x = load(Counted([(sample, np.int32(1), "more")])).batch([0])
    assert torch.equal(x, torch.full((1, *shape), value))


def test_tensor_datasets_stay_in_memory() -> None:
    assert torch.equal(load(TensorDataset(X, torch.arange(10))).images(), X)
    assert load(Subset(TensorDataset(X, torch.arange(10)), [3, 1])).labels.tolist() == [3, 1]


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([X[0]], r"Counted\[0\]: expected a pair"),
        ([{"image": X[0], "label": 1}], r"Counted\[0\]: expected a pair.*dict"),
        ([(X[0], 0), (X[1], "cat")], r"Counted\[1\]: the label must be an integer.*'cat'"),
        ([(X[0], 0), (X[1], 0.5)], r"Counted\[1\]: the label must be an integer"),
        ([(torch.zeros(3, dtype=torch.long), 0)], r"Counted\[0\]: expected uint8 or floats"),
        ([(X[0], 0), (X[1] / 0, 0)], r"Counted\[1\] holds a value that is not finite"),
        ([("path.png", 0)], r"Counted\[0\]: expected a tensor"),
        ([], "is empty"),
    ],
)  # fmt: skip
def test_odd_items_are_named(items: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(Counted(items)).fingerprint()  # reads every item


def test_samples_that_do_not_stack_are_named() -> None:
    with pytest.raises(DataError, match=r"Counted\[1\] has shape \(3, 2, 4\), others have \(3, 4, 4\)"):
        load(Counted([ITEMS[0], (X[1, :, :2], 0)])).images()
    with pytest.raises(DataError, match=r"Counted\[1\] has type torch\.float64, others have torch\.float32"):
        load(Counted([ITEMS[0], (X[1].double(), 0)])).batch([0, 1])


def test_random_transforms_are_refused() -> None:
    class Noisy(Counted):
        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return torch.rand(3), 0

    with pytest.raises(InputError, match="a different sample each time"):
        load(Noisy([None]))


def test_iterables_are_read_in_order() -> None:
    data = load(Stream(ITEMS))
    assert torch.equal(data.images(), X)
    assert data.labels.tolist() == [0, 1] * 5
    assert torch.equal(load(DataLoader(Stream(ITEMS), batch_size=3)).images(), X)
    assert torch.equal(load(DataLoader(Stream(ITEMS), batch_size=None)).images(), X)
    with pytest.raises(DataError, match="Stream is empty"):
        load(Stream([]))
    with pytest.raises(DataError, match=r"Stream, item 1: expected a pair"):
        load(Stream([ITEMS[0], X[1]]))


def test_loaders_give_their_dataset_in_order() -> None:
    dataset = Counted(ITEMS)
    data = load(DataLoader(dataset, batch_size=4, drop_last=True))
    assert len(data) == 10  # nothing is dropped: the loader's batches are not used
    assert torch.equal(data.batch([9]), X[9:])


def test_a_custom_collate_function_is_used() -> None:
    def double(items: list[tuple[Tensor, int]]) -> tuple[Tensor, list[int]]:
        return torch.stack([x for x, _ in items]) * 2, [y for _, y in items]

    data = load(DataLoader(Counted(ITEMS), batch_size=4, collate_fn=double))
    assert torch.equal(data.images(), X * 2)
    assert data.labels.tolist() == [0, 1] * 5
    with pytest.raises(DataError, match="batch 0 of the DataLoader: expected a pair"):
        load(DataLoader(Counted(ITEMS), batch_size=4, collate_fn=lambda items: items[0][0]))


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": True},
        {"sampler": SubsetRandomSampler([1, 2])},
        {"sampler": [3, 1]},
        {"batch_sampler": [[3, 1], [0]]},
    ],
)
def test_loaders_that_reorder_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"changes the order of the samples\. Hint: pass its dataset"):
        load(DataLoader(Counted(ITEMS), **options))
