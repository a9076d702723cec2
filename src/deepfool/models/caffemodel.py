"""Weights from Caffe: read `.caffemodel` files and copy them into our modules.

We use our own reader because every maintained library that reads these files brings Caffe's compiled protocol buffers
with it (OpenCV does, for example), which is a large dependency for two files.

A `.caffemodel` is a protocol buffer. The few messages needed here, with their field numbers in Caffe's `caffe.proto`:

    NetParameter       layer = 100 (LayerParameter), layers = 2 (V1LayerParameter: the older style)
    LayerParameter     name = 1, blobs = 7
    V1LayerParameter   name = 4, blobs = 6
    BlobProto          shape = 7, data = 5, double_data = 8; older: num, channels, height, width = 1, 2, 3, 4
    BlobShape          dim = 1

The file is memory-mapped and every array is a view of it, so nothing is held in memory twice.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from deepfool.errors import DataError

PUBLISHED_SHA1 = {
    "bvlc_reference_caffenet.caffemodel": "4c8d77deb20ea792f84eb5e6d0a11ca0a8660a46",
    "bvlc_googlenet.caffemodel": "405fc5acd08a3bb12de8ee5e23a96bec22f08204",
}
"""From Caffe's model zoo: bvlc_reference_caffenet/readme.md and bvlc_googlenet/readme.md."""

Floats = npt.NDArray[np.floating]
Field = tuple[int, int | memoryview]
"""A field's number and its value: a number, or the bytes of a message, string, array or fixed-width number."""


@dataclass(frozen=True)
class Layer:
    """A layer with weights: its name in Caffe, and its arrays (weights, then biases)."""

    name: str
    blobs: tuple[Floats, ...]


def load_caffemodel(
    model: nn.Module, path: str | os.PathLike[str], *, sha1: str | None = None, skip: tuple[str, ...] = ()
) -> nn.Module:
    """Copy the weights of a `.caffemodel` into `model`, whose layers have Caffe's names with dots instead of slashes.

    Every layer of the model must be in the file with the right shapes, and every layer of the file must be in the
    model, except layers whose name starts with one of `skip`. Nothing is copied unless everything fits. A file with the
    name of one of Caffe's published files must have the published SHA-1, or the one given.

    >>> load_caffemodel(nn.Linear(2, 1), "absent.caffemodel")
    Traceback (most recent call last):
    ...
    deepfool.errors.DataError: absent.caffemodel: no such file.
    """
    file = Path(path)
    content = _map(file)
    _check_sha1(file, content, sha1 or PUBLISHED_SHA1.get(file.name))
    weights = dict(_weights(file, content, model, skip))
    missing = [name for name, _ in model.named_parameters() if name not in weights]
    if missing:
        layer = missing[0].rpartition(".")[0].replace(".", "/")
        raise DataError(f"{file}: layer {layer!r} of the network is not in the file ({len(missing)} arrays missing).")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # torch does not accept read-only memory, so each array is copied; only one is held twice at a time.
            parameter.copy_(torch.from_numpy(np.array(weights[name], np.float32)).view_as(parameter))
    return model


def read_layers(path: str | os.PathLike[str]) -> list[Layer]:
    """The layers with weights in a `.caffemodel`, in the file's order; the arrays are views of the file.

    >>> read_layers("absent.caffemodel")
    Traceback (most recent call last):
    ...
    deepfool.errors.DataError: absent.caffemodel: no such file.
    """
    return list(_layers(Path(path), _map(Path(path))))


def _map(file: Path) -> memoryview:
    if not file.is_file():
        raise DataError(f"{file}: no such file.")
    if file.stat().st_size == 0:
        raise DataError(f"{file}: the file is empty.")
    with file.open("rb") as stream:
        content = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
    if bytes(content[:4]) == b"\x89HDF":
        raise DataError(f"{file}: this is an HDF5 file.", hint="give the binary protocol buffer, .caffemodel")
    return content


def _check_sha1(file: Path, content: memoryview, expected: str | None) -> None:
    if expected is None:
        return
    found = hashlib.sha1(content, usedforsecurity=False).hexdigest()
    if found != expected:
        raise DataError(
            f"{file}: expected the published file with sha1 {expected}, got {found}.",
            hint="remove the file and fetch it again, or rename it if it is your own network",
        )


def _weights(file: Path, content: memoryview, model: nn.Module, skip: tuple[str, ...]) -> Iterator[tuple[str, Floats]]:
    """(parameter name, values) for every array of the file, each checked against the model."""
    parameters = dict(model.named_parameters())
    seen = set()
    for layer in _layers(file, content):
        if skip and layer.name.startswith(skip):
            continue
        where = f"{file}, layer {layer.name!r}"
        if layer.name in seen:
            raise DataError(f"{where}: the layer appears twice.")
        seen.add(layer.name)
        path = layer.name.replace("/", ".")
        names = [f"{path}.{kind}" for kind in ("weight", "bias") if f"{path}.{kind}" in parameters]
        if not names:
            raise DataError(f"{where}: the network has no layer of that name.")
        if len(layer.blobs) != len(names):
            raise DataError(f"{where}: expected {len(names)} arrays, got {len(layer.blobs)}.")
        for name, blob in zip(names, layer.blobs, strict=True):
            expected = tuple(parameters[name].shape)
            if not _same_shape(blob.shape, expected):
                raise DataError(f"{where}: expected {name} of shape {expected}, got {blob.shape}.")
            yield name, blob


def _same_shape(found: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    """Older files pad every shape to four axes with leading ones: (1, 1, 4096, 9216) is a (4096, 9216) matrix."""
    padded = (1,) * (len(found) - len(expected)) + expected
    return found == padded


def _layers(file: Path, content: memoryview) -> Iterator[Layer]:
    name_and_blobs = {100: (1, 7), 2: (4, 6)}  # field numbers inside a LayerParameter, and inside a V1LayerParameter
    here = f"{file}"
    found = False
    try:
        for number, value in _fields(content):
            if number not in name_and_blobs or isinstance(value, int):
                continue
            found = True
            name_field, blobs_field = name_and_blobs[number]
            here = f"{file}, a layer whose name cannot be read"
            fields = list(_fields(value))
            name = next((bytes(v).decode() for n, v in fields if n == name_field and not isinstance(v, int)), "")
            here = f"{file}, layer {name!r}"
            blobs = tuple(_blob(v) for n, v in fields if n == blobs_field and not isinstance(v, int))
            if blobs:
                yield Layer(name, blobs)
            here = f"{file}, after layer {name!r}"
    except _BrokenError as error:
        raise DataError(f"{here}: {error}.", hint="the file is truncated or damaged; fetch it again") from None
    except UnicodeDecodeError:
        raise DataError(f"{here}: not text.", hint="is this a .caffemodel?") from None
    if not found:
        raise DataError(f"{file}: no layers in the file.", hint="is this a .caffemodel?")


class _BrokenError(Exception):
    """The bytes are not a protocol buffer of the expected kind."""


def _blob(message: memoryview) -> Floats:
    legacy = {1: 1, 2: 1, 3: 1, 4: 1}
    shape: tuple[int, ...] | None = None
    parts: list[Floats] = []
    for number, value in _fields(message):
        if number in legacy and isinstance(value, int):
            legacy[number] = value
        elif number == 7 and not isinstance(value, int):
            shape = tuple(_shape(value))
        elif number in (5, 8) and not isinstance(value, int):
            kind = np.dtype("<f4" if number == 5 else "<f8")
            if len(value) % kind.itemsize:
                raise _BrokenError(f"an array of {len(value)} bytes is not a multiple of {kind.itemsize} bytes")
            parts.append(np.frombuffer(value, kind))
    shape = shape if shape is not None else tuple(legacy.values())
    # A packed array is one part; unpacked, every number is a part.
    data = parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.float32), *parts])
    if min(shape, default=1) < 0 or _product(shape) != data.size:
        raise _BrokenError(f"an array of shape {shape} has {data.size} numbers")
    return data.reshape(shape)


def _shape(message: memoryview) -> Iterator[int]:
    for number, value in _fields(message):
        if number != 1:
            continue
        if isinstance(value, int):
            yield value
            continue
        at = 0
        while at < len(value):
            size, at = _varint(value, at)
            yield size


def _product(shape: tuple[int, ...]) -> int:
    product = 1  # Python integers: a damaged size must not overflow
    for size in shape:
        product *= size
    return product


def _fields(message: memoryview) -> Iterator[Field]:
    """The fields of one protocol-buffer message (protobuf.dev/programming-guides/encoding)."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(message, at)
            yield number, value
            continue
        if wire == 2:
            size, at = _varint(message, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise _BrokenError(f"wire type {wire} of field {number} is not used in this format")
        if at + size > len(message):
            raise _BrokenError(f"field {number} should have {size} bytes, only {len(message) - at} are left")
        yield number, message[at : at + size]
        at += size


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """The integer at `at`, stored seven bits per byte, and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise _BrokenError("the bytes end inside a number")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise _BrokenError("a number longer than ten bytes")
