from __future__ import annotations

from pathlib import Path

import pytest
import torch

from deepfool.datasets import NAMES, Data, load
from deepfool.datasets.bundled import FOLDER, SAMPLES, cut_sheet, draw_sheet
from deepfool.datasets.fetching import read, split_file
from deepfool.errors import DataError, InputError


@pytest.mark.parametrize(
    ("name", "shape", "largest"),
    [("mnist-sample", (1000, 1, 28, 28), 500e3), ("cifar10-sample", (500, 3, 32, 32), 1.5e6)],
)
def test_samples_are_complete_small_and_balanced(name: str, shape: tuple[int, ...], largest: float) -> None:
    data = load(name)
    assert data.images().shape == shape
    assert data.images().dtype == torch.uint8
    assert len(data.classes) == 10
    counts = data.labels.bincount(minlength=10)
    assert int(counts.min()) > 0.75 * shape[0] / 10
    assert int(counts.max()) < 1.25 * shape[0] / 10
    assert sum(file.stat().st_size for file in FOLDER.glob(f"{name}.*")) < largest


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_are_rows_of_the_full_data(name: str) -> None:
    sample = SAMPLES[name]
    if not split_file(sample.origin, "test").exists():
        pytest.skip(f"{sample.origin} is not in the cache: deepfool data fetch {sample.origin}")
    full, part, rows = read(sample.origin, "test"), load(name), list(sample.rows)
    assert torch.equal(part.images(), full.images()[rows])
    assert torch.equal(part.labels, full.labels[rows])
    assert part.classes == full.classes


def test_samples_have_only_a_test_split() -> None:
    with pytest.raises(InputError, match=r"only the test split, got 'train'\. Hint: mnist has"):
        load("mnist-sample", split="train")
    with pytest.raises(InputError, match="splits train and test, got 'dev'"):
        load("mnist", split="dev")


def test_a_changed_sample_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in FOLDER.glob("mnist-sample.*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr("deepfool.datasets.bundled.FOLDER", tmp_path)
    assert len(load("mnist-sample")) == 1000
    labels = tmp_path / "mnist-sample.json"
    labels.write_text(labels.read_text().replace("[7, 0,", "[7, 1,"))
    with pytest.raises(DataError, match=r"mnist-sample.*wrong hash"):
        load("mnist-sample")


@pytest.mark.parametrize("channels", [1, 3])
def test_sheets_round_trip(tmp_path: Path, channels: int) -> None:
    from PIL import Image

    images = torch.randint(0, 256, (7, channels, 4, 5), dtype=torch.uint8)
    Image.fromarray(draw_sheet(images, 3)).save(tmp_path / "sheet.png")
    assert torch.equal(cut_sheet(tmp_path / "sheet.png", 7, (channels, 4, 5)), images)


def test_names_load_and_others_get_a_hint(tmp_path: Path) -> None:
    assert NAMES == ("mnist", "cifar10", "mnist-sample", "cifar10-sample")
    for spec, hint in [
        ("cifar-10", "did you mean cifar10"),
        (str(tmp_path), f"folder:{tmp_path}"),
        ("digits.npz", "npz:digits.npz"),
        ("folder:", "choose from"),
        ("ftp:server", "choose from mnist"),
    ]:
        with pytest.raises(InputError, match=hint):
            load(spec)
    for wrong in (3, (1, 2), [torch.zeros(1)], None):
        with pytest.raises(InputError, match="data must be"):
            load(wrong)
    for size in (0, -1, 2.5, True):
        with pytest.raises(InputError, match="size must be"):
            load("mnist-sample", size=size)


def test_data_is_returned_unchanged() -> None:
    data = load("cifar10-sample")
    assert isinstance(data, Data)
    assert load(data) is data
    assert repr(data) == "Arrays(cifar10-sample: 500 samples, 10 classes)"
