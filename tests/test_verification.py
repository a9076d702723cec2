"""What a run says is checked against what its perturbations do; a run that lies is found out."""

import json
import sys

import numpy as np
import pytest
import safetensors.numpy
import torch
from typer.testing import CliRunner

from deepfool import Run, evaluate
from deepfool.cli import app
from deepfool.errors import RunError
from deepfool.runs.records import RECORDS
from deepfool.runs.verification import verify
from tests import nets


def measure(out, **options):
    return evaluate(
        nets.small(), nets.points(40), out=out, **{"save_perturbations": True, "batch_size": 16, **options}
    )  # fmt: skip


def again(run, **options):
    return verify(run, nets.small(), nets.points(40), **options)


def tamper(run, change):
    """Rewrite the rows."""
    rows = [change(json.loads(line)) for line in (run.folder / RECORDS).read_text().splitlines()]
    (run.folder / RECORDS).write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_an_honest_run_holds(tmp_path, dtype):
    found = again(measure(tmp_path / "run", dtype=dtype, bounds=(0, 1)))
    assert found.holds
    assert found.rows == 40
    trials = {trial.name: trial for trial in found.trials}
    assert trials[dtype].changed == trials[dtype].same == found.fooled
    assert {"float32", "float64", "batch", "8-bit"} <= set(trials)
    assert trials["batch"].changed == found.fooled
    if dtype != "float16":
        assert trials["float64"].changed == trials["float32"].changed == found.fooled
    json.dumps(found.as_dict(), allow_nan=False)


def test_rounding_is_counted_as_it_is(tmp_path):
    run = measure(tmp_path / "run", bounds=(0, 1), overshoot=1e-4)
    found = again(run)
    expected, x = 0, nets.points(40)[0]
    for rows, r in run.perturbations():
        keep = [i for i, row in enumerate(rows) if row["status"] == "FOOLED"]
        y = ((x[[rows[i]["index"] for i in keep]] + torch.from_numpy(r[keep])).clamp(0, 1) * 255).round() / 255
        labels = torch.tensor([rows[i]["label"] for i in keep])
        expected += int((nets.small()(y).argmax(1) != labels).sum())
    rounded = found.trials[-1]
    assert rounded.changed == expected
    assert 0 < expected < found.fooled, "otherwise this test shows nothing"
    assert len(rounded.lost) == min(20, found.fooled - expected)


def test_inputs_that_are_no_pictures_are_not_rounded(tmp_path):
    x = nets.points(40)[0] * 5
    run = evaluate(nets.small(), (x, None), out=tmp_path / "run", save_perturbations=True)
    found = verify(run, nets.small(), (x, None))
    assert "do not lie in [0, 1]" in found.trials[-1].skipped
    assert found.holds


@pytest.mark.parametrize("size", [1, 2, 16])
def test_batches_of_another_size_than_those_of_the_run(tmp_path, size):
    seen = set()

    class Watching(torch.nn.Sequential):
        def forward(self, x):
            seen.add(len(x))
            return super().forward(x)

    model = Watching(nets.small())
    run = evaluate(model, nets.points(4), out=tmp_path / "run", batch_size=size, save_perturbations=True)
    seen.clear()
    assert verify(run, model, nets.points(4), batch_size=16).holds
    assert len(seen) > 1


def test_norms_that_are_too_small_are_found_out(tmp_path):
    run = measure(tmp_path / "run")
    tamper(run, lambda row: row | {"r_l2": row["r_l2"] * 0.99} if row["index"] == 7 else row)
    found = again(run)
    assert not found.holds
    assert found.wrong_norms == [7]


def test_labels_that_are_not_so_are_found_out(tmp_path):
    run = measure(tmp_path / "run")
    tamper(run, lambda row: row | {"label": (row["label"] + 1) % 4} if row["index"] == 3 else row)
    found = again(run)
    assert 3 in found.wrong_labels
    assert not found.holds


def test_perturbations_that_do_not_fool_are_found_out(tmp_path):
    run = measure(tmp_path / "run")
    shard = sorted((run.folder / "perturbations").iterdir())[0]
    content = safetensors.numpy.load_file(shard)
    content["r"][5] = 0
    safetensors.numpy.save_file(content, shard)
    found = again(run)
    assert not found.holds
    assert found.trials[0].lost == [5]
    content["index"] = np.roll(content["index"], 1)
    safetensors.numpy.save_file(content, shard)
    with pytest.raises(RunError, match="does not hold the samples"):
        again(run)


def test_another_model_or_other_data_are_refused(tmp_path):
    run = measure(tmp_path / "run")
    with pytest.raises(RunError, match="the model is not the one of the run"):
        verify(run, torch.nn.Linear(6, 4), nets.points(40))
    with pytest.raises(RunError, match="the data is not the one of the run"):
        verify(run, nets.small(), nets.points(39))
    with pytest.raises(RunError, match=r"data in memory.*give the data"):
        verify(run)
    with pytest.raises(RunError, match=r"cannot be built.*give the model"):
        verify(run, data=nets.points(40))


def test_code_that_a_manifest_names_is_not_run_unasked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "x.npz", x=nets.points(9)[0].numpy(), y=nets.points(9)[1].numpy())
    (tmp_path / "own_code.py").write_text(
        "import pathlib\nfrom tests import nets\npathlib.Path('ran').touch()\nmake = nets.small\n"
    )
    run = evaluate("py:own_code:make", "npz:x.npz", out="run", save_perturbations=True)
    monkeypatch.delitem(sys.modules, "own_code")
    (tmp_path / "ran").unlink()
    with pytest.raises(RunError, match=r"the model is code \(py:own_code:make\).*--run-code"):
        verify(run)
    with pytest.raises(RunError, match="not run without permission"):
        CliRunner().invoke(app, ["verify", "run"], catch_exceptions=False)
    assert not (tmp_path / "ran").exists()
    assert verify(run, "py:own_code:make").holds, "a model that the caller gives is theirs"
    (tmp_path / "ran").unlink()
    monkeypatch.delitem(sys.modules, "own_code")
    assert CliRunner().invoke(app, ["verify", "run", "--run-code"]).exit_code == 0
    assert (tmp_path / "ran").exists()


def test_an_architecture_that_is_code_is_not_run_unasked(tmp_path):
    run = measure(tmp_path / "run")
    manifest = json.loads((run.folder / "manifest.json").read_text())
    manifest["model"] = {"spec": "file:weights.safetensors", "arch": "py:own_code:make"}
    (run.folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RunError, match=r"the model is code \(py:own_code:make\)"):
        verify(Run(run.folder), data=nets.points(40))


def test_runs_without_perturbations(tmp_path):
    run = measure(tmp_path / "run", save_perturbations=False)
    with pytest.raises(RunError, match=r"holds no perturbations.*--save-perturbations"):
        again(run)


def test_failed_samples_are_left_alone(tmp_path):
    run = evaluate(nets.Flat(), nets.points(30), out=tmp_path / "run", save_perturbations=True, max_iter=5)
    found = verify(run, nets.Flat(), nets.points(30))
    assert found.holds
    assert 0 < found.fooled < found.rows == 30


class Squashed(torch.nn.Module):
    """One probability, without a sigmoid layer that would give it away."""

    def __init__(self):
        super().__init__()
        self.linear = nets.small()[0]

    def forward(self, x):
        return torch.sigmoid(self.linear(x)[:, :1] - self.linear(x)[:, 1:2])


def test_scores_are_read_as_in_the_run(tmp_path):
    data = nets.points(40)[0], None
    run = evaluate(Squashed(), data, out=tmp_path / "run", save_perturbations=True, outputs="probabilities")
    assert {row["label"] for row in run.rows()} == {0, 1}, "otherwise this test shows nothing"
    assert verify(run, Squashed(), data).holds
