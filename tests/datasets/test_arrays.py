from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deepfool.datasets import load
from deepfool.errors import DataError, InputError

PIXELS = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)


def write(path: Path, **arrays: Any) -> str:
    np.savez(path / "data.npz", **arrays)
    return f"npz:{path / 'data.npz'}"


def test_pixels_become_unit_floats_and_keep_their_bytes() -> None:
    data = load((torch.tensor([[0, 51, 255]], dtype=torch.uint8), torch.tensor([2])))
    assert torch.equal(data.batch([0]), torch.tensor([[0, 0.2, 1]]))
    assert data.images().dtype == torch.uint8
    assert data.labels.dtype == torch.int64
    assert data.file(0) is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_floats_are_not_scaled(dtype: torch.dtype) -> None:
    x = torch.tensor([[-3.5, 200.0]], dtype=dtype)
    data = load((x, np.array([0])))
    assert torch.equal(data.batch([0]), torch.tensor([[-3.5, 200.0]]))
    assert data.images().dtype == dtype


def test_indices_of_every_kind() -> None:
    x = torch.rand(6, 2)
    data = load((x, torch.zeros(6, dtype=torch.int32)))
    assert torch.equal(data.batch(torch.tensor([5, 0, 5])), x[[5, 0, 5]])
    assert torch.equal(data.batch(range(2, 4)), x[2:4])
    assert torch.equal(data.batch(x[:, 0] > 0.5), x[x[:, 0] > 0.5])
    assert data.batch([]).shape == (0, 2)
    for wrong in ([6], [-1], torch.tensor([True])):
        with pytest.raises(InputError):
            data.batch(wrong)


@pytest.mark.parametrize("pixels", [PIXELS, np.asfortranarray(PIXELS), PIXELS.transpose(0, 3, 1, 2)])
def test_channels_are_found_in_uint8_images(tmp_path: Path, pixels: np.ndarray) -> None:
    data = load(write(tmp_path, images=pixels, labels=[0, 1]))
    assert torch.equal(data.images(), torch.from_numpy(PIXELS.transpose(0, 3, 1, 2).copy()))
    assert data.name == "data"


def test_grey_images_get_a_channel(tmp_path: Path) -> None:
    assert load(write(tmp_path, x=PIXELS[..., 0], y=[0, 1])).batch([1]).shape == (1, 1, 4, 5)


def test_many_channels_stay_where_they_are() -> None:
    assert load((np.zeros((2, 13, 64, 64), np.uint8), [0, 1])).images().shape == (2, 13, 64, 64)
    with pytest.raises(DataError, match="cannot tell which axis"):
        load((np.zeros((2, 3, 8, 3), np.uint8), [0, 1]))
    assert load((torch.zeros(2, 3, 8, 3, dtype=torch.uint8), [0, 1])).images().shape == (2, 3, 8, 3)


def test_float_arrays_keep_their_shape(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(3, 4, 5, 3))
    data = load(write(tmp_path, x=x, y=np.array([0, 1, -1], np.int8), classes=["cat", "dog"]))
    assert torch.equal(data.batch([0, 1, 2]), torch.from_numpy(x).float())
    assert data.labels.tolist() == [0, 1, -1]
    assert data.classes == ("cat", "dog")


def test_big_endian_and_read_only_arrays() -> None:
    x = np.array([[1.5, 2.5]], dtype=">f4")
    x.flags.writeable = False
    assert load((x, [0])).batch([0]).tolist() == [[1.5, 2.5]]


def test_labels_may_be_missing(tmp_path: Path) -> None:
    assert load(write(tmp_path, x=np.zeros((2, 3)))).labels.tolist() == [-1, -1]
    assert load((torch.zeros(2, 3), None)).labels.tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((3, 2)), "y": [0, 1]}, r"expected 3 labels.*got shape \(2,\)"),
        ({"x": np.zeros((3, 2)), "y": np.eye(3, dtype=int)}, "argmax"),
        ({"x": np.zeros((3, 2)), "y": [0.5, 1, 2]}, "labels must be integers, got float64"),
        ({"x": np.zeros((3, 2)), "y": [0, 1, -2]}, "0 or more"),
        ({"x": np.zeros((3, 2), int), "y": [0, 1, 2]}, "expected uint8 .* or floats, got torch.int64"),
        ({"x": np.array([["a"]]), "y": [0]}, "array of numbers"),
        ({"x": np.array([[1.0], [np.nan]]), "y": [0, 1]}, "sample 1 holds a value that is not finite"),
        ({"x": np.zeros(3), "y": [0, 1, 2]}, "two or more"),
        ({"x": np.zeros((0, 3)), "y": np.zeros(0, int)}, "at least one sample"),
        ({"y": [0]}, "expected an array named x or images, got y"),
        ({"x": np.zeros((3, 2)), "target": [0, 1, 2]}, "expected an array named y or labels, got x, target"),
        ({"x": np.zeros((1, 2)), "images": np.zeros((1, 2))}, "both x and images"),
        ({"x": np.array([{}]), "y": [0]}, "plain arrays"),
    ],
)
def test_unusable_arrays_are_named(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=rf"data\.npz.*{message}"):
        load(write(tmp_path, **arrays))


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    import pickle

    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "sprung",)

    (tmp_path / "trap.npz").write_bytes(pickle.dumps(Trap()))
    np.savez(tmp_path / "hidden.npz", x=np.array([Trap()], dtype=object), y=[0])
    for file in ("trap.npz", "hidden.npz"):
        with pytest.raises(DataError, match=file):
            load(f"npz:{tmp_path / file}")
    assert not (tmp_path / "sprung").exists()


def test_files_that_are_not_archives(tmp_path: Path) -> None:
    (tmp_path / "empty.npz").touch()
    write(tmp_path, x=np.zeros((9, 9)), y=np.zeros(9, int))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "data.npz").read_bytes()[:99])
    np.save(tmp_path / "single.npy", np.zeros(3))
    for file in ("empty.npz", "cut.npz", "single.npy", "missing.npz"):
        with pytest.raises(DataError, match=file):
            load(f"npz:{tmp_path / file}")


def test_fingerprint_is_the_content() -> None:
    x, y = torch.arange(12, dtype=torch.uint8).view(2, 6), torch.tensor([0, 1])
    known = hashlib.sha256(
        b"torch.uint8 (2, 6)\n" + bytes(range(12)) + b"torch.int64 (2,)\n" + bytes(8) + bytes([1, *[0] * 7])
    )
    assert load((x, y)).fingerprint() == known.hexdigest()
    assert load((x.t().contiguous().t(), y)).fingerprint() == known.hexdigest()  # strides are not content
    changed = [(x + 1, y), (x, 1 - y), (x.view(2, 2, 3), y), (x.float(), y), (x.flip(0), y)]
    assert len({known.hexdigest(), *(load(pair).fingerprint() for pair in changed)}) == 6


@pytest.mark.parametrize("dtype", ["longdouble", "complex64", "U3", "datetime64[s]", "clongdouble"])
def test_dtypes_that_torch_does_not_have(tmp_path: Path, dtype: str) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 2)).astype(dtype), y=[0, 1, 1])
    with pytest.raises(DataError, match=r"64 bits cannot be used|expected an array of numbers"):
        load(f"npz:{tmp_path / 'a.npz'}")


def test_labels_that_do_not_fit() -> None:
    with pytest.raises(DataError, match="must be class numbers, got 18446744073709551615"):
        load((np.zeros((2, 3), np.float32), np.array([0, 2**64 - 1], np.uint64)))


@pytest.mark.parametrize("flaw", ["header", "huge", "encrypted"])
def test_malformed_archives(tmp_path: Path, flaw: str) -> None:
    """Whatever NumPy and zipfile raise, our error names the file."""
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 2), np.float32), y=[0, 1, 1])
    content = (tmp_path / "a.npz").read_bytes()
    if flaw == "header":
        content = content.replace(b"'shape': (3, 2)", b"'shape': (3, x)")
    elif flaw == "huge":
        content = content.replace(b"'shape': (3, 2), }     ", b"'shape': (9999999999,)}")
    else:
        headers = re.compile(rb"(PK\x01\x02.{4}|PK\x03\x04.{2}).", re.DOTALL)
        content = headers.sub(lambda found: found[1] + b"\x01", content)
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.npz"):
        load(f"npz:{tmp_path / 'a.npz'}")


@pytest.mark.parametrize("split", ["train", "validation", "", None, 3])
def test_arrays_have_no_splits(tmp_path: Path, split: object) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 2), np.float32), y=[0, 1, 1])
    for data in (f"npz:{tmp_path / 'a.npz'}", (torch.zeros(2, 3), [0, 1])):
        with pytest.raises(InputError, match=r"no splits to choose from|split must be"):
            load(data, split=split)
