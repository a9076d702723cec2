"""The text of the page, and the command that repeats a run."""

import importlib.util
import itertools
import json
import shlex

import pytest
from typer.testing import CliRunner

from deepfool import Run
from deepfool.cli import app
from deepfool.datasets import load
from deepfool.models.sources import resolve
from deepfool.reporting.naming import names_of_run
from deepfool.reporting.page import render_report
from deepfool.reporting.provenance import repeat_command
from deepfool.reporting.references import MEASURED, find_references
from deepfool.reporting.wording import write_verdict
from deepfool.runs import evaluation, manifests
from tests.reporting.simulated import simulate

DIGITS = {"spec": None, "name": "mnist-sample", "split": "test", "size": None, "classes": list("0123456789")}


def tell(run, p=2.0, family="mnist"):
    known = [each for each in find_references(p) if "paper" in each.source]
    return " ".join(write_verdict(run, run.records(), family, known).all)


def test_the_place_among_networks(tmp_path):
    run = Run(simulate(tmp_path / "run", 400, data=DIGITS))  # rho_adv is about 0.16: between the paper's two on MNIST
    assert "more robust than FC500-150-10 (0.11, the paper, Table 1)" in tell(run)
    assert "less robust than LeNet (0.20, the paper, Table 1)" in tell(run)
    assert "robust than" not in tell(run, family=None)


def test_runs_inside_bounds_are_not_placed_among_those_without(runs):
    run = Run(runs / "linf")
    assert "Among networks" not in tell(run, p=float("inf"))
    assert "None of the known values was measured in the same way" in render_report([run], gallery=False)
    assert "None of the known values" not in render_report([Run(runs / "fc")], gallery=False)


def test_a_run_with_searches_without_an_answer_has_no_place_among_networks(tmp_path):
    run = Run(simulate(tmp_path / "run", 400, data=DIGITS, censored=100))
    assert "not known" in tell(run)
    assert "robust than" not in tell(run)
    assert "300 of the 400 samples" in tell(run)


def test_without_an_answer_for_most_samples_there_is_no_median(tmp_path):
    assert "Half of the samples" in tell(Run(simulate(tmp_path / "few", 100, censored=40)))
    assert "Half of the samples" not in tell(Run(simulate(tmp_path / "most", 100, censored=60)))


def test_measured_values_hold_for_the_weights_that_ship(monkeypatch):
    names = {each.name for each in find_references(2) if each.source.startswith("measured")}
    assert names == {each.name for each in MEASURED}
    assert "lenet-mnist" not in {each.name for each in find_references(2, but=["lenet-mnist"])}
    from deepfool.reporting import references

    other = [references._Measured("lenet-mnist", 2, 0.5, "0000")]
    monkeypatch.setattr(references, "MEASURED", other)
    assert not [each for each in find_references(2) if each.source.startswith("measured")]


def test_the_command_makes_the_same_run(runs, tmp_path):
    """Running the command from the page, into another folder, gives the same rows."""
    for name in ("lenet", "linf"):
        words = shlex.split(repeat_command(Run(runs / name)))
        done = CliRunner().invoke(app, [*words[1:], "--out", str(tmp_path / name), "--quiet", "--no-report"])
        assert done.exit_code == 0, done.output
        then, now = (list(Run(folder / name).rows()) for folder in (runs, tmp_path))
        assert Run(runs / name).identity == Run(tmp_path / name).identity
        assert [row["r_p"] for row in then] == [row["r_p"] for row in now]


def test_the_command_of_odd_knobs(tmp_path):
    folder = simulate(tmp_path / "run", 10, model="timm:resnet18")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["data"] |= {"spec": "folder:some where", "size": 64, "split": "train"}
    manifest["identity"] |= {"seed": 3, "dtype": "float64", "skip_misclassified": True, "p": "inf"}
    manifest["identity"]["attack"]["knobs"] |= {"max_iter": 7, "bounds": [0, 1]}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert repeat_command(Run(folder)) == (
        "deepfool evaluate --model timm:resnet18 --data 'folder:some where' --attack deepfool --p inf --split train "
        "--size 64 --bounds 0,1 --knob max_iter=7 --dtype float64 --seed 3 --skip-misclassified"
    )


CHANGES = {
    "indices": ({"indices": "3-5"}, ["--indices", "3-5"]),
    "attack": ({"attack": "smallest"}, ["--attack", "smallest"]),
    "p": ({"p": float("inf")}, ["--p", "inf"]),
    "dtype": ({"dtype": "float64"}, ["--dtype", "float64"]),
    "compile": ({"compile": True}, ["--compile"]),
    "seed": ({"seed": 3}, ["--seed", "3"]),
    "skip_misclassified": ({"skip_misclassified": True}, ["--skip-misclassified"]),
    "perturbations": ({"save_perturbations": True}, ["--save-perturbations"]),
}
"""For each key of a run's identity: arguments of evaluate() that change it, and the options that repeat them."""

GIVEN = {"deepfool", "model", "data"}
"""Keys that follow from the installed version, --model and --data."""


def identify(**arguments):
    """The identity that evaluate() would write, without a run."""
    given = {"attack": "deepfool", "p": 2, "dtype": "float32", "seed": 0, "skip_misclassified": False, **arguments}
    rest = {"keep_perturbations": given.pop("save_perturbations", False), "compile": given.pop("compile", False)}
    data, indices = load("mnist-sample"), given.pop("indices", None)
    knobs = given.pop("knobs", {})
    job = evaluation.describe_job("fc500-mnist", SOURCE, given.pop("attack"), knobs=knobs, **given, **rest)
    return evaluation._identify(job, data, manifests.select(len(data), indices=indices))


SOURCE = resolve("fc500-mnist")


def command_of(folder, identity):
    """The command of a run with this identity."""
    manifest = json.loads((simulate(folder, 10, model="fc500-mnist") / "manifest.json").read_text())
    manifest["identity"] = json.loads(json.dumps(identity))
    manifest["data"]["spec"] = "mnist-sample"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return shlex.split(repeat_command(Run(folder)))


def test_the_command_repeats_every_key_of_the_identity(tmp_path):
    """A new key of the identity needs a line in CHANGES, and an option in the command."""
    plain = identify()
    assert set(identify(compile=True)) == set(CHANGES) | GIVEN
    usual = command_of(tmp_path / "plain", plain)
    for key, (arguments, options) in CHANGES.items():
        changed = identify(**arguments)
        assert {name for name in changed if changed[name] != plain.get(name)} == {key}
        words = command_of(tmp_path / key, changed)
        assert words != usual, key
        assert " ".join(options) in " ".join(words), key


def test_the_command_repeats_every_knob(tmp_path):
    values = {
        "overshoot": 0.1, "max_iter": 9, "candidates": 3, "bounds": (0, 1), "target": 2, "threshold": 0.5,
        "outputs": "logits", "tighten": True,
    }  # fmt: skip
    in_memory = {"mask"}  # a tensor, which no option can give
    assert set(identify()["attack"]["knobs"]) == set(values) | in_memory
    words = command_of(tmp_path / "run", identify(knobs=values))
    assert "--bounds 0,1" in " ".join(words)
    given = dict(word.split("=") for before, word in itertools.pairwise(words) if before == "--knob")
    assert {name: json.loads(value) if name != "outputs" else value for name, value in given.items()} == {
        name: value for name, value in values.items() if name != "bounds"
    }


def test_names_where_the_data_have_none(tmp_path):
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision, which knows the names, is not installed")
    where = {"spec": None, "name": "d", "split": "test", "size": None, "classes": ["", "", "", "my shark"]}
    run = Run(simulate(tmp_path / "run", 5, model="efficientnet-lite0", data=where))
    names = names_of_run(run)
    assert len(names) == 1000
    assert names[2:5] == ["great white shark", "my shark", "hammerhead"]


def test_objects_in_memory_have_no_command(tmp_path):
    assert repeat_command(Run(simulate(tmp_path / "run"))) is None
