from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from deepfool.datasets import load
from deepfool.errors import DataError, MissingExtraError

# Read when the library is imported: an unavailable name fails at once, without retries.
os.environ["HF_HUB_OFFLINE"] = "1"
datasets = pytest.importorskip("datasets")

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 20, 24, 3), dtype=np.uint8)
LABELS = [0, 1, 2, 2, 1, 0]


def table(**columns: Any) -> Any:
    columns = {"picture": [Image.fromarray(each) for each in PIXELS], "kind": LABELS} | columns
    table = datasets.Dataset.from_dict({name: values for name, values in columns.items() if values is not None})
    table = table.cast_column("picture", datasets.Image())
    return table.cast_column("kind", datasets.ClassLabel(names=["cat", "dog", "eel"])) if columns["kind"] else table


def saved(content: Any, folder: Path) -> str:
    content.save_to_disk(str(folder / "saved"))
    return f"hf:{folder / 'saved'}"


def test_columns_are_found_by_their_types(tmp_path: Path) -> None:
    data = load(saved(table(caption=list("abcdef"), width=[24] * 6), tmp_path))
    assert data.name == "saved"
    assert data.classes == ("cat", "dog", "eel")
    assert data.labels.tolist() == LABELS
    assert np.array_equal(data.images().numpy(), PIXELS.transpose(0, 3, 1, 2))
    assert torch.equal(data.batch([5, 0]), data.images()[[5, 0]].float() / 255)
    assert data.batch([]).shape == (0, 3, 20, 24)
    assert load(f"hf:{tmp_path / 'saved'}", size=16).batch([1]).shape == (1, 3, 16, 16)


def test_splits(tmp_path: Path) -> None:
    spec = saved(datasets.DatasetDict(train=table(), test=table().select([4, 3])), tmp_path)
    assert load(spec).labels.tolist() == [1, 2]
    assert load(spec, split="train").labels.tolist() == LABELS
    with pytest.raises(DataError, match=r"no split 'validation'.*train, test"):
        load(spec, split="validation")


def test_grey_pictures_keep_one_channel(tmp_path: Path) -> None:
    grey = [Image.fromarray(each[..., 0]) for each in PIXELS]
    data = load(saved(table(picture=grey), tmp_path))
    assert np.array_equal(data.images().numpy(), PIXELS[:, None, :, :, 0])


def test_pictures_kept_as_files(tmp_path: Path) -> None:
    paths = []
    for number, each in enumerate(PIXELS):
        paths.append(str(tmp_path / f"{number}.png"))
        Image.fromarray(each).save(paths[-1])
    data = load(saved(table(picture=paths), tmp_path))
    assert data.file(3) == "3.png"
    assert np.array_equal(data.images().numpy(), PIXELS.transpose(0, 3, 1, 2))


def test_labels_that_are_missing_or_plain(tmp_path: Path) -> None:
    assert load(saved(table(kind=None), tmp_path / "a")).labels.tolist() == [-1] * 6
    plain = load(saved(table(kind=None, label=[5, 4, 3, None, 1, 0]), tmp_path / "b"))
    assert plain.labels.tolist() == [5, 4, 3, -1, 1, 0]
    assert plain.classes == ()


def test_fingerprint(tmp_path: Path) -> None:
    spec = saved(table(), tmp_path)
    known = load(spec).fingerprint()
    assert load(spec).fingerprint() == known
    assert load(spec, size=16).fingerprint() != known
    assert load(saved(table(kind=[0, 1, 2, 2, 1, 1]), tmp_path / "b")).fingerprint() != known
    assert load(saved(table().select([1, 0, 2, 3, 4, 5]), tmp_path / "c")).fingerprint() != known


def test_ambiguous_columns_are_refused(tmp_path: Path) -> None:
    no_picture = datasets.Dataset.from_dict({"label": [0, 1]})
    with pytest.raises(DataError, match=r"expected one column of images, got 0 \(label: Value\)"):
        load(saved(no_picture, tmp_path / "a"))
    two = table(fine=LABELS).cast_column("fine", datasets.ClassLabel(num_classes=3))
    with pytest.raises(DataError, match="several columns of labels: kind, fine"):
        load(saved(two, tmp_path / "b"))
    assert load(saved(two.rename_column("fine", "label"), tmp_path / "c")).classes == ("0", "1", "2")
    with pytest.raises(DataError, match=r"not written by save_to_disk.*folder:"):
        load(f"hf:{tmp_path}")


def test_images_of_several_sizes_need_a_size(tmp_path: Path) -> None:
    pictures = [Image.new("RGB", (20 + number, 20)) for number in range(6)]
    spec = saved(table(picture=pictures), tmp_path)
    with pytest.raises(DataError, match=r"saved\[1\] has shape \(3, 20, 21\)"):
        load(spec).images()
    assert load(spec, size=16).images().shape == (6, 3, 16, 16)


def test_a_corrupt_picture_is_named(tmp_path: Path) -> None:
    stream = io.BytesIO()
    Image.fromarray(PIXELS[0]).save(stream, "PNG")
    cells = [{"bytes": stream.getvalue(), "path": f"{number}.png"} for number in range(6)]
    cells[4]["bytes"] = stream.getvalue()[:200]
    data = load(saved(table(picture=cells), tmp_path))
    assert data.batch([0, 5]).shape == (2, 3, 20, 24)
    with pytest.raises(DataError, match=r"row 4 of saved \(4\.png\) cannot be read"):
        data.batch([4])


def test_an_unavailable_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"hf:nobody/nothing:small \(test\) could not be loaded"):
        load("hf:nobody/nothing:small")


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"deepfool\[hf\]"):
        load("hf:mnist")
