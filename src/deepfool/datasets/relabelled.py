"""Data with other labels: the numbers of a model's classes in place of its own."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from deepfool.datasets.data import Data


class Relabelled(Data):
    """The same samples with other labels. The fingerprint is that of the samples with the labels they came with.

    >>> import torch
    >>> from deepfool.datasets import load
    >>> Relabelled(load((torch.rand(2, 4), torch.tensor([0, 1]))), torch.tensor([7, -1]), ("",) * 8).labels
    tensor([ 7, -1])
    """

    def __init__(self, data: Data, labels: Tensor, classes: tuple[str, ...]) -> None:
        super().__init__(data.name, labels, classes)
        self._data = data

    def batch(self, indices: Sequence[int] | Tensor) -> Tensor:
        return self._data.batch(indices)

    def images(self) -> Tensor:
        return self._data.images()

    def file(self, index: int) -> str | None:
        return self._data.file(index)

    def _compute_fingerprint(self) -> str:
        return self._data.fingerprint()
