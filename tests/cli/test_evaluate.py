"""The commands from end to end, on the networks and samples that ship with the package."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from deepfool import Run
from deepfool.datasets import bundled
from deepfool.errors import InputError, RunError
from tests import nets
from tests.calling import call
from tests.waiting import PATIENCE, wait_until

ROOT = Path(__file__).parents[2]
COMMON = ("evaluate", "--model", "fc500-mnist", "--data", "mnist-sample")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    call(*COMMON, "--limit", 40, "--save-perturbations", "--out", folder / "l2")
    call(*COMMON, "--limit", 40, "--p", "inf", "--bounds", "0,1", "--out", folder / "linf", "--quiet")
    return folder


def test_evaluate_writes_data_to_stdout_and_talk_to_stderr(runs, tmp_path):
    done = call(*COMMON, "--limit", 30, "--batch-size", 10, "--out", tmp_path / "run", "--json")
    summary = json.loads(done.stdout)
    assert summary["samples"] == 30
    assert summary["rho_adv"]["exact"]
    assert 0.05 < summary["rho_adv"]["low"] < summary["rho_adv"]["value"] < summary["rho_adv"]["high"] < 0.3
    assert "rho_adv (l2)" in done.stderr
    assert "30/30 samples" in done.stderr
    assert "run folder:" in done.stderr
    quiet = call(*COMMON, "--limit", 30, "--batch-size", 10, "--out", tmp_path / "run", "--quiet")
    assert (quiet.stdout, quiet.stderr) == ("", "")


def test_the_default_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call(*COMMON, "--indices", "3-5", "--knob", "max_iter=20", "--knob", "overshoot=0.05", "--quiet")
    run = Run("runs/fc500-mnist-mnist-sample-deepfool-p2-max_iter=20-overshoot=0.05-samples=3-5")
    assert [row["index"] for row in run.rows()] == [3, 4, 5]
    assert run.identity["attack"]["knobs"]["max_iter"] == 20
    assert run.identity["attack"]["knobs"]["overshoot"] == 0.05


def test_the_data_is_loaded_once(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(bundled, "read_sample", lambda name, read=bundled.read_sample: calls.append(name) or read(name))
    call(*COMMON, "--limit", 5, "--out", tmp_path / "run", "--quiet")
    assert calls == ["mnist-sample"]
    assert "The pictures are missing" not in (tmp_path / "run" / "report.html").read_text()
    assert Run(tmp_path / "run").manifest["data"]["spec"] == "mnist-sample"


def test_the_manifest_knows_bounds_and_norm(runs):
    run = Run(runs / "linf")
    assert run.identity["attack"]["knobs"]["bounds"] == [0, 1]
    assert run.identity["p"] == "inf"


def test_show(runs):
    shown = call("show", runs / "linf").stdout
    assert "fc500-mnist on mnist-sample" in shown
    assert "deepfool, linf, in [0, 1], max_iter 50" in shown
    summary = json.loads(call("show", runs / "l2", "--json").stdout)
    assert len(summary["classes"]) == 10
    assert sum(map(sum, summary["confusion"])) == 40


def test_shards_and_merge(runs, tmp_path):
    for i in (1, 2):
        call(*COMMON, "--limit", 40, "--shard", f"{i}/2", "--save-perturbations", "--out", tmp_path / str(i), "-q")
    done = call("merge", tmp_path / "1", tmp_path / "2", "-o", tmp_path / "both")
    assert "40 samples, complete" in done.stderr
    compared = json.loads(call("compare", runs / "l2", tmp_path / "both", "--json").stdout)
    assert compared["pairs"] == 40
    assert abs(compared["mean_difference"]["value"]) < 1e-5


def test_compare(runs, tmp_path):
    with pytest.raises(RunError, match="different norms"):
        call("compare", runs / "l2", runs / "linf")
    done = call("compare", runs / "l2", runs / "linf", "--norm", "l2")
    assert "Wilcoxon" in done.stdout
    found = json.loads(call("compare", runs / "l2", runs / "linf", "--norm", "l2", "--json").stdout)
    assert found["larger_in_b"] == 40, "linf perturbations are longer in l2"
    assert found["p_value"] < 1e-6


def test_verify(runs):
    done = call("verify", runs / "l2")
    assert "40 of 40" in done.stdout
    assert "norms: 40 of 40 match the rows" in done.stdout
    found = json.loads(call("verify", runs / "l2", "--json").stdout)
    assert found["holds"]
    assert [trial["name"] for trial in found["trials"]] == ["float32", "float64", "batch", "8-bit"]


def test_a_model_that_draws_is_told_in_one_line(tmp_path):
    """On stderr at once, and wherever the figures are shown."""
    (tmp_path / "x.npz").write_bytes(npz(nets.points(20)))
    words = ["evaluate", "--model", "py:tests.nets:noisy", "--data", f"npz:{tmp_path / 'x.npz'}", "--out", "run", "-q"]
    done = subprocess.run(
        [sys.executable, "-m", "deepfool", *words], capture_output=True, text=True, check=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src"), *sys.path])},
    )  # fmt: skip
    assert done.stderr.startswith("warning: the model gave other scores for the same inputs")
    assert done.stderr.count("\n") == 1
    assert "other scores for the same inputs" in call("show", tmp_path / "run").stdout
    assert "other scores for the same inputs" in (tmp_path / "run" / "report.html").read_text()


def npz(data):
    stream = io.BytesIO()
    np.savez(stream, x=data[0].numpy(), y=data[1].numpy())
    return stream.getvalue()


def test_an_empty_folder_name_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="--out must name a folder"):
        call(*COMMON, "--limit", 2, "--out", "")
    assert list(tmp_path.iterdir()) == []


def test_a_ray_cluster_that_is_not_there_is_told_soon(tmp_path):
    begin = time.monotonic()
    for address in ("127.0.0.1:1", "ray://127.0.0.1:1", "no-such-host.invalid:6379"):
        with pytest.raises(RunError, match="no Ray cluster answers at"):
            call(*COMMON, "--engine", "ray", "--ray-address", address, "--out", tmp_path / "run")
    assert time.monotonic() - begin < 45
    with pytest.raises(InputError, match="HOST:PORT"):
        call(*COMMON, "--engine", "ray", "--ray-address", "somewhere", "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("--indices", "0-99999999999"), r"indices must lie in 0\.\.999, got 1000"),
        (("--device", "meta"), "the device 'meta' cannot be used"),
        (("--bounds", "0"), "two numbers such as 0,1"),
        (("--shard", "3"), "look like 3/16"),
        (("--knob", "max_iter"), "NAME=VALUE"),
        (("--knob", "p=1"), "its own option"),
        (("--batch-size", "many"), "a whole number or auto"),
        (("--p", "0.5"), r"p must be 0 or a number in \[1, inf\]"),
        (("--ray-address", "x:1"), "--engine ray"),
    ],
)
def test_wrong_options(words, match, tmp_path):
    with pytest.raises(InputError, match=match):
        call(*COMMON, *words, "--out", tmp_path / "run")


def test_ctrl_c_on_the_command_line(tmp_path):
    """A real process and a real signal: exit code 130, whole batches, and how to resume.

    By a slow attack, so that the run is not over before the signal comes, however busy the machine is.
    """
    slow = ("--attack", "smallest", "--knob", "budget=1000")
    words = [*COMMON, *slow, "--batch-size", "4", "--out", str(tmp_path / "run")]
    process = subprocess.Popen(
        [sys.executable, "-m", "deepfool", *words], stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *sys.path]), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    records = tmp_path / "run" / "records.jsonl"
    wait_until(lambda: records.exists() and records.stat().st_size, process)
    process.send_signal(signal.SIGINT)
    _, talk = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, talk
    count = Run(tmp_path / "run").count
    assert 0 < count < 1000
    assert count % 4 == 0
    assert "finishing the batch" in talk
    assert f"stopped after {count} of 1000 samples" in talk
    assert "Rerun the command to resume." in talk
    assert "Traceback" not in talk
