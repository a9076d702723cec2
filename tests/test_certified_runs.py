"""Certificates in runs: written with the rows, added later, resumed, refused; and what is said of them."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from deepfool import Run, evaluate
from deepfool.cli import app
from deepfool.cli.options import complete_certify
from deepfool.errors import InputError, ModelError, RunError, SoundnessError
from deepfool.metrics import accuracy_curve, find_bracket, summarize, write_words
from deepfool.metrics.comparison import compare
from deepfool.metrics.gates import check
from deepfool.reporting.page import write_report
from deepfool.reporting.tables import format_table
from deepfool.runs.certifying import certify_run
from deepfool.runs.merging import merge
from deepfool.runs.proofs import KEYS, join
from deepfool.runs.rows import Records
from deepfool.runs.verification import verify
from tests import nets
from tests.browsing import Watch
from tests.oracles import affine_case, free_distances, score_differences
from tests.waiting import PATIENCE

SAMPLES = 24
SECONDS = 60.0
"""More than these networks take, however busy the machine is: their rows end exact, long before."""


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    return evaluate(
        "py:tests.nets:kinked", nets.points(SAMPLES), out=tmp_path_factory.mktemp("runs") / "certified",
        certify=SECONDS, batch_size=8, save_perturbations=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run without certificates, as those of older versions are."""
    return evaluate(
        nets.kinked(), nets.points(SAMPLES), out=tmp_path_factory.mktemp("runs") / "plain", save_perturbations=True
    )


@pytest.fixture
def copied(plain, tmp_path):
    """A copy of it to certify."""
    out = tmp_path / "run"
    out.mkdir()
    for name in ("manifest.json", "records.jsonl"):
        (out / name).write_bytes((plain.folder / name).read_bytes())
    return Run(out)


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_affine_classifiers_are_exact(tmp_path, p):
    model, x = affine_case(c=4, d=5, n=6, seed=3)
    run = evaluate(model.float(), (x.float(), None), out=tmp_path / "run", p=p, certify=SECONDS)
    for row, point in zip(run.rows(), x.float().double().numpy(), strict=True):
        _, w, gap = score_differences(model.double(), point)
        assert row["proof"] == "EXACT"
        assert row["lower"] == pytest.approx(free_distances(w, gap, p).min(), rel=2e-3)
        assert row["r_p"] > row["lower"]  # the attack's own, with its overshoot
        assert row["proof_upper"] < row["r_p"]
        model.float()


def test_rows_hold_both_bounds(certified):
    records = certified.records()
    assert (records.proof == 0).all()
    assert (records.lower > 0).all()
    assert (records.lower <= records.upper).all()
    assert (records.lower >= 0.999 * records.upper).all()
    assert all(row["proof_limit"] == SECONDS and row["proof_seconds"] >= 0 for row in certified.rows())
    assert verify(certified, None, nets.points(SAMPLES), may_run_code=True).holds  # the attack's rows are as they were


def test_runs_without_certificates_read_as_before(plain):
    records = plain.records()
    assert not records.certified.any()
    assert not records.lower.any()
    assert np.isinf(records.proof_upper).all()
    assert find_bracket(records) is None
    assert accuracy_curve(records).certified is None
    assert summarize(plain)["bracket"] is None
    assert not set(KEYS) & set().union(*plain.rows())


def test_a_run_gets_certificates_later(copied, certified):
    before = (copied.folder / "records.jsonl").read_bytes()
    seen = []
    certify_run(copied, nets.kinked(), nets.points(SAMPLES), seconds=SECONDS, on_progress=lambda *now: seen.append(now))
    assert (copied.folder / "records.jsonl").read_bytes() == before
    assert seen[-1] == (SAMPLES, SAMPLES)
    assert np.allclose(copied.records().lower, certified.records().lower, rtol=2e-3)
    size = (copied.folder / "certificates.jsonl").stat().st_size
    certify_run(copied, nets.kinked(), nets.points(SAMPLES), seconds=10 * SECONDS)  # all are exact
    assert (copied.folder / "certificates.jsonl").stat().st_size == size


def test_evaluate_adds_what_is_missing(copied):
    again = evaluate(nets.kinked(), nets.points(SAMPLES), out=copied.folder, certify=SECONDS, save_perturbations=True)
    assert again.records().certified.all()
    assert (copied.folder / "certificates.jsonl").exists()


KILLED = """
import os, signal, sys
from deepfool import Run
from deepfool.runs.certifying import certify_run
from tests import nets
certify_run(Run(sys.argv[1]), nets.kinked(), nets.points(int(sys.argv[2])), seconds=2.0,
            on_progress=lambda done, total: os.kill(os.getpid(), signal.SIGKILL))
"""


def test_a_killed_certification_is_resumed(copied):
    command = [sys.executable, "-c", KILLED, str(copied.folder), str(SAMPLES)]
    done = subprocess.run(command, cwd=Path(__file__).parent.parent, capture_output=True, timeout=10 * PATIENCE)
    assert done.returncode == -9, done.stderr.decode()
    file = copied.folder / "certificates.jsonl"
    first = int(copied.records().certified.sum())
    assert 0 < first < SAMPLES
    with file.open("ab") as stream:
        stream.write(b'{"index": 23, "proof": "CERT')  # a line that was being written
    assert int(copied.records().certified.sum()) == first
    certify_run(copied, nets.kinked(), nets.points(SAMPLES), seconds=SECONDS)
    assert copied.records().certified.all()
    lines = [json.loads(line) for line in file.read_bytes().splitlines()]
    assert sum("certificates" in line for line in lines) == 2
    first_ones = [line["index"] for line in lines[1 : 1 + first]]
    assert first_ones == list(range(first))  # kept


def test_an_evaluation_that_stopped_goes_on_with_certificates(tmp_path):
    data, out = nets.points(16), tmp_path / "run"

    def stop(now):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        evaluate(nets.kinked(), data, out=out, certify=SECONDS, batch_size=8, on_progress=stop)
    assert Run(out).count == 8
    run = evaluate(nets.kinked(), data, out=out, certify=SECONDS, batch_size=8)
    assert run.complete
    assert run.records().certified.all()
    assert not (out / "certificates.jsonl").exists()


def test_processes_certify_too(tmp_path, certified):
    run = evaluate(
        "py:tests.nets:kinked", nets.points(SAMPLES), out=tmp_path / "run", certify=SECONDS, batch_size=8, workers=2
    )
    assert np.allclose(run.records().lower, certified.records().lower, rtol=2e-3)


def test_several_processes_certify_a_run_that_is_there(copied, certified):
    told = []
    run = certify_run(
        copied, nets.kinked(), nets.points(SAMPLES), seconds=SECONDS, workers=2, on_progress=lambda *at: told.append(at)
    )
    assert told[-1] == (SAMPLES, SAMPLES)
    lower = {row["index"]: row["lower"] for row in certified.rows()}
    for row in run.rows():
        assert row["proof"] == "EXACT"
        assert row["lower"] == pytest.approx(lower[row["index"]], rel=2e-3)


def test_what_cannot_be_certified_is_refused_before_any_work(tmp_path, plain):
    with pytest.raises(ModelError, match="sin"):
        evaluate(nets.Wavy(), nets.points(8), out=tmp_path / "run", certify=1.0)
    with pytest.raises(InputError, match="1, 2 and inf"):
        evaluate(nets.kinked(), nets.points(8), out=tmp_path / "run", certify=1.0, p=3)
    with pytest.raises(InputError, match="seconds"):
        evaluate(nets.kinked(), nets.points(8), out=tmp_path / "run", certify=-1)
    assert not (tmp_path / "run").exists()
    with pytest.raises(RunError, match="not the one of the run"):
        certify_run(plain, nets.small(), nets.points(SAMPLES))


def test_skipped_samples_get_no_certificate(tmp_path):
    run = evaluate(
        nets.kinked(), nets.points(12), out=tmp_path / "run", certify=SECONDS, skip_misclassified=True, batch_size=12
    )
    for row in run.rows():
        assert ("proof" in row) == (row["status"] != "MISCLASSIFIED")
    assert find_bracket(run.records()).missing == 0


def test_certificates_of_another_run_are_refused(copied, certified):
    other = json.loads((copied.folder / "manifest.json").read_text())
    line = {"certificates": {"model": "another"}, "seconds": 1}
    (copied.folder / "certificates.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(RunError, match="another run"):
        copied.records()
    assert other == json.loads((copied.folder / "manifest.json").read_text())
    (copied.folder / "certificates.jsonl").write_text('{"index": 1}\n')
    with pytest.raises(RunError, match=r"line 1 is damaged"):
        copied.records()


def test_merged_runs_keep_their_certificates(tmp_path):
    parts = [
        evaluate(nets.kinked(), nets.points(8), out=tmp_path / str(i), shard=(i, 2), certify=SECONDS) for i in (1, 2)
    ]
    assert merge(parts, tmp_path / "both").records().certified.all()


def rows_of(*bounds):
    """Rows with (lower or None, upper or None, size of x)."""
    rows = []
    for index, (low, high, size) in enumerate(bounds):
        row = {"index": index, "label": 1, "true_label": 1, "status": "FOOLED", "r_p": high, "x_p": size}
        if high is None:
            row["status"] = "STUCK"
        if low is not None:
            row |= {"proof": "CERTIFIED" if low else "NONE", "lower": low}
        rows.append(row)
    return Records.of(rows, p=2)


def test_the_bracket_encloses():
    found = find_bracket(rows_of((1.0, 2.0, 10.0), (3.0, 3.0, 10.0), (None, 4.0, 10.0), (0.0, 1.0, 10.0)))
    assert (found.lower.value, found.upper.value) == pytest.approx((0.1, 0.25))
    assert (found.count, found.proved, found.missing, found.improved) == (4, 2, 1, 0)
    found = find_bracket(rows_of((1.0, 2.0, 10.0), (2.0, None, 10.0)))
    assert not found.known
    assert found.lower.value == pytest.approx(0.15)
    many = rows_of(*((1.0 + i / 10, 2.0 + i / 10, 10.0) for i in range(20)))
    found = find_bracket(many)
    assert found.lower.low < found.lower.value < found.lower.high < found.upper.value < found.upper.high


def test_what_nothing_changes_counts_with_the_others():
    rows = [
        {"index": 0, "status": "STUCK", "x_p": 10.0, "proof": "EXACT", "lower": None},
        {"index": 1, "status": "FOOLED", "r_p": 2.0, "x_p": 10.0, "proof": "CERTIFIED", "lower": 1.0},
    ]
    found = find_bracket(Records.of(rows, p=2))
    assert found.unchangeable == 1
    assert found.lower.value == pytest.approx(0.1)
    assert not found.known


def test_the_band_encloses_the_curve():
    records = rows_of((1.0, 2.0, 10.0), (None, 4.0, 10.0))
    low, high = accuracy_curve(records, [0.0, 0.5, 1.0, 2.0, 4.0]).certified
    assert low.tolist() == [0.5, 0.5, 0.0, 0.0, 0.0]  # without a certificate a sample is never safe
    assert high.tolist() == [1.0, 1.0, 1.0, 0.5, 0.0]
    wrong = Records.of([{"index": 0, "label": 1, "true_label": 0, "status": "FOOLED", "r_p": 2.0, "x_p": 1.0,
                         "proof": "CERTIFIED", "lower": 1.0}], p=2)  # fmt: skip
    assert accuracy_curve(wrong, [0.0]).certified[0].tolist() == [0.0]


def test_a_contradiction_is_a_bug():
    records = rows_of((1.0, 2.0, 10.0), (3.0, 2.0, 10.0))
    for look in (find_bracket, accuracy_curve):
        with pytest.raises(SoundnessError, match=r"sample 1: .* above .* this is a bug"):
            look(records)


def test_the_better_of_two_certificates_counts():
    row = {"index": 0, "r_p": 2.0, "proof": "CERTIFIED", "lower": 1.0, "proof_limit": 1.0, "proof_upper": 1.5}
    longer = {"index": 0, "proof": "CERTIFIED", "lower": 1.499, "proof_limit": 9.0, "proof_reason": "time ran out"}
    assert join(row, longer) == {
        "index": 0, "r_p": 2.0, "proof": "EXACT", "lower": 1.499, "proof_limit": 9.0, "proof_upper": 1.5
    }  # fmt: skip
    assert join(row, {"index": 0, "proof": "NONE", "lower": 0.0, "proof_limit": 9.0})["lower"] == 1.0


def loosen(run, folder, share=0.5, without=0):
    """The run with lower bounds of that share of the distance; the first rows have no certificate."""
    folder.mkdir()
    (folder / "manifest.json").write_bytes((run.folder / "manifest.json").read_bytes())
    lines = []
    for row in run.rows():
        if row["index"] < without:
            row = {key: value for key, value in row.items() if key not in KEYS}
        else:
            row |= {"proof": "CERTIFIED", "lower": share * row["lower"], "proof_reason": "time ran out"}
        lines.append(json.dumps(row))
    (folder / "records.jsonl").write_text("\n".join(lines) + "\n")
    return Run(folder)


@pytest.fixture(scope="module")
def loose(certified, tmp_path_factory):
    return loosen(certified, tmp_path_factory.mktemp("runs") / "loose", without=3)


def test_the_headline_is_the_bracket(certified, loose, plain):
    lead = write_words(certified, certified.records()).lead
    assert "no less and no more: that is proved" in lead
    words = write_words(loose, loose.records())
    assert "between" in words.lead
    assert "the lower end is proved, the upper end was found" in words.lead
    assert "3 samples without a certificate count with a lower bound of 0." in words.lines
    assert "proved" not in write_words(plain, plain.records()).lead
    summary = summarize(loose)
    assert summary["headline"]["bracketed"]
    assert summary["bracket"]["missing"] == 3
    assert summary["bracket"]["lower"]["value"] < summary["bracket"]["upper"]["value"]


def test_tables_and_comparisons_know_it(certified, loose, plain):
    table = format_table([loose, plain])
    assert "certified rho" in table
    assert "≥ " in table
    assert "certified" not in format_table([plain])
    assert "certified_rho" in format_table([plain], "csv")
    found = compare(certified.records(), loose.records())
    assert found.bracket_a.lower.value > found.bracket_b.lower.value
    assert found.proved is None
    far = [{**row, "r_p": 3 * row["r_p"], "lower": 2 * row["r_p"]} for row in certified.rows()]
    far = [{key: value for key, value in row.items() if key != "proof_upper"} for row in far]
    assert compare(plain.records(), Records.of(far, p=2)).proved == "b"


def test_the_gate_asks_for_what_is_proved(certified, loose, plain):
    low = find_bracket(loose.records()).lower.low

    def judge(run, **how):
        return next(each for each in check(run, **how) if each.name == "min-certified-rho")

    assert judge(loose, min_certified_rho=0.99 * low).outcome == "met"
    failed = judge(loose, min_certified_rho=1.01 * low)
    assert failed.outcome == "not met"
    assert "3 of 24 samples have no lower bound" in failed.why
    assert judge(loose, min_certified_rho=1.01 * low, point=True).outcome == "met"
    unknown = judge(plain, min_certified_rho=0.0)
    assert unknown.outcome == "not known"
    assert not unknown.passed
    assert "not certified" in unknown.why
    with pytest.raises(InputError, match="min_certified_rho"):
        check(plain, min_certified_rho=-1.0)


def test_the_data_frame_has_the_bounds(loose):
    frame = loose.to_pandas()
    assert (frame.lower <= frame.norm).all()
    assert frame.proof.isna().sum() == 3


def test_certify_stands_without_its_seconds():
    assert complete_certify(["--certify", "--p", "2"]) == ["--certify", "1", "--p", "2"]
    assert complete_certify(["--p", "2", "--certify"]) == ["--p", "2", "--certify", "1"]
    assert complete_certify(["--certify", "0.5"]) == ["--certify", "0.5"]
    assert complete_certify(["--certify=3"]) == ["--certify=3"]


def test_the_commands(tmp_path):
    np.savez(tmp_path / "points.npz", x=nets.points(8)[0].numpy(), y=nets.points(8)[1].numpy())
    call, out = CliRunner().invoke, str(tmp_path / "run")
    common = ["evaluate", "--model", "py:tests.nets:kinked", "--data", f"npz:{tmp_path / 'points.npz'}", "--out", out]
    done = call(app, [*common, "--no-report"])
    assert done.exit_code == 0, done.output
    assert "code" in str(call(app, ["certify", out]).exception)  # a py: model is not run without permission
    done = call(app, ["certify", out, "--seconds", "60", "--run-code", "--json"])
    assert done.exit_code == 0, done.output
    assert "certified 8/8 samples" in done.stderr
    assert json.loads(done.stdout)["bracket"]["exact"]["value"] == 1
    assert "that is proved" in call(app, ["show", out]).stdout.replace("\n", " ")
    done = call(app, ["check", out, "--min-certified-rho", "0.9", "--min-samples", "2"])
    assert done.exit_code == 1
    assert "min-certified-rho" in done.stderr
    done = call(app, [*common[:-1], str(tmp_path / "other"), "--certify", "--no-report", "--limit", "2"])
    assert done.exit_code == 0, done.output
    assert Run(tmp_path / "other").records().certified.all()


def test_the_page_draws_the_bracket_and_the_band(loose, plain, tmp_path, browser):
    watch = Watch(browser, write_report([loose], tmp_path / "report.html"))
    page = watch.page
    assert not watch.complaints
    place = {name: page.locator(f".bracket .{name}").bounding_box() for name in ("track", "proved", "open", "mark")}
    assert 0 < place["proved"]["width"] < place["track"]["width"]
    assert place["open"]["x"] == pytest.approx(place["proved"]["x"] + place["proved"]["width"], abs=1)
    assert place["mark"]["x"] == pytest.approx(place["open"]["x"] + place["open"]["width"], abs=3)
    assert "proved" in page.locator(".lead").inner_text()
    traces = page.evaluate("document.getElementById('curve-0').data.map((each) => [each.name ?? '', each.y])")
    certified = next(y for name, y in traces if name == "certified")
    attacked = traces[-1][1]
    assert all(low <= high + 1e-9 for low, high in zip(certified, attacked, strict=True))
    watch.context.close()
    watch = Watch(browser, write_report([plain], tmp_path / "plain.html"))
    assert watch.page.locator(".bracket").count() == 0
    watch.context.close()
