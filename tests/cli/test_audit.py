"""`deepfool audit`, and what the other commands show of an audit."""

import json

import pytest

from deepfool import Run
from deepfool.errors import InputError
from deepfool.runs.audit.checklist import AUDIT
from tests.calling import call

COMMON = ("evaluate", "--model", "fc500-mnist", "--data", "mnist-sample")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    done = call(*COMMON, "--limit", 200, "--bounds", "0,1", "--out", folder)
    assert "auditing a few samples" in done.stderr
    assert "audit: 11 checks on 4 samples" in done.stderr
    return folder


def test_the_report_and_show_tell_of_it(run):
    assert (run / AUDIT).exists()
    assert "Can these numbers be trusted?" in (run / "report.html").read_text()
    shown = call("show", run).stdout
    assert "strongest attack" in shown
    assert "pass" in shown
    assert json.loads(call("show", run, "--json").stdout)["audit"]["samples"]


def test_audit_of_a_run(run):
    done = call("audit", run, "--samples", 2)
    assert "audit: 11 checks on 2 samples" in done.stdout
    assert len(json.loads((run / AUDIT).read_text())["samples"]) == 2
    found = json.loads(call("audit", run, "--samples", 2, "--json").stdout)
    assert len(found["samples"]) == 2
    assert {check["verdict"] for check in found["checks"]} <= {"pass", "caution"}


def test_audit_of_a_model():
    found = json.loads(
        call("audit", "--model", "fc500-mnist", "--data", "mnist-sample", "--bounds", "0,1", "--samples", 2,
             "--limit", 50, "--json", "--strict").stdout
    )  # fmt: skip
    assert found["verdict"] == "pass"
    assert len(found["samples"]) == 2
    assert max(found["samples"]) < 50


def test_exit_codes(monkeypatch, run):
    from deepfool.runs.audit import auditing
    from deepfool.runs.audit.checklist import Audit, Check, Verdict

    for verdict, plain, strict in ((Verdict.PASS, 0, 0), (Verdict.CAUTION, 0, 1), (Verdict.FAIL, 1, 1)):
        found = Audit((Check("a", verdict, "b.", None),), (0,))
        monkeypatch.setattr(auditing, "audit", lambda *_, found=found, **__: found)
        call("audit", run, code=plain)
        call("audit", run, "--strict", code=strict)


def test_what_does_not_go_together(run):
    with pytest.raises(InputError, match="needs a run folder, or --model and --data"):
        call("audit", "--model", "fc500-mnist")
    with pytest.raises(InputError, match=r"a run has its own --attack, --bounds\."):
        call("audit", run, "--attack", "ddn", "--bounds", "0,1")


def test_it_can_be_left_out(tmp_path):
    done = call(*COMMON, "--limit", 200, "--no-audit", "--out", tmp_path / "run")
    assert "audit" not in done.stderr
    assert not (Run(tmp_path / "run").folder / AUDIT).exists()
    assert "Not audited" in (tmp_path / "run" / "report.html").read_text()
