"""A run as an object in Python: it sums itself up, checks itself, and shows itself."""

import json
import math
import signal
import sys

import pytest
import torch
from torch import nn

import deepfool
from deepfool import Run, evaluate
from deepfool.errors import InputError, MissingExtraError, RunError
from deepfool.interactive.runs import Summary, Verdicts
from deepfool.metrics import summarize
from deepfool.metrics.gates import Verdict, check
from deepfool.runs import records
from deepfool.runs.consistency import InconsistentModelWarning
from deepfool.runs.evaluation import Interrupted
from tests import nets


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return evaluate(nets.small(), nets.points(30), out=tmp_path_factory.mktemp("runs") / "a")


@pytest.fixture(scope="module")
def partly(tmp_path_factory):
    """A run in which some searches have no answer."""
    return evaluate(nets.Flat(), nets.points(30), out=tmp_path_factory.mktemp("runs") / "b")


def test_evaluate_needs_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = deepfool.evaluate(nets.small(), nets.points(10))
    assert run.complete
    assert run.folder.parent.name == "runs"
    again = deepfool.evaluate(nets.small(), nets.points(10))
    assert again.folder == run.folder  # the same model and data: the same run, not measured again
    other = deepfool.evaluate(nn.Linear(6, 4), nets.points(10))
    assert other.folder != run.folder


def test_what_evaluate_returns_is_what_opens_the_folder(run):
    assert type(run) is Run
    assert Run.of(Run(run.folder)).folder == run.folder
    assert isinstance(run, records.Run)


def test_a_warning_points_to_the_line_that_calls_evaluate(tmp_path):
    with pytest.warns(InconsistentModelWarning) as seen:
        evaluate(nets.noisy(), nets.points(8), out=tmp_path / "run")
    assert seen[0].filename == __file__


def test_an_interrupted_run_can_show_itself_too(tmp_path):
    """What Ctrl-C raises holds a run of the same kind."""

    def stop(_):
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted) as stopped:
        evaluate(nets.small(), nets.points(30), out=tmp_path / "run", batch_size=5, on_progress=stop)
    assert type(stopped.value.run) is Run
    assert "of 30" in stopped.value.run._repr_html_()


def test_the_summary_is_that_of_the_metrics(run):
    summary = run.summary()
    assert summary == summarize(run)
    assert json.loads(json.dumps(summary)) == summary
    assert run.summary(confidence=0.5)["rho_adv"]["low"] > summary["rho_adv"]["low"]


def test_the_summary_prints_as_a_few_lines(run, partly):
    text = repr(run.summary())
    assert "rho_adv, ℓ2" in text
    assert "≤" in text
    assert len(text.splitlines()) < 12
    text = repr(partly.summary())
    assert "not known" in text
    assert "with an answer" in text
    assert isinstance(run.summary(), Summary)


def test_the_report_is_written_where_it_is_asked_for(run, tmp_path):
    assert run.report() == run.folder / "report.html"
    page = run.report(tmp_path / "page.html", gallery=False)
    assert "<html" in page.read_text()


def test_the_frame_has_a_row_for_every_sample(run):
    frame, rows = run.to_pandas(), run.records()
    assert frame.index.tolist() == rows.index.tolist()
    assert frame.norm.tolist() == rows.r["p"].tolist()
    assert frame.relative.tolist() == rows.ratio("p").tolist()
    assert frame.true_label.tolist() == rows.true_label.tolist()
    assert set(frame.status) == {"FOOLED"}
    assert set(frame.evidence) == {"gradients"}


def test_the_mean_of_a_frame_with_failures_is_not_a_number_to_use(partly):
    frame = partly.to_pandas()
    stuck = frame[frame.status != "FOOLED"]
    assert len(stuck) == partly.records().censored.sum()
    assert (stuck.relative == math.inf).all()
    assert frame.relative.mean() == math.inf
    assert stuck.adv_label.isna().all() or (stuck.adv_label == stuck.label).all()
    assert stuck.converged.isna().all()
    assert all(stuck.reason)


def test_labels_that_are_not_known_are_missing(tmp_path):
    run = evaluate(nets.small(), (nets.points(5)[0], [-1] * 5), out=tmp_path / "run")
    assert run.to_pandas().true_label.isna().all()


def test_a_frame_without_pandas_names_the_extra(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"deepfool\[pandas\]"):
        run.to_pandas()


def test_check_takes_what_the_gate_takes(run):
    conditions = {"min_rho": 1e-9, "min_samples": 10, "max_fooled": "1@eps=9"}
    assert run.check(**conditions) == check(run, **conditions)
    with pytest.raises((TypeError, InputError)):
        run.check(no_such_condition=1)
    with pytest.raises(InputError):
        run.check()


def test_an_assertion_on_a_check_does_what_it_says(run):
    """The truth of a plain list would be whether it is empty, and every gate would pass."""
    met, failed = run.check(min_rho=1e-9), run.check(min_rho=1e9)
    assert met
    assert met.passed
    assert not failed
    assert not failed.passed
    assert not Verdicts([])
    assert "not met" in repr(failed)
    assert "not met" in failed._repr_html_()


def test_what_is_not_known_is_shown_as_such(partly):
    verdicts = partly.check(min_rho=1e-9, max_cautioned=30)
    assert not verdicts
    rho = next(verdict for verdict in verdicts if verdict.name == "min-rho")
    assert rho.outcome == "not known"
    assert "not known" in verdicts._repr_html_()


def test_nothing_that_others_wrote_gets_into_the_page_as_html(run):
    hostile = "<script>alert(1)</script>"
    html = Verdicts([Verdict(hostile, False, hostile, hostile)])._repr_html_()
    assert "<script" not in html
    summary = run.summary()
    summary["model"] = summary["run"] = summary["setup"] = hostile
    summary["warnings"] = [hostile]
    assert "<script" not in summary._repr_html_()


def test_a_hostile_model_name_is_escaped(tmp_path):
    run = evaluate(nets.small(), nets.points(10), out=tmp_path / "run")
    manifest = json.loads((run.folder / "manifest.json").read_text())
    manifest["model"]["spec"] = "<img src=x onerror=alert(1)>"
    (run.folder / "manifest.json").write_text(json.dumps(manifest))
    html = Run(run.folder)._repr_html_()
    assert "<img" not in html
    assert "&lt;img" in html


def test_a_run_shows_verdict_figures_and_curve(run):
    html = run._repr_html_()
    assert run.summary()["verdict"]["lead"].split(",")[0] in html
    assert "≤" in html
    assert html.count("<svg") == 1
    assert "<script" not in html
    assert "<style" not in html  # notebooks that are not trusted drop style sheets
    assert "http" not in html.replace('xmlns="http://www.w3.org/2000/svg"', "")


def test_a_run_with_failures_says_not_known(partly):
    html = partly._repr_html_()
    assert "not known" in html
    assert "border-left" in html  # the headline is marked
    assert html.count("<svg") == 1


def test_a_run_without_any_answer_has_no_curve(tmp_path):
    pictures = torch.rand(8, 1, 28, 28), torch.zeros(8, dtype=torch.long)
    html = evaluate(nets.deaf(), pictures, out=tmp_path / "run")._repr_html_()
    assert "Nothing is known" in html
    assert "<svg" not in html


def test_an_empty_run_can_be_looked_at(tmp_path):
    run = evaluate(nets.small(), nets.points(10), out=tmp_path / "run")
    (run.folder / "records.jsonl").write_text("")
    html = Run(run.folder)._repr_html_()
    assert "0 of 10" in html
    assert "<svg" not in html


def test_a_damaged_run_shows_what_is_wrong(tmp_path):
    run = evaluate(nets.small(), nets.points(10), out=tmp_path / "run")
    with (run.folder / "records.jsonl").open("ab") as stream:
        stream.write(b"{}\n")
    assert "damaged" in run._repr_html_()
    with pytest.raises(RunError):
        run.summary()
