from __future__ import annotations

import hashlib
import random
import socket
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from deepfool.datasets.download import download
from deepfool.errors import DataError
from tests.datasets.conftest import Server

CONTENT = random.Random(0).randbytes(1_000_000)
HASH = f"md5:{hashlib.md5(CONTENT).hexdigest()}"


@pytest.fixture
def url(server: Server) -> str:
    server.files["file.bin"] = CONTENT
    return f"{server.url}/file.bin"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_downloads_the_file_and_counts_the_bytes(url: str, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    path = download([url], tmp_path / "file.bin", hash=HASH, on_bytes=lambda *pair: seen.append(pair))
    assert path.read_bytes() == CONTENT
    assert seen[0] == (0, len(CONTENT))
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert names(tmp_path) == ["file.bin"]


def test_a_correct_file_is_not_downloaded_again(url: str, server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin").write_bytes(CONTENT)
    download([url], tmp_path / "file.bin", hash=HASH)
    assert server.requests == []


def test_an_interrupted_transfer_is_resumed(url: str, server: Server, tmp_path: Path) -> None:
    server.cut = 2
    path = download([url], tmp_path / "file.bin", hash=HASH)
    assert path.read_bytes() == CONTENT
    assert [asked for _, asked in server.requests] == [None, "bytes=500000-", "bytes=750000-"]


def test_an_interrupted_transfer_starts_again_without_ranges(url: str, server: Server, tmp_path: Path) -> None:
    server.cut, server.ranges = 1, False
    assert download([url], tmp_path / "file.bin", hash=HASH).read_bytes() == CONTENT
    assert len(server.requests) == 2


def test_a_later_call_resumes(url: str, server: Server, tmp_path: Path) -> None:
    server.cut = 99
    with pytest.raises(DataError, match=r"file\.bin.*interrupted after 937500 of 1000000 bytes"):
        download([url], tmp_path / "file.bin", hash=HASH)
    assert names(tmp_path) == ["file.bin.part"]  # never half a file under the final name
    server.cut = 0
    assert download([url], tmp_path / "file.bin", hash=HASH).read_bytes() == CONTENT
    assert server.requests[-1][1] == "bytes=937500-"


def test_a_complete_part_is_only_renamed(url: str, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT)  # killed between the last byte and the rename
    assert download([url], tmp_path / "file.bin", hash=HASH).read_bytes() == CONTENT


@pytest.mark.parametrize("left", [b"other bytes", CONTENT + b"too many"])
def test_wrong_bytes_from_an_earlier_run_are_dropped(url: str, tmp_path: Path, left: bytes) -> None:
    (tmp_path / "file.bin.part").write_bytes(left)
    assert download([url], tmp_path / "file.bin", hash=HASH).read_bytes() == CONTENT


def test_a_wrong_hash_is_refused_and_nothing_is_left(url: str, server: Server, tmp_path: Path) -> None:
    server.files["file.bin"] = CONTENT[:-1] + b"?"
    with pytest.raises(DataError, match=rf"file\.bin.*wrong hash, expected {HASH}"):
        download([url], tmp_path / "file.bin", hash=HASH)
    assert names(tmp_path) == []
    assert len(server.requests) == 1


def test_the_next_mirror_is_tried(url: str, server: Server, tmp_path: Path) -> None:
    mirrors = [f"http://127.0.0.1:{free_port()}/file.bin", f"{server.url}/missing", url]
    assert download(mirrors, tmp_path / "file.bin", hash=HASH).read_bytes() == CONTENT


def test_unreachable_servers_are_named_at_once(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One request each: a refused request is not repeated, and there is no waiting."""
    dead = f"http://127.0.0.1:{free_port()}/file.bin"
    asked: list[str] = []
    real = urllib.request.urlopen

    def ask(request: urllib.request.Request, **options: Any) -> Any:
        asked.append(request.full_url)
        return real(request, **options)

    monkeypatch.setattr(urllib.request, "urlopen", ask)
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it slept"))
    with pytest.raises(DataError, match=rf"{dead}: .*refused.*{server.url}/file\.bin: HTTP 404"):
        download([dead, f"{server.url}/file.bin"], tmp_path / "file.bin", hash=HASH)
    assert asked == [dead, f"{server.url}/file.bin"]
    assert names(tmp_path) == []


def test_a_silent_server_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepfool.datasets.download.TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(DataError, match="timed out"):
            download([f"http://127.0.0.1:{silent.getsockname()[1]}/x"], tmp_path / "x", hash=HASH)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
