"""Runs that grow: a larger limit extends a run, and runs that differ have folders that differ."""

import json

import numpy as np
import pytest
import torch

from deepfool import Run, evaluate
from deepfool.errors import RunError
from tests import nets
from tests.test_records import same, without_timing

DATA = nets.points(60)


def measure(out, **options):
    return evaluate(nets.small(), DATA, out=out, **{"batch_size": 8, "save_perturbations": True, **options})


def test_a_larger_limit_extends_a_run(tmp_path):
    first = measure(tmp_path / "run", limit=20)
    kept = (first.folder / "records.jsonl").read_bytes()
    run = measure(tmp_path / "run", limit=44)
    assert run.complete
    assert (run.expected, run.identity["indices"]) == (44, "0-43")
    assert (run.folder / "records.jsonl").read_bytes().startswith(kept), "the rows that were there stay"
    assert [row["index"] for row in run.rows()] == list(range(44))
    fresh = measure(tmp_path / "fresh", limit=44)
    for (rows, r), (_, expected) in zip([*run.perturbations()][:2], [*fresh.perturbations()][:2], strict=True):
        assert len(rows) == 8
        assert np.array_equal(r, expected)
    assert run.records().r["p"] == pytest.approx(fresh.records().r["p"], rel=1e-5)
    whole = measure(tmp_path / "run")
    assert [len(each.records().index) for each in (whole, measure(tmp_path / "run"))] == [60, 60]


def test_the_manifest_says_how_a_run_grew(tmp_path):
    measure(tmp_path / "run", limit=20)
    run = measure(tmp_path / "run", limit=30)
    first, second = run.manifest["sessions"]
    assert "extended" not in first
    assert second["extended"] == {"indices_before": "0-19", "samples_before": 20, "samples": 30}
    assert (second["rows_before"], second["rows_after"]) == (20, 30)


def test_an_extended_run_that_was_killed_is_resumed(tmp_path):
    measure(tmp_path / "run", limit=24)

    def kill(_):
        raise ProcessLookupError

    with pytest.raises(ProcessLookupError):
        measure(tmp_path / "run", on_progress=kill)
    half = Run(tmp_path / "run")
    assert (half.count, half.expected, half.complete) == (32, 60, False)
    same(measure(tmp_path / "run"), measure(tmp_path / "fresh"))


def test_what_was_made_of_the_shorter_run_does_not_outlive_it(tmp_path):
    """An audit, pictures or a page of 20 samples would pass for those of 60."""
    run = measure(tmp_path / "run", limit=20)
    stale = {name: run.folder / name for name in ("audit.json", "report.html", "gallery.safetensors")}
    for file in stale.values():
        file.write_text("of 20 samples")
    measure(run.folder)
    assert not stale["audit.json"].exists()
    assert not stale["report.html"].exists()
    assert stale["gallery.safetensors"].read_bytes() != b"of 20 samples"


@pytest.mark.parametrize("other", [{"seed": 1}, {"p": 1}, {"max_iter": 7}, {"bounds": (-9, 9)}, {"dtype": "float64"}])
def test_nothing_else_may_differ(tmp_path, other):
    measure(tmp_path / "run", limit=10)
    before = {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}
    with pytest.raises(RunError, match=r"holds another run:(.|\n)*in the folder"):
        measure(tmp_path / "run", limit=20, **other)
    assert before == {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}


def test_fewer_samples_and_other_samples_are_refused(tmp_path):
    measure(tmp_path / "run", limit=20)
    with pytest.raises(RunError, match=r"holds this run with 20 samples already; 10 were asked for.*more samples, not"):
        measure(tmp_path / "run", limit=10)
    with pytest.raises(RunError, match="indices: 0-19 in the folder, 5-40 now"):
        measure(tmp_path / "run", indices="5-40")
    measure(tmp_path / "chosen", indices="7,3,9", limit=2)
    assert [row["index"] for row in measure(tmp_path / "chosen", indices="7,3,9").rows()] == [7, 3, 9]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def start(**options):
    model = options.pop("model", "fc500-mnist")
    return evaluate(model, "mnist-sample", options.pop("attack", "deepfool"), **{"limit": 3, **options})


def test_the_default_folder_holds_what_tells_runs_apart(here):
    tail = "runs/fc500-mnist-mnist-sample-deepfool-p"
    assert start().folder.as_posix() == f"{tail}2"
    assert start(limit=4).folder.as_posix() == f"{tail}2", "the same run with more samples"
    assert start(p=float("inf"), bounds=(0, 1)).folder.as_posix() == f"{tail}inf-bounds=0..1"
    assert start(overshoot=0.05, max_iter=9).folder.as_posix() == f"{tail}2-max_iter=9-overshoot=0.05"
    assert start(overshoot=0.02, limit=4).folder.as_posix() == f"{tail}2", "a knob at its default"
    assert start(seed=5, dtype="float64").folder.as_posix() == f"{tail}2-float64-seed=5"
    assert start(save_perturbations=True).folder.as_posix() == f"{tail}2-perturbations"
    assert start(shard=(1, 3)).folder.as_posix() == f"{tail}2-1of3"
    assert start(limit=None, indices="5-6").folder.as_posix() == f"{tail}2-samples=5-6"
    assert start(attack="smallest", budget=20).folder.name == "fc500-mnist-mnist-sample-smallest-p2-budget=20"
    assert len(list((here / "runs").iterdir())) == 8


def test_modules_in_memory_do_not_collide(here):
    one, two = nets.small(), nets.small()
    with torch.no_grad():
        next(two.parameters()).add_(0.1)
    folders = {evaluate(model, data, limit=3).folder for model in (one, two) for data in (DATA, nets.points(30))}
    assert len(folders) == 4
    assert all(Run(folder).complete for folder in folders)
    assert evaluate(one, DATA, limit=3).folder in folders, "the same run again is found"


def test_a_name_whose_weights_have_changed_gets_a_folder_of_its_own(here):
    """The names are the same, the hashes are not: another run, which must not be refused or mixed with the first."""
    first = start()
    manifest = json.loads((first.folder / "manifest.json").read_text())
    manifest["identity"]["model"]["sha256"] = "0" * 64
    (first.folder / "manifest.json").write_text(json.dumps(manifest))
    second, again, longer = start(), start(), start(limit=5)
    assert first.folder != second.folder == again.folder == longer.folder
    assert second.folder.name.startswith(f"{first.folder.name}-")
    assert Run(first.folder).count == 3
    assert longer.count == 5


def test_a_shorter_run_beside_a_longer_one(here):
    longer = start(limit=6)
    shorter = start(limit=4)
    assert shorter.folder.name == f"{longer.folder.name}-first=4"
    assert (Run(longer.folder).count, shorter.count) == (6, 4)
    assert start(limit=4).folder == shorter.folder
    assert without_timing(shorter) == without_timing(start(limit=4))


def test_a_folder_of_somebody_else_is_left_alone(here):
    (here / "runs" / "fc500-mnist-mnist-sample-deepfool-p2").mkdir(parents=True)
    (here / "runs" / "fc500-mnist-mnist-sample-deepfool-p2" / "thesis.tex").write_text("mine")
    assert start().folder.name.startswith("fc500-mnist-mnist-sample-deepfool-p2-")


def test_long_names_fit_into_a_file_system(here):
    numbers = ",".join(map(str, range(101, 240, 2)))
    folders = {start(limit=None, indices=f"{numbers},{last}").folder for last in (500, 502)}
    assert len(folders) == 2
    assert all(len(folder.name) < 200 for folder in folders)
