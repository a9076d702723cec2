"""Weights, subspaces and schemas in runs: rows, resuming, verification, audit, figures, report, commands."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from deepfool import Feature, Run, Schema, affine, audit, evaluate
from deepfool.cli import app
from deepfool.errors import InputError, RunError
from deepfool.metrics import summarize
from deepfool.metrics.comparison import shared_norm
from deepfool.metrics.settings import find_differences
from deepfool.metrics.setup import describe_setup
from deepfool.reporting.page import write_report
from deepfool.reporting.provenance import repeat_command
from deepfool.runs.audit import subject
from deepfool.runs.certifying import certify_run
from deepfool.runs.verification import verify
from deepfool.subspaces import draw_subspace

N, D, C = 20, 6, 3
WEIGHTS = torch.tensor([1.0, 10.0, 0.1, 2.0, 5.0, 0.5])


@pytest.fixture(scope="module")
def case():
    torch.manual_seed(0)
    return nn.Linear(D, C), torch.rand(N, D, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def weighted(case, tmp_path_factory):
    model, x = case
    out = tmp_path_factory.mktemp("runs") / "weighted"
    return evaluate(model, (x, None), out=out, p=1, weights=WEIGHTS, save_perturbations=True, overshoot=1e-5)


def test_rows_have_weighted_norms(case, weighted):
    model, x = case
    exact = affine(model.weight.detach(), model.bias.detach(), x, p=1, weights=WEIGHTS).norm
    records = weighted.records()
    assert records.r["p"] == pytest.approx(exact.numpy(), rel=1e-3)
    assert records.x["p"] == pytest.approx((WEIGHTS * x).abs().sum(1).numpy(), rel=1e-5)
    assert records.r["linf"] == pytest.approx(records.r["p"], rel=1e-3)  # one feature changes
    assert weighted.identity["attack"]["knobs"]["weights"] == WEIGHTS.tolist()
    assert verify(weighted, model, (x, None)).holds


def test_runs_resume_and_differ(case, weighted):
    model, x = case
    again = evaluate(model, (x, None), out=weighted.folder, p=1, weights=WEIGHTS.double().tolist(),
                     save_perturbations=True, overshoot=1e-5)  # fmt: skip
    assert again.manifest["sessions"][-1]["rows_after"] == N
    with pytest.raises(RunError, match="another run"):
        evaluate(model, (x, None), out=weighted.folder, p=1, save_perturbations=True, overshoot=1e-5)


def test_everything_says_weighted(case, weighted, tmp_path):
    model, x = case
    plain = evaluate(model, (x, None), out=tmp_path / "plain", p=1)
    assert "weights" not in plain.identity["attack"]["knobs"]
    assert any("weights" in line for line in find_differences(weighted, plain))
    with pytest.raises(RunError, match="weigh features differently"):
        shared_norm(weighted, plain, "l2")
    summary = summarize(weighted)
    assert summary["norm"] == "weighted l1"
    assert "weights of 6 features" in summary["setup"]
    assert any("weighted" in line for line in summary["verdict"]["lines"])
    assert "weighted" not in json.dumps(summarize(plain)["verdict"])
    page = write_report([weighted], tmp_path / "report.html").read_text()
    assert "weighted ℓ1" in page
    assert "weighted ℓ1" in weighted._repr_html_()
    shown = CliRunner().invoke(app, ["show", str(weighted.folder)])
    assert "weighted l1" in shown.output


def test_no_certificates_for_another_question(case, weighted, tmp_path):
    model, x = case
    with pytest.raises(InputError, match="do not go with weights"):
        evaluate(model, (x, None), out=tmp_path / "a", weights=WEIGHTS, certify=1.0)
    with pytest.raises(InputError, match="do not go with subspace"):
        evaluate(model, (x, None), out=tmp_path / "b", subspace="random:3", certify=1.0)
    with pytest.raises(InputError, match="do not go with weights"):
        certify_run(weighted, model, (x, None), seconds=1.0)


def test_subspaces_of_runs(case, tmp_path):
    model, x = case
    basis = draw_subspace(D, 3, seed=4)
    run = evaluate(model, (x, None), out=tmp_path / "run", subspace="random:3/4", save_perturbations=True, audit=False)
    assert run.identity["attack"]["knobs"]["subspace"] == "random:3/4"
    assert "subspace random:3/4" in str(describe_setup(run))
    assert any("random:3/4" in line for line in summarize(run)["verdict"]["lines"])
    for rows, r in run.perturbations():
        assert torch.allclose(basis.project(torch.from_numpy(r)), torch.from_numpy(r), atol=1e-5)
        assert len(rows) == N
    assert verify(run, model, (x, None)).holds
    with pytest.raises(InputError, match="as an object"):
        evaluate(model, (x, None), out=tmp_path / "b", subspace=basis)
    with pytest.raises(InputError, match="there is no subspace"):
        evaluate(model, (x, None), out=tmp_path / "c", subspace="low:3")
    given = basis.back(torch.eye(3)).T.contiguous()
    same = evaluate(model, (x, None), out=tmp_path / "d", subspace=given, audit=False)
    assert same.records().r["p"] == pytest.approx(run.records().r["p"], rel=1e-3)


def test_schemas_of_runs(case, tmp_path):
    model, x = case
    x = torch.cat([(x[:, :4] * 10).round(), torch.eye(2)[torch.arange(N) % 2]], 1)
    features = [Feature(name, "integer", 0, 10, cost=cost) for name, cost in zip("abcd", (1, 2, 3, 4), strict=True)]
    schema = Schema([*features, Feature("e", "one-hot", categories=["u", "v"], cost=1.5)])
    (tmp_path / "schema.json").write_text(json.dumps(schema.as_dict()))
    run = evaluate(model, (x, None), out=tmp_path / "run", p=1, schema=schema, save_perturbations=True)
    assert run.identity["attack"]["knobs"]["schema"] == schema.as_dict()
    weights = torch.tensor(schema.weights)
    for rows, r in run.perturbations():
        found = torch.from_numpy(r)
        schema.check(x + found)
        known = [row["r_p"] for row in rows if row["status"] == "FOOLED"]
        sizes = (weights * found).abs().sum(1)[[row["status"] == "FOOLED" for row in rows]]
        assert sizes.tolist() == pytest.approx(known, rel=1e-5)
        assert len(known) >= N // 2
    assert verify(run, model, (x, None)).holds
    assert "schema of 5 features" in summarize(run)["setup"]
    assert summarize(run)["norm"] == "weighted l1"
    assert "valid ones of a schema" in write_report([run], tmp_path / "report.html").read_text()
    again = evaluate(model, (x, None), out=tmp_path / "run", p=1, schema=str(tmp_path / "schema.json"),
                     save_perturbations=True)  # fmt: skip
    assert again.manifest["sessions"][-1]["rows_after"] == N
    with pytest.raises(InputError, match="do not go with schema"):
        evaluate(model, (x, None), out=tmp_path / "c", schema=schema, certify=1.0)
    with pytest.raises(InputError, match="the samples have 3"):
        evaluate(nn.Linear(3, 2), (x[:, :3], None), out=tmp_path / "d", schema=schema)


def test_audits_ask_the_same(case, weighted, monkeypatch):
    model, x = case
    monkeypatch.setattr(subject.make_subject, "__kwdefaults__", {"strong": 100})  # enough for an affine model
    for found in (
        audit(weighted, (x, None), model=model, samples=2),
        audit(model, (x, None), "deepfool", subspace="random:3", samples=2),
    ):
        assert found["strongest attack"].number == pytest.approx(1, abs=0.03)  # DeepFool is exact here


def test_command_line(tmp_path):
    np.save(tmp_path / "w.npy", np.linspace(1, 2, 784))
    common = ["evaluate", "--model", "lenet-mnist", "--data", "mnist-sample", "--limit", "3", "--json", "--no-report"]
    weighted = CliRunner().invoke(app, [*common, "--weights", str(tmp_path / "w.npy"), "--out", str(tmp_path / "w")])
    assert weighted.exit_code == 0, weighted.output
    assert json.loads(weighted.stdout)["norm"] == "weighted l2"
    assert "--weights 1.0,1.00" in str(repeat_command(Run(tmp_path / "w")))
    band = CliRunner().invoke(app, [*common, "--subspace", "band:1/8", "--out", str(tmp_path / "b")])
    assert band.exit_code == 0, band.output
    assert "--subspace band:1/8" in str(repeat_command(Run(tmp_path / "b")))
    for options, words in (
        (["--weights", "none.npy"], "there is no file of weights"),
        (["--weights", "1,2"], "one number for each feature"),
        (["--subspace", "band:9/8"], "a band is"),
        (["--schema", str(tmp_path / "none.toml")], "there is no such file"),
        (["--knob", "weights=[1]"], "has its own option"),
    ):
        refused = CliRunner().invoke(app, [*common, *options, "--out", str(tmp_path / "x")])
        assert refused.exit_code != 0
        assert words in refused.output + str(refused.exception)


def test_audits_have_goals_of_classes_only():
    common = ["audit", "--model", "mlp-mnist-small", "--data", "mnist-sample", "--limit", "4", "--samples", "1"]
    for goal in ("labels", "within:0.5", "passes:3"):
        refused = CliRunner().invoke(app, [*common, "--goal", goal])
        assert f"the goal {goal} has none" in refused.output + str(refused.exception)
    done = CliRunner().invoke(app, [*common, "--goal", "margin:2", "--attack", "deepfool", "--json"])
    assert done.exit_code in (0, 1), done.output
    assert json.loads(done.stdout)["checks"]
