"""What somebody else wrote, and what was mistyped: shown as it is, refused in a sentence, never a traceback."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from deepfool.cli import main
from deepfool.cli.output import echo, make_console, plain
from deepfool.errors import DataError, InputError
from tests.cli.test_evaluate import COMMON, call

ODD = "d[v2] [/x] [red]a\x1b[31m\x1b]0;title\x07b\x9bc\r\u202ed"
SHOWN = r"d[v2] [/x] [red]a\x1b[31m\x1b]0;title\x07b\x9bc\r\u202ed"


def harmful(text):
    return any(letter in text for letter in "\x1b\x07\x9b\r\u202e")


def test_control_characters_are_written_out():
    assert plain(ODD) == SHOWN
    assert plain("two\nlines\tand Größe, 日本, …") == "two\nlines\tand Größe, 日本, …"
    assert plain(os.fsdecode(b"a\xff.png")) == r"a\udcff.png"


@pytest.mark.parametrize("terminal", [False, True])
def test_a_console_shows_names_as_they_are(terminal, capsys, monkeypatch):
    from rich.table import Table

    monkeypatch.setenv("NO_COLOR", "1")
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("COLUMNS", "200")
    console = make_console(width=200)
    table = Table(ODD, title=ODD, caption=ODD)
    table.add_row(ODD)
    console.print(table)
    console.print(f"line {ODD}", highlight=False)
    echo(f"echo {ODD}")
    echo(f"echo {ODD}", err=True, fg="red")
    out, err = capsys.readouterr()
    assert out.count(SHOWN) == 6
    assert SHOWN in err
    assert all(each not in out for each in ("\x1b]0", "\x1b[31m", "\x07", "\x9b", "\u202e"))


def test_progress_bars_show_names_as_they_are():
    import io

    from rich.console import Console
    from rich.progress import Progress

    from deepfool.cli.progress import showing

    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, color_system=None, width=120)
    with Progress(showing("description"), console=console) as bars:
        bars.add_task(ODD)
    assert SHOWN in stream.getvalue()
    assert "\x1b]0" not in stream.getvalue()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose manifest was written by somebody with a sense of humour."""
    folder = tmp_path_factory.mktemp("odd") / "run"
    call(*COMMON, "--limit", 12, "--out", folder, "--no-report", "-q")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["data"]["name"] = manifest["model"]["spec"] = ODD
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


@pytest.mark.parametrize("words", [("show",), ("table",), ("table", "--format", "csv"), ("show", "--json")])
def test_names_of_a_run(run, words):
    done = call(words[0], run, *words[1:])
    assert ";title" in done.stdout
    assert not harmful(done.stdout.replace("\r\n", "\n"))


def test_classes_of_an_npz(tmp_path):
    x = np.random.default_rng(0).random((4, 6), np.float32)
    np.savez(tmp_path / "a.npz", x=x, y=[0, 1, 2, 3], classes=[ODD] * 4)
    done = call(
        "evaluate", "--model", "py:tests.nets:small", "--data", f"npz:{tmp_path / 'a.npz'}", "--out", tmp_path / "r"
    )
    assert not harmful(done.output)


@pytest.mark.parametrize(
    ("word", "match"),
    [
        ("model=1", "its own option: --model"),
        ("data=1", "its own option: --data"),
        ("attack=fgsm", "its own option: --attack"),
        ("out=here", "its own option: --out"),
        ("batch_size=3", "its own option: --batch-size"),
        ("bounds=3", "its own option: --bounds"),
        ("compile=true", "its own option"),
        ("x=1", "x is not a knob"),
        ("labels=[1]", "labels is not a knob"),
        ("on_progress=1", "on_progress is not a knob"),
        ("mask=" + 20_000 * "[", "mask must be"),
        ("max_iter=NaN", "max_iter must be"),
        ("tighten=no", "tighten must be True or False"),
        ("threshold=NaN", "threshold must be"),
        ("1=2", "NAME=VALUE"),
    ],
    ids=lambda value: value[:20],
)
def test_knobs_that_are_none(word, match, tmp_path):
    with pytest.raises(InputError, match=match):
        call(*COMMON, "--limit", 2, "--knob", word, "--out", tmp_path / "run", "-q")


def test_knobs_of_attack_and_finetune(tmp_path):
    Image.new("L", (28, 28)).save(tmp_path / "a.png")
    for word in ("model=1", "source=1", "x=1", "p=1", "bounds=1", "attack=a", "labels=1", "seed=3"):
        with pytest.raises(InputError, match=r"no knob|not a knob|its own option"):
            call("attack", tmp_path / "a.png", "--model", "lenet-mnist", "--knob", word)
    for word in ("model=1", "judges=1", "data=1", "recipe=1", "checkpoint=1"):
        with pytest.raises(InputError, match=r"no knob|not a knob|its own option"):
            call("finetune", "--model", "lenet-mnist", "--data", "mnist-sample", "--split", "test", "--out", tmp_path,
                 "--knob", word, "-q")  # fmt: skip
    with pytest.raises(InputError, match="given twice"):
        call(*COMMON, "--knob", "max_iter=1", "--knob", "max_iter=2", "--out", tmp_path / "run")


@pytest.mark.parametrize(
    "attack",
    [
        "os:system", "os:getcwd", "os:rename", "os:path", "os:nothing", "posixpath:join", "builtins:print",
        "builtins:dict", "deepfool:affine", "deepfool:Classifier", "deepfool:evaluate", "nowhere:here", ":", "a:", ":b",
        ".a:b", "deepfol", "", "deepfool:tighten", "math:hypot",
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", ["evaluate", "attack"])
def test_what_is_no_attack(attack, command, tmp_path):
    Image.new("L", (28, 28)).save(tmp_path / "a.png")
    words = (*COMMON, "--limit", 2, "--out", tmp_path / "run", "-q")
    if command == "attack":
        words = ("attack", tmp_path / "a.png", "--model", "lenet-mnist")
    with pytest.raises(InputError, match=r"attack|data must be a name"):
        call(*words, "--attack", attack)


def test_splits_of_data_that_have_none(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.random.default_rng(0).random((4, 6), np.float32), y=[0, 1, 2, 3])
    words = (
        "evaluate",
        "--model",
        "py:tests.nets:small",
        "--data",
        f"npz:{tmp_path / 'a.npz'}",
        "--out",
        tmp_path / "r",
    )
    for split in ("train", "test"):
        with pytest.raises(InputError, match="no splits to choose from"):
            call(*words, "--split", split)
    call(*words, "-q", "--no-report")


def test_pictures_that_cannot_be_read(tmp_path):
    (tmp_path / "eps.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n")
    (tmp_path / "folder.png").mkdir()
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "link.png").symlink_to(tmp_path / "nowhere.png")
    for name in ("eps.png", "folder.png", "pipe.png", "link.png", "x" * 300 + ".png"):
        with pytest.raises((DataError, OSError), match=r"cannot be read as an image|no such file|too long"):
            call("attack", tmp_path / name, "--model", "lenet-mnist")


def test_errors_of_the_machine_end_in_one_line(monkeypatch, capsys):
    def fails(error):
        def raising():
            raise error

        monkeypatch.setattr("deepfool.cli.app", raising)
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        return capsys.readouterr().err

    assert fails(PermissionError(13, "Permission denied", "/a\x1b[31m")) == "error: /a\\x1b[31m: Permission denied.\n"
    assert "does not have enough memory" in fails(MemoryError())
    assert fails(InputError(ODD)) == f"error: {SHOWN}\n"
    with pytest.raises(ZeroDivisionError):  # a mistake of ours is no bad input
        fails(ZeroDivisionError())


def test_the_program_itself_shows_no_traceback(tmp_path):
    words = ["evaluate", "--model", "lenet-mnist", "--data", "mnist-sample", "--attack", "os:system", "--out", "r"]
    done = subprocess.run([sys.executable, "-m", "deepfool", *words], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(
        "error: the attack 'os:system' must be a function (model, x, *, ...)"
    )
