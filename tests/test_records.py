"""A run folder survives kills, cuts, full disks and second writers, and says what it is."""

import dataclasses
import errno
import json
import os
import random
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from deepfool import Run, deepfool, evaluate
from deepfool.errors import RunError
from deepfool.metrics import summarize
from deepfool.runs import writing
from deepfool.runs.evaluation import Interrupted
from deepfool.runs.merging import merge
from deepfool.runs.records import RECORDS
from deepfool.runs.rows import TIMING
from tests import nets
from tests.waiting import PATIENCE

HERE = Path(__file__).parent


def without_timing(run):
    return sorted(
        ({key: value for key, value in row.items() if key not in TIMING} for row in run.rows()),
        key=lambda row: row["index"],
    )


def measure(out, count=60, **options):
    options = {"batch_size": 8, "save_perturbations": True, **options}
    return evaluate(nets.small(), nets.points(count), out=out, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return measure(tmp_path_factory.mktemp("whole") / "run")


def same(run, whole):
    """The same rows to the last bit, and the same perturbations."""
    assert without_timing(run) == without_timing(whole)
    for (_, r), (_, expected) in zip(
        sorted(run.perturbations(), key=lambda pair: pair[0][0]["index"]),
        sorted(whole.perturbations(), key=lambda pair: pair[0][0]["index"]),
        strict=True,
    ):
        assert np.array_equal(r, expected)
    assert len(list((run.folder / "perturbations").iterdir())) == len(list((whole.folder / "perturbations").iterdir()))


def copy_cut(whole, folder, size):
    """A copy of a run whose records file was cut at a byte."""
    (folder / "perturbations").mkdir(parents=True)
    for file in whole.folder.rglob("*.*"):
        if file.is_file() and file.name != ".lock":
            (folder / file.relative_to(whole.folder)).write_bytes(file.read_bytes())
    with (folder / RECORDS).open("r+b") as stream:
        stream.truncate(size)


def test_killed_at_20_random_points_and_resumed(tmp_path):
    """Real SIGKILLs, at random sizes of the records file; see tests/killing.py for what the processes do."""
    done = subprocess.run(
        [sys.executable, HERE / "killing.py", tmp_path, "20"], capture_output=True, text=True, timeout=PATIENCE,
        check=False, env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), *sys.path])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    kills = json.loads(done.stdout)
    assert len(kills) == 20
    assert all(kill["signal"] == signal.SIGKILL for kill in kills)
    assert all(0 < kill["bytes"] < kill["bytes_whole"] for kill in kills), "every kill came in the middle"
    expected = Run(tmp_path / "whole")
    for number in range(20):
        same(Run(tmp_path / str(number)), expected)


def test_cut_at_any_byte_and_resumed(whole, tmp_path):
    content = (whole.folder / RECORDS).read_bytes()
    ends = [i + 1 for i, byte in enumerate(content) if byte == ord("\n")]
    cuts = {0, 1, ends[0] - 1, ends[0], ends[7] - 1, ends[7], ends[7] + 1, ends[-1] - 1, ends[-2], ends[-5] + 3}
    cuts |= set(random.Random(0).sample(range(len(content)), 20))
    for cut in sorted(cuts):
        copy_cut(whole, tmp_path / str(cut), cut)
        before = Run(tmp_path / str(cut))
        assert before.count == sum(1 for end in ends if end <= cut) // 8 * 8 or cut == len(content)
        same(measure(tmp_path / str(cut)), whole)


def test_resumed_with_another_batch_size(whole, tmp_path):
    content = (whole.folder / RECORDS).read_bytes()
    copy_cut(whole, tmp_path / "run", len(content) // 2)
    run = measure(tmp_path / "run", batch_size=7)
    assert run.complete
    for row, expected in zip(without_timing(run), without_timing(whole), strict=True):
        assert row["index"] == expected["index"]
        assert row["r_p"] == pytest.approx(expected["r_p"], rel=1e-5)


def test_a_finished_run_is_not_measured_again(whole, tmp_path):
    content = (whole.folder / RECORDS).read_bytes()
    calls = []
    again = measure(whole.folder, on_progress=calls.append)
    assert calls == []
    assert (again.folder / RECORDS).read_bytes() == content


def test_another_run_in_the_folder_is_refused_line_by_line(whole):
    with pytest.raises(RunError, match="holds another run") as refused:
        measure(whole.folder, max_iter=7, seed=3)
    assert "  attack.knobs.max_iter: 50 in the folder, 7 now\n" in str(refused.value)
    assert "  seed: 0 in the folder, 3 now\n" in str(refused.value)
    assert "sha256" not in str(refused.value), "what is the same is not told"
    with pytest.raises(RunError, match=r"model\.sha256"):
        evaluate(
            nets.Narrow(99), nets.points(60), out=whole.folder, batch_size=8, save_perturbations=True
        )  # fmt: skip
    with pytest.raises(RunError, match=r"holds this run with 60 samples already; 10 were asked for"):
        measure(whole.folder, limit=10)
    assert whole.complete, "a refusal changes nothing"


def test_damage_in_the_middle_is_an_error_and_not_repaired(whole, tmp_path):
    copy_cut(whole, tmp_path / "run", len((whole.folder / RECORDS).read_bytes()))
    content = (tmp_path / "run" / RECORDS).read_bytes()
    (tmp_path / "run" / RECORDS).write_bytes(content[:50] + b"\0\n" + content[52:])
    with pytest.raises(RunError, match="line 1 is damaged"):
        measure(tmp_path / "run")


def test_rows_are_plain_json(whole, tmp_path):
    def refuse(token):
        raise AssertionError(token)

    run = evaluate(nets.Flat(), nets.points(30), out=tmp_path / "run", max_iter=5)
    rows = [json.loads(line, parse_constant=refuse) for line in (run.folder / RECORDS).read_text().splitlines()]
    failed = [row for row in rows if row["status"] != "FOOLED"]
    assert failed
    assert all(row["r_p"] is None and row["r_l2"] is None and row["reason"] for row in failed)
    assert all(row["r_p"] > 0 and "reason" not in row for row in rows if row["status"] == "FOOLED")
    json.loads((run.folder / "manifest.json").read_text(), parse_constant=refuse)


def test_the_manifest_tells_everything(tmp_path):
    run = evaluate(nets.small(), nets.points(5), out=tmp_path / "run", p=float("inf"), bounds=(0, 1), seed=4)
    identity, session = run.identity, run.manifest["sessions"][0]
    assert identity["p"] == "inf"
    assert run.p == float("inf")
    assert identity["attack"]["knobs"] == {
        "overshoot": 0.02, "max_iter": 50, "candidates": "auto", "bounds": [0, 1], "target": None, "mask": None,
        "threshold": None, "outputs": "auto", "tighten": False,
    }  # fmt: skip
    assert len(identity["model"]["sha256"]) == len(identity["data"]["sha256"]) == 64
    assert identity["seed"] == 4
    assert {"python", "torch", "platform", "device", "started", "finished", "seconds", "command"} <= set(session)


def full_disk(monkeypatch, after):
    """Writes fail with "no space left" once so many bytes have gone to the records, in the middle of a row."""
    real, left = writing.write_all, [after]

    def write(stream, content):
        if not str(stream.name).endswith(RECORDS):
            return real(stream, content)
        if len(content) > left[0]:
            stream.write(content[: left[0]])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left[0] -= len(content)
        return real(stream, content)

    monkeypatch.setattr(writing, "write_all", write)


def test_a_full_disk_ends_clearly_and_goes_on(whole, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        full_disk(patch, after=8000)
        with pytest.raises(RunError, match=r"cannot be written: No space left on device\. Hint: finished samples are"):
            measure(tmp_path / "run")
    stopped = Run(tmp_path / "run")
    assert 0 < stopped.count < 60
    assert (stopped.folder / RECORDS).read_bytes().endswith(b"\n"), "the torn row is taken back at once"
    same(measure(tmp_path / "run"), whole)


def test_the_kernel_refuses_to_write(whole, tmp_path):
    """A real refusal in the middle of a write: files may not grow beyond a limit."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9000, before[1]))
    try:
        with pytest.raises(RunError, match="cannot be written: File too large"):
            measure(tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert 0 < Run(tmp_path / "run").count < 60
    same(measure(tmp_path / "run"), whole)


def test_an_unwritable_folder(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(RunError, match="cannot be written: Not a directory"):
        measure(tmp_path / "file" / "run")


def test_two_writers_of_one_run(tmp_path):
    def intrude(progress):
        with pytest.raises(RunError, match="another process is writing"):
            measure(tmp_path / "run")

    assert measure(tmp_path / "run", on_progress=intrude).complete


def test_orphaned_perturbations_are_dropped(whole, tmp_path):
    copy_cut(whole, tmp_path / "run", 0)
    (tmp_path / "run" / "perturbations" / ".r-000000003.safetensors.partial").write_bytes(b"half")
    same(measure(tmp_path / "run", batch_size=8), whole)


def snapshot(folder):
    return {path.relative_to(folder): path.is_file() and path.read_bytes() for path in folder.rglob("*")}


@pytest.mark.parametrize(
    "name", ["perturbations/mine.txt", ".thesis.partial", "notes.md", "perturbations/r-000000003.safetensors", "sub/a"]
)
def test_a_folder_that_is_not_a_run_is_left_alone(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("years of work")
    before = snapshot(tmp_path)
    with pytest.raises(RunError, match=r"is not a run and not empty: it holds '.*'\. Hint: choose a new folder"):
        measure(tmp_path)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("content", ["{}", "[1]", "not JSON", '{"format": 1}', '{"format": 1, "identity": 3}'])
def test_a_folder_with_somebody_elses_manifest_is_left_alone(tmp_path, content):
    (tmp_path / "manifest.json").write_text(content)
    (tmp_path / ".manifest.json.partial").write_text("theirs")
    before = snapshot(tmp_path)
    with pytest.raises(RunError):
        measure(tmp_path)
    assert snapshot(tmp_path) == before


def test_somebody_elses_lock_is_left_alone(tmp_path):
    (tmp_path / ".lock").write_text("4711")
    with pytest.raises(RunError, match=r"holds '\.lock'"):
        measure(tmp_path)
    assert (tmp_path / ".lock").read_text() == "4711"


def test_what_a_user_puts_into_a_run_stays(whole, tmp_path):
    copy_cut(whole, tmp_path / "run", 0)
    mine = [".thesis.partial", "perturbations/mine.txt", "perturbations/r-old.safetensors", "perturbations/.x.partial"]
    for name in mine:
        (tmp_path / "run" / name).write_text("mine")
    run = measure(tmp_path / "run")
    assert without_timing(run) == without_timing(whole)
    assert [(tmp_path / "run" / name).read_text() for name in mine] == ["mine"] * 4


def test_killed_at_the_very_start_and_resumed(whole, tmp_path):
    for number, left in enumerate([(), (".lock",), (".lock", ".manifest.json.partial")]):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name in left:
            (folder / name).touch()
        same(measure(folder), whole)
        assert not (folder / ".manifest.json.partial").exists()


def damage(whole, folder, change):
    """A copy of a run whose rows were changed."""
    copy_cut(whole, folder, (whole.folder / RECORDS).stat().st_size)
    rows = [json.loads(line) for line in (folder / RECORDS).read_text().splitlines()]
    change(rows)
    (folder / RECORDS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Run(folder)


def setting(**values):
    return lambda rows: rows[9].update(values)


def lacking(name):
    return lambda rows: rows[9].pop(name)


def swapping(rows):
    rows[9] = dict(rows[10])


DAMAGES = [
    (swapping, "holds sample 10 twice"),
    (setting(index=60), "holds sample 60, which is not part of this run"),
    (setting(index=-1), "line 10 is damaged: index must be a whole number >= 0, got -1"),
    (setting(index=9.0), "index must be a whole number"),
    (setting(index=True), "index must be a whole number"),
    (setting(index=10**30), "index must be a whole number"),
    (setting(label="3"), "label must be a whole number"),
    (setting(true_label=-1), "true_label must be"),
    (setting(adv_label=None), "adv_label must be"),
    (setting(adv_label=-1), "adv_label must be a whole number >= 0 where the status is FOOLED"),
    (setting(status="FINE"), "status must be one of FOOLED, STUCK"),
    (setting(status=["FOOLED"]), "status must be one of"),
    (setting(status="STUCK"), "r_p must be null where the status is STUCK"),
    (setting(r_p=None), "r_p must be a finite number >= 0 where the status is FOOLED"),
    (setting(r_l2=-1.0), "r_l2 must be a finite number >= 0, got -1.0"),
    (setting(r_l2=float("nan")), "NaN is not a number in JSON"),
    (setting(x_linf=float("inf")), "Infinity is not a number in JSON"),
    (setting(x_p="1"), "x_p must be a finite number"),
    (setting(seconds=-1), "seconds must be"),
    (setting(batch=0), "batch must be|starts a batch"),
    (setting(reason=["a"]), "reason must be a text"),
    (setting(evidence="guesses"), "evidence must be one of gradients, repaired, scores, decisions, got 'guesses'"),
    (setting(evidence=None), "evidence must be one of"),
    (setting(converged=1), "converged must be true or false, got 1"),
    (lacking("r_l1"), "it has no r_l1"),
    (lacking("index"), "it has no index"),
]


@pytest.mark.parametrize(("change", "match"), DAMAGES)
def test_rows_that_were_tampered_with_are_found_out(whole, tmp_path, change, match):
    run = damage(whole, tmp_path / "run", change)
    for read in (run.records, lambda: run.count, lambda: list(run.perturbations())):
        with pytest.raises(RunError, match=match):
            read()
    with pytest.raises(RunError, match=match):
        merge([run], tmp_path / "merged")
    assert not (tmp_path / "merged").exists()
    with pytest.raises(RunError, match=match):
        measure(tmp_path / "run")


def test_rows_of_older_versions_are_read(whole, tmp_path):
    """They say neither what they were found by nor whether they had converged: that is unknown."""

    def forget(rows):
        for row in rows:
            row.pop("evidence", None), row.pop("converged", None)

    run = damage(whole, tmp_path / "run", forget)
    records = run.records()
    assert set(records.evidence.tolist()) == set(records.converged.tolist()) == {-1}
    assert summarize(run)["evidence"] == {"unknown": int(records.fooled.sum())}
    assert summarize(run)["not_converged"] is None
    assert measure(tmp_path / "run").complete, "it can be resumed"


def test_lines_that_are_no_rows(whole, tmp_path):
    for number, line in enumerate([b"3", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"index": 1e999}']):
        folder = tmp_path / str(number)
        copy_cut(whole, folder, 0)
        (folder / RECORDS).write_bytes(line + b"\n")
        with pytest.raises(RunError, match="line 1 is damaged"):
            Run(folder).records()


@pytest.mark.parametrize(
    ("place", "value"), [("samples", 59), ("samples", "60"), ("sessions", None), ("identity", {}), ("data", [])]
)
def test_a_manifest_that_was_tampered_with_is_found_out(whole, tmp_path, place, value):
    copy_cut(whole, tmp_path / "run", 0)
    manifest = json.loads((whole.folder / "manifest.json").read_text())
    (tmp_path / "run" / "manifest.json").write_text(json.dumps(manifest | {place: value}))
    with pytest.raises(RunError, match=r"manifest\.json is damaged"):
        Run(tmp_path / "run").records()


def test_a_manifest_with_more_samples_than_memory(whole, tmp_path):
    copy_cut(whole, tmp_path / "run", 0)
    manifest = json.loads((whole.folder / "manifest.json").read_text())
    manifest["identity"]["indices"] = "0-99999999999"
    (tmp_path / "run" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RunError, match=r"damaged: indices must lie in 0\.\.59, got 60"):
        Run(tmp_path / "run").records()


def test_a_row_that_could_not_be_read_back_is_not_written(tmp_path):
    def boasting(model, x, *, p=2):
        found = deepfool(model, x, p=p)
        return dataclasses.replace(found, r=found.r * float("nan"))

    with pytest.raises(RunError, match="the attack gave a row for sample 0 that is not valid: r_p must be"):
        evaluate(nets.small(), nets.points(4), boasting, out=tmp_path / "run")
    assert Run(tmp_path / "run").count == 0


def test_shards_merge_into_the_whole_run(whole, tmp_path):
    parts = [measure(tmp_path / str(i), shard=(i, 3)) for i in (1, 2, 3)]
    merged = merge(parts, tmp_path / "merged")
    assert merged.identity == whole.identity
    assert merged.complete
    rows = without_timing(merged)
    assert [row["index"] for row in rows] == list(range(60))
    for row, expected in zip(rows, without_timing(whole), strict=True):
        assert row["r_p"] == pytest.approx(expected["r_p"], rel=1e-5)
    assert sum(len(rows) for rows, _ in merged.perturbations()) == 60
    with pytest.raises(RunError, match="exists already"):
        merge(parts, tmp_path / "merged")
    with pytest.raises(RunError, match="samples that another run has, such as 0"):
        merge([parts[0], parts[0]], tmp_path / "twice")
    other = measure(tmp_path / "other", shard=(1, 3), max_iter=9)
    with pytest.raises(RunError, match=r"attack\.knobs\.max_iter: 50 there, 9 here"):
        merge([parts[1], other], tmp_path / "mixed")


def test_unfinished_shards_merge_and_go_on(whole, tmp_path):
    def stop(progress):
        if progress.done >= 16:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        measure(tmp_path / "1", shard=(1, 2), on_progress=stop)
    measure(tmp_path / "2", shard=(2, 2))
    merged = merge([Run(tmp_path / "1"), Run(tmp_path / "2")], tmp_path / "merged")
    assert not merged.complete
    done = measure(tmp_path / "merged")
    assert [row["index"] for row in without_timing(done)] == list(range(60))


def test_reading_a_run_that_is_none(tmp_path):
    with pytest.raises(RunError, match="is not a run"):
        Run(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": 99}')
    with pytest.raises(RunError, match="another version"):
        Run(tmp_path)
