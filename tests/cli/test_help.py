"""What every command owes its user: an example that would run, completion, and a doctor that knows the extras."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from deepfool.attacks.shared.registry import ATTACKS, complete_knobs, find_attack, list_knobs, takes
from deepfool.cli import app, doctor
from deepfool.cli.attacks import GUIDES, HAVE_OPTIONS, IN_PYTHON_ONLY
from deepfool.cli.evaluate import read_knobs
from deepfool.errors import InputError
from tests.commands import Refused, parse, walk

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = Path(__file__).parents[2]
COMMANDS = list(walk())


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[" ".join(path) for path, _ in COMMANDS])
def test_help_ends_with_an_example_that_parses(path, command):
    shown = CliRunner().invoke(app, [*path[1:], "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    example = re.search(r"Example: (deepfool .*?)(?:\. |\s*$)", shown.output)
    assert example, f"{' '.join(path)} --help ends without an example"
    context = parse(example[1])
    if not hasattr(command, "commands"):
        assert context.command.name == path[-1]


def test_the_examples_are_really_parsed():
    with pytest.raises(Refused):
        parse("deepfool evaluate --model lenet-mnist --data mnist-sample --modle x")
    with pytest.raises(Refused):
        parse("deepfool evalute --model lenet-mnist")
    with pytest.raises(Refused):
        parse("deepfool --no-such-option")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell):
    """`deepfool --show-completion` writes a script that asks the program itself."""
    env = {**os.environ, "_DEEPFOOL_COMPLETE": f"source_{shell}"}
    code = "import sys; sys.argv[0] = 'deepfool'; from deepfool.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert "_DEEPFOOL_COMPLETE" in done.stdout
    assert "deepfool" in done.stdout


def test_completion_knows_commands_and_options():
    def complete(line):
        env = {**os.environ, "_DEEPFOOL_COMPLETE": "complete_bash", "COMP_WORDS": line}
        env["COMP_CWORD"] = str(len(line.split(" ")) - 1)
        code = "import sys; sys.argv[0] = 'deepfool'; from deepfool.cli import main; main()"
        return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True).stdout.split()

    assert complete("deepfool ev") == ["evaluate"]
    assert "--save-perturbations" in complete("deepfool evaluate --save")


def test_the_doctor_speaks_to_people(monkeypatch, tmp_path):
    monkeypatch.setenv("DEEPFOOL_HOME", str(tmp_path / "kept"))
    shown = CliRunner().invoke(app, ["doctor"])
    assert shown.exit_code == 0
    lines = re.sub(r"[ \n]+", " ", shown.output)
    for words in ("torch 2.", "device cpu", "data mnist test not fetched deepfool data fetch mnist", "extra ray"):
        assert words in lines
    assert not (tmp_path / "kept").exists(), "looking must not make folders"


def test_the_doctor_speaks_to_programs(monkeypatch, tmp_path):
    monkeypatch.setenv("DEEPFOOL_HOME", str(tmp_path))
    (tmp_path / "something").write_bytes(b"12345")
    monkeypatch.setitem(doctor.EXTRAS, "ray", (("no-such-package",), "a cluster"))
    found = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).output)
    assert found["cache"] == {"folder": str(tmp_path), "from": "DEEPFOOL_HOME", "writable": True, "bytes": 5}
    ray = next(each for each in found["extras"] if each["extra"] == "ray")
    assert ray["add"] == 'pip install "deepfool[ray]"'
    shipped = {model["name"] for model in found["models"] if model["state"] == "shipped"}
    assert shipped >= {"lenet-mnist", "fc500-mnist", "lenet-cifar10"}


def test_the_doctor_knows_every_extra():
    """Those for users; `test`, `docs` and bundles of others are not theirs to miss."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    own = {
        extra: tuple(re.match(r"[\w.-]+", each)[0] for each in needs)
        for extra, needs in project["optional-dependencies"].items()
        if extra not in ("test", "docs") and not any(each.startswith("deepfool[") for each in needs)
    }
    assert {extra: packages for extra, (packages, _) in doctor.EXTRAS.items()} == own


@pytest.mark.parametrize("columns", [60, 140])
def test_help_shows_whole_options_and_flags_as_flags(columns):
    """Whatever the width: no option is cut off, and a switch takes no value."""
    for path, command in COMMANDS:
        shown = CliRunner().invoke(app, [*path[1:], "--help"], env={"COLUMNS": str(columns)}).output
        for parameter in command.params:
            for option in (*parameter.opts, *parameter.secondary_opts):
                if option.startswith("--"):
                    assert re.search(rf"{option}(?![\w-])", shown), f"{' '.join(path)} --help lacks {option}"
        assert "<bool>" not in shown
        assert "…" not in shown


def test_the_attacks_and_their_knobs_are_listed():
    """Every attack, every knob with its default, and an example that would run."""
    found = json.loads(CliRunner().invoke(app, ["attacks", "--json"]).output)
    assert [each["attack"] for each in found] == list(ATTACKS)
    for each in found:
        known = list_knobs(find_attack(each["attack"]))
        assert {knob["name"] for knob in each["knobs"]} == set(known) - set(HAVE_OPTIONS) - set(IN_PYTHON_ONLY)
        assert all(knob["about"] for knob in each["knobs"]), each["attack"]
        assert each["about"]
        context = parse(each["example"])
        assert context.params["attack"] == each["attack"]
        complete_knobs(find_attack(each["attack"]), read_knobs(context.params["knob"]))
    shown = CliRunner().invoke(app, ["attacks", "smallest"]).output
    assert re.search(r"budget +100 +passes per sample", shown)
    assert "Example: deepfool evaluate" in shown
    overview = CliRunner().invoke(app, ["attacks"]).output
    assert "overshoot=0.02" in overview
    assert "eps=..." in overview


@pytest.mark.parametrize("name", list(ATTACKS))
def test_the_listed_norms_are_those_that_the_attack_takes(name):
    attack, listed = find_attack(name), GUIDES[name].norms
    if takes(attack, "p"):
        taken = [p for p in (1, 1.5, 2, float("inf")) if can_run(attack, p)]
        assert taken == ([1, 1.5, 2, float("inf")] if listed.startswith("any") else [1, 2, float("inf")])
    else:
        assert listed in ("0", "2", "inf")


def can_run(attack, p):
    try:
        attack(torch.nn.Linear(2, 2), torch.rand(1, 2), p=p)
    except InputError:
        return False
    return True
