"""The samples inside the package, so that everything can be tried without a download.

Each is one PNG that shows all images in reading order, with the labels in a JSON file beside it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from deepfool.datasets.arrays import Arrays
from deepfool.datasets.catalog import BUILTINS
from deepfool.datasets.pictures import open_picture
from deepfool.errors import DataError

FOLDER = Path(__file__).parent / "samples"


@dataclass(frozen=True)
class Sample:
    """Some rows of a test split."""

    name: str
    origin: str
    rows: range
    """The indices of these images in the test split of the origin."""
    columns: int
    """Images per row of the sheet."""
    fingerprint: str


SAMPLES: Mapping[str, Sample] = {
    sample.name: sample
    for sample in (
        # Every tenth image: the first half of MNIST's test split has tidier handwriting than the second.
        Sample(
            "mnist-sample",
            "mnist",
            range(0, 10000, 10),
            40,
            "65ebee520fc3259f1d84eb8b28bcebef7990fd13cdeafaa5afac75c6c13ef4c4",
        ),
        # CIFAR-10's test split is in random order, so the first images are a fair sample.
        Sample(
            "cifar10-sample",
            "cifar10",
            range(500),
            25,
            "a69e5d479028ba932877eab596745cfc5a51dcb8a04e89b9c7daeafb1ce52c84",
        ),
    )
}


def read_sample(name: str) -> Arrays:
    """Read one of the samples and check its hash.

    >>> data = read_sample("mnist-sample")
    >>> len(data), data.batch([0]).shape, data.labels[:5].tolist()
    (1000, torch.Size([1, 1, 28, 28]), [7, 0, 9, 3, 1])
    """
    sample = SAMPLES[name]
    images = cut_sheet(FOLDER / f"{name}.png", len(sample.rows), BUILTINS[sample.origin].shape)
    labels = torch.tensor(json.loads((FOLDER / f"{name}.json").read_text("utf-8"))["labels"])
    data = Arrays(name, images, labels, BUILTINS[sample.origin].classes)
    if data.fingerprint() != sample.fingerprint:
        raise DataError(f"{FOLDER / name}.png or .json has the wrong hash.", hint="install the package again.")
    return data


def draw_sheet(images: Tensor, columns: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Images (n, c, h, w) side by side in reading order, as (height, width) or (height, width, 3).

    >>> draw_sheet(torch.arange(4, dtype=torch.uint8).view(4, 1, 1, 1), columns=2).tolist()
    [[0, 1], [2, 3]]
    """
    count, channels, height, width = images.shape
    rows = math.ceil(count / columns)
    sheet = torch.zeros(rows * columns, channels, height, width, dtype=torch.uint8)
    sheet[:count] = images
    grid = sheet.view(rows, columns, channels, height, width).permute(0, 3, 1, 4, 2)
    flat = grid.reshape(rows * height, columns * width, channels).numpy()
    return flat[..., 0] if channels == 1 else flat


def cut_sheet(path: Path, count: int, shape: tuple[int, int, int]) -> Tensor:
    """Cut a sheet back into its images."""
    channels, height, width = shape
    with open_picture(path, str(path), formats=("PNG",), hint="install the package again.") as picture:
        pixels = np.array(picture)
    grid = torch.from_numpy(pixels).view(pixels.shape[0] // height, height, -1, width, channels)
    return grid.permute(0, 2, 4, 1, 3).reshape(-1, channels, height, width)[:count].contiguous()
