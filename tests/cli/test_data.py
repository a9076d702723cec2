from __future__ import annotations

import dataclasses
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deepfool.cli import app, main
from deepfool.datasets import catalog
from tests.datasets.conftest import Server
from tests.waiting import PATIENCE


@pytest.fixture
def known(tiny: catalog.Builtin, monkeypatch: pytest.MonkeyPatch) -> catalog.Builtin:
    """The small data set is in the catalogue as `mnist`."""
    small = dataclasses.replace(tiny, name="mnist")
    monkeypatch.setitem(catalog.BUILTINS, "mnist", small)  # type: ignore[arg-type]
    return small


def test_fetch_says_each_step_once(known: catalog.Builtin, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["data", "fetch", "mnist", "--home", str(tmp_path), "--source", "official"])
    assert result.exit_code == 0, result.output
    assert result.stdout == ""  # messages go to stderr
    lines = result.stderr.splitlines()
    assert lines == [
        *(f"mnist: downloading {archive.file}" for archive in known.archives),
        "mnist: reading the archives",
        "mnist: writing the cache",
        f"mnist: fetched (official) and checked: {tmp_path / 'datasets'}",
    ]
    again = CliRunner().invoke(app, ["data", "fetch", "mnist", "--home", str(tmp_path)])
    assert again.stderr == f"mnist: already in the cache, checked: {tmp_path / 'datasets'}\n"


def test_list_shows_what_is_there(known: catalog.Builtin, tmp_path: Path) -> None:
    def listed() -> dict[tuple[str, str], dict[str, object]]:
        result = CliRunner().invoke(app, ["data", "list", "--home", str(tmp_path), "--json"])
        return {(entry["name"], entry["split"]): entry for entry in json.loads(result.stdout)}

    assert listed()["mnist", "test"]["state"] == "not fetched"
    assert listed()["mnist-sample", "test"]["state"] == "shipped"
    CliRunner().invoke(app, ["data", "fetch", "mnist", "--home", str(tmp_path)])
    entry = listed()["mnist", "test"]
    assert (entry["state"], entry["samples"]) == ("cached", 20)
    assert entry["bytes"] == (tmp_path / "datasets" / "mnist-test.safetensors").stat().st_size
    table = CliRunner().invoke(app, ["data", "list", "--home", str(tmp_path)]).stdout
    (line,) = [line for line in table.splitlines() if line.split()[:2] == ["mnist", "train"]]
    assert line.split()[2:5] == ["30", "1x28x28", "cached"]
    assert line.split()[-1] == str(tmp_path / "datasets" / "mnist-train.safetensors")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The program as a shell calls it, in this process."""
    monkeypatch.setattr(sys, "argv", ["deepfool", "data", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_a_dead_server_ends_in_one_line_and_code_2(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DEEPFOOL_HOME", str(tmp_path))
    monkeypatch.setenv("DEEPFOOL_MIRROR", server.url)
    assert run(monkeypatch, "fetch", "mnist", "--source", "official") == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: mnist could not be fetched. Tried official: train-images-idx3-ubyte.gz")
    assert "HTTP 404" in last
    assert not (tmp_path / "datasets").exists()


def test_a_wrong_name_ends_in_code_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "fetch", "mnits") == 2
    assert capsys.readouterr().err == (
        "error: mnits is not a data set that can be fetched. Hint: choose from mnist, cifar10.\n"
    )


def test_a_terminal_gets_a_bar(server: Server, tmp_path: Path) -> None:
    """On a pseudo-terminal: the bytes are drawn, and errors stay on the screen."""
    server.files["cifar-10-binary.tar.gz"] = bytes(1 << 20)
    ours, theirs = pty.openpty()
    environment = os.environ | {
        "DEEPFOOL_HOME": str(tmp_path), "DEEPFOOL_MIRROR": server.url, "TERM": "xterm", "COLUMNS": "140",
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "deepfool", "data", "fetch", "cifar10", "--source", "official"],
        env=environment, stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    try:
        while block := os.read(ours, 65536):
            shown += block
    except OSError:  # Linux: the other end was closed
        pass
    os.close(ours)
    assert process.wait(timeout=PATIENCE) == 2
    text = shown.decode()
    assert "cifar10: downloading cifar-10-binary.tar.gz" in text
    assert "/1.0 MB" in text
    assert "cifar10: official did not work: cifar-10-binary.tar.gz could not be downloaded" in text
    assert not list(tmp_path.rglob("*.safetensors"))
