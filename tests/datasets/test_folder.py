from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from deepfool.datasets import load
from deepfool.datasets.pictures import SUFFIXES
from deepfool.errors import DataError

RED, BLUE = (255, 0, 0), (0, 0, 255)


def paint(
    path: Path, color: object = RED, *, mode: str = "RGB", size: tuple[int, int] = (16, 16), **options: object
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, color).save(path, **options)


def pixel(folder: Path, index: int = 0, size: int = 8) -> list[int]:
    return (load(f"folder:{folder}", size=size).batch([index])[0, :, 0, 0] * 255).round().int().tolist()


def test_sub_folders_are_classes_in_order(tmp_path: Path) -> None:
    for file in ("dog/b.png", "dog/a.JPG", "cat/z.png", ".hidden/x.png"):
        paint(tmp_path / file)
    (tmp_path / "dog" / "notes.txt").touch()
    (tmp_path / "empty").mkdir()
    data = load(f"folder:{tmp_path}")
    assert data.name == tmp_path.name
    assert data.classes == ("cat", "dog", "empty")
    assert [(data.file(i), int(data.labels[i])) for i in range(len(data))] == [
        ("cat/z.png", 0), ("dog/a.JPG", 1), ("dog/b.png", 1),
    ]  # fmt: skip
    assert data.batch([2, 0]).shape == (2, 3, 224, 224)
    assert data.batch([]).shape == (0, 3, 224, 224)
    assert data.images().dtype == torch.uint8
    assert torch.equal(data.images().float() / 255, data.batch([0, 1, 2]))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (
            "labels.json",
            '[{"file": "b.png", "label": 2, "name": "dog"}, {"file": "in/a.png", "label": 0, "name": "cat"}]',
        ),
        ("labels.csv", "file,label,name\nb.png,2,dog\nin/a.png,0,cat\n"),
        ("labels.csv", "\ufeffname,label,file\r\ndog,2,b.png\r\n\r\ncat,0,in/a.png\r\n"),
        ("labels.csv", "b.png,2,dog\nin/a.png,0,cat"),
    ],
)  # fmt: skip
def test_lists_of_labels(tmp_path: Path, name: str, content: str) -> None:
    paint(tmp_path / "in" / "a.png", RED)
    paint(tmp_path / "b.png", BLUE)
    paint(tmp_path / ".thumbnails" / "b.png", BLUE)  # hidden files are ignored
    (tmp_path / name).write_text(content, encoding="utf-8")
    data = load(f"folder:{tmp_path}", size=8)
    assert data.labels.tolist() == [2, 0]
    assert data.classes == ("cat", "", "dog")
    assert [data.file(0), data.file(1)] == ["b.png", "in/a.png"]
    assert torch.equal(data.batch([0, 1])[:, :, 3, 3], torch.tensor([[0.0, 0, 1], [1, 0, 0]]))


def test_an_object_of_labels_and_unknown_ones(tmp_path: Path) -> None:
    paint(tmp_path / "a.png")
    paint(tmp_path / "b.png")
    (tmp_path / "labels.json").write_text('{"b.png": 1, "a.png": -1}')
    data = load(f"folder:{tmp_path}")
    assert data.labels.tolist() == [1, -1]
    assert data.classes == ()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"file": "a.png"}]', r"a\.png has no label"),
        ('{"a.png": null}', r"a\.png has no label"),
        ('{"a.png": "3"}', r"label of a\.png must be an integer, got '3'"),
        ('{"a.png": 3.0}', r"label of a\.png must be an integer, got 3\.0"),
        ('{"a.png": true}', r"label of a\.png must be an integer, got True"),
        ('{"a.png": -2}', r"label of a\.png must lie in"),
        ('{"a.png": 1e999}', "must be an integer"),
        ('{"a.png": 99999999999999999999}', "must lie in"),
        ('{"a.png": 0, "gone.png": 1}', r"gone\.png is listed, but"),
        ('{"a.png": 0, "../outside.png": 1}', r"'\.\./outside\.png' must be a path inside"),
        ('{"a.png": 0, "in/../../outside.png": 1}', "must be a path inside"),
        ('{"a.png": 0, "/etc/passwd": 1}', "'/etc/passwd' must be a path inside"),
        ('{"a.png": 0, "C:/x.png": 1}', "must be a path inside"),
        ('{"a.png": 0, "": 1}', "must be a path inside"),
        ('{"a.png": 0, ".": 1}', "must be a path inside"),
        ('[{"file": "a.png", "label": 0}, {"file": "./a.png", "label": 1}]', "listed twice"),
        ('[{"file": "a.png", "label": 0, "name": "x"}, {"file": "b.png", "label": 0, "name": "y"}]', "is named 'x'"),
        ("{}", "lists no images"),
        ("[1]", "entry 0 must be an object"),
        ("7", "expected a list"),
        ("{", "not valid JSON"),
    ],
)  # fmt: skip
def test_bad_lists_name_the_file(tmp_path: Path, content: str, message: str) -> None:
    paint(tmp_path / "outside.png")
    root = tmp_path / "root"
    paint(root / "a.png")
    if "b.png" in content:
        paint(root / "b.png")
    (root / "labels.json").write_text(content)
    with pytest.raises(DataError, match=rf"labels\.json.*{message}"):
        load(f"folder:{root}")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a.png", r"a\.png has no label"),
        ("file,label\na.png,", r"a\.png has no label"),
        ("a.png,4.5", "must be an integer, got '4.5'"),
        ("file,class\na.png,1", "a column named label"),
        ("file,label\n", "lists no images"),
    ],
)
def test_bad_tables_name_the_file(tmp_path: Path, content: str, message: str) -> None:
    paint(tmp_path / "a.png")
    (tmp_path / "labels.csv").write_text(content)
    with pytest.raises(DataError, match=rf"labels\.csv.*{message}"):
        load(f"folder:{tmp_path}")


def test_an_image_without_a_label_is_named(tmp_path: Path) -> None:
    paint(tmp_path / "cat" / "a.png")
    paint(tmp_path / "loose.png")
    with pytest.raises(DataError, match=r"loose\.png has no label"):
        load(f"folder:{tmp_path}")
    (tmp_path / "labels.json").write_text('{"loose.png": 1}')
    with pytest.raises(DataError, match=r"cat.a\.png has no label in .*labels\.json"):
        load(f"folder:{tmp_path}")


def test_splits_are_not_mistaken_for_classes(tmp_path: Path) -> None:
    paint(tmp_path / "train" / "cat" / "a.png")
    paint(tmp_path / "val" / "cat" / "a.png")
    with pytest.raises(DataError, match=r"folder inside the class folder train.*give folder:.*train"):
        load(f"folder:{tmp_path}")


def test_missing_and_empty_folders(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        load(f"folder:{tmp_path / 'nowhere'}")
    with pytest.raises(DataError, match="holds no images"):
        load(f"folder:{tmp_path}")


@pytest.mark.parametrize("content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n" + bytes(40), None])
def test_a_corrupt_image_is_named(tmp_path: Path, content: bytes | None) -> None:
    paint(tmp_path / "cat" / "good.png")
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "cat" / "bad.jpg")
    whole = (tmp_path / "cat" / "bad.jpg").read_bytes()
    (tmp_path / "cat" / "bad.jpg").write_bytes(whole[: len(whole) // 2] if content is None else content)
    data = load(f"folder:{tmp_path}", size=8)
    assert data.batch([1]).shape == (1, 3, 8, 8)
    with pytest.raises(DataError, match=r"bad\.jpg cannot be read as an image"):
        data.batch([1, 0])


def test_an_image_that_vanishes_is_named(tmp_path: Path) -> None:
    paint(tmp_path / "cat" / "a.png")
    data = load(f"folder:{tmp_path}")
    (tmp_path / "cat" / "a.png").unlink()
    with pytest.raises(DataError, match=r"a\.png: there is no such file"):
        data.batch([0])
    with pytest.raises(DataError, match=r"a\.png"):
        data.fingerprint()


@pytest.mark.parametrize(
    ("mode", "color", "file", "expected"),
    [
        ("L", 100, "a.png", [100, 100, 100]),
        ("1", 1, "a.png", [255, 255, 255]),
        ("LA", (0, 0), "a.png", [255, 255, 255]),
        ("RGBA", (255, 0, 0, 0), "a.png", [255, 255, 255]),
        ("RGBA", (255, 0, 0, 255), "a.png", [255, 0, 0]),
        ("RGBA", (0, 0, 0, 128), "a.png", [127, 127, 127]),
        ("I;16", 25700, "a.png", [100, 100, 100]),
        ("CMYK", (0, 255, 255, 0), "a.tif", [255, 0, 0]),
        ("CMYK", (0, 255, 255, 0), "a.jpg", [254, 0, 0]),
        ("P", 0, "a.gif", [0, 0, 0]),
    ],
)
def test_every_mode_becomes_rgb(tmp_path: Path, mode: str, color: object, file: str, expected: list[int]) -> None:
    paint(tmp_path / "x" / file, color, mode=mode)
    assert pixel(tmp_path) == pytest.approx(expected, abs=2)


def test_exif_rotates_the_image(tmp_path: Path) -> None:
    image = Image.new("RGB", (32, 16), RED)
    image.paste(BLUE, (16, 0, 32, 16))  # left red, right blue
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees clockwise: the left side becomes the top
    (tmp_path / "x").mkdir()
    image.save(tmp_path / "x" / "a.png", exif=exif)
    top, bottom = load(f"folder:{tmp_path}", size=14).batch([0])[0, :, [0, -1], 7].T
    assert top.tolist() == [1, 0, 0]
    assert bottom.tolist() == [0, 0, 1]


@pytest.mark.parametrize(("width", "height"), [(300, 200), (200, 300), (257, 256), (10, 40)])
def test_resize_and_crop_as_torchvision_does(tmp_path: Path, width: int, height: int) -> None:
    """The rule written out: short side to round(size / 0.875), bicubic, centre crop."""
    noise = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    (tmp_path / "x").mkdir()
    Image.fromarray(noise).save(tmp_path / "x" / "a.png")
    short = min(width, height)
    wide, high = (256, int(256 * height / width)) if width == short else (int(256 * width / height), 256)
    resized = np.asarray(Image.fromarray(noise).resize((wide, high), Image.Resampling.BICUBIC))
    top, left = round((high - 224) / 2), round((wide - 224) / 2)
    expected = resized[top : top + 224, left : left + 224].transpose(2, 0, 1)
    assert np.array_equal(load(f"folder:{tmp_path}").images()[0].numpy(), expected)


def test_fingerprint_covers_bytes_names_labels_and_size(tmp_path: Path) -> None:
    def mark(size: int = 8) -> str:
        return load(f"folder:{tmp_path}", size=size).fingerprint()

    paint(tmp_path / "a.png", RED)
    paint(tmp_path / "b.png", BLUE)
    (tmp_path / "labels.json").write_text('{"a.png": 0, "b.png": 1}')
    seen = [mark(), mark(16)]
    (tmp_path / "labels.json").write_text('{"a.png": 0, "b.png": 2}')
    seen.append(mark())
    paint(tmp_path / "b.png", RED)
    seen.append(mark())
    (tmp_path / "b.png").rename(tmp_path / "c.png")
    (tmp_path / "labels.json").write_text('{"a.png": 0, "c.png": 2}')
    seen.append(mark())
    assert len(set(seen)) == 5
    copy = shutil.copytree(tmp_path, tmp_path.parent / "copy")
    assert load(f"folder:{copy}", size=8).fingerprint() == seen[-1]  # the path is not part of it


def test_links_are_followed(tmp_path: Path) -> None:
    paint(tmp_path / "store" / "1.png", BLUE)
    (tmp_path / "data" / "cat").mkdir(parents=True)
    os.symlink(tmp_path / "store" / "1.png", tmp_path / "data" / "cat" / "1.png")
    assert pixel(tmp_path / "data") == [0, 0, 255]


def test_real_imagenet_images(imagenet: Path) -> None:
    listed = json.loads((imagenet / "labels.json").read_text())
    data = load(f"folder:{imagenet}")
    assert len(data) == len(listed)
    assert data.labels.tolist() == [row["label"] for row in listed]
    assert all(data.classes[row["label"]] == row["name"] for row in listed)
    x = data.batch(range(4))
    assert x.shape == (4, 3, 224, 224)
    assert 0 <= float(x.min()) < 0.1
    assert 0.9 < float(x.max()) <= 1


@pytest.mark.parametrize("labels", [None, "labels.json", "labels.csv"])
@pytest.mark.parametrize("odd", ["a/lost.png", "lost.png", "lost"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_is_neither_file_nor_folder_is_named(tmp_path: Path, labels: str | None, odd: str, kind: str) -> None:
    """A broken link may have been an image or a whole class; reading a pipe would block."""
    (tmp_path / "a").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "a" / "1.png")
    if labels:
        (tmp_path / labels).write_text('{"a/1.png": 0}' if labels.endswith("json") else "a/1.png,0\n")
    if kind == "link":
        (tmp_path / odd).symlink_to(tmp_path / "nowhere")
    else:
        os.mkfifo(tmp_path / odd)
    match = "lost.* is a broken link" if kind == "link" else "lost.* is neither a file nor a folder"
    with pytest.raises(DataError, match=match):
        load(f"folder:{tmp_path}")


@pytest.mark.parametrize("name", ["labels.json", "labels.csv"])
def test_a_list_of_labels_that_is_a_broken_link(tmp_path: Path, name: str) -> None:
    (tmp_path / "a").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "a" / "1.png")
    (tmp_path / name).symlink_to(tmp_path / "nowhere")
    with pytest.raises(DataError, match="broken link"):
        load(f"folder:{tmp_path}")


def test_no_other_formats_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow reads by content, not by name: an EPS would start Ghostscript."""
    from PIL import EpsImagePlugin

    def never(*_: object, **__: object) -> None:
        raise AssertionError("Ghostscript was started")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", never)
    (tmp_path / "a").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "a" / "cat.eps")
    (tmp_path / "a" / "cat.eps").rename(tmp_path / "a" / "cat.png")
    with pytest.raises(DataError, match=r"cat\.png cannot be read as an image: it is none of JPEG, PNG"):
        load(f"folder:{tmp_path}").batch([0])


@pytest.mark.parametrize("suffix", sorted(SUFFIXES))
def test_every_listed_format_is_read(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "a").mkdir()
    Image.new("L" if suffix == ".pgm" else "RGB", (8, 8), 128).save(tmp_path / "a" / f"1{suffix}")
    assert load(f"folder:{tmp_path}", size=8).batch([0]).shape == (1, 3, 8, 8)
