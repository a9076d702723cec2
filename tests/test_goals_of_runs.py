"""Goals in runs: rows, resuming, certificates, verification, figures, gates and the report, for each kind of model."""

import json
import re

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, make_multilabel_classification
from torch import nn
from typer.testing import CliRunner

from deepfool import Run, evaluate
from deepfool.cli import app
from deepfool.errors import InputError
from deepfool.metrics import summarize, write_words
from deepfool.metrics.gates import check
from deepfool.metrics.settings import find_differences
from deepfool.reporting.page import write_report
from deepfool.reporting.provenance import repeat_command
from deepfool.runs.certifying import certify_run
from deepfool.runs.verification import verify
from tests.oracles import affine_case, free_distances, score_differences

SAMPLES = 12


def train(net, x, y, loss, steps=200):
    torch.manual_seed(0)
    optimiser = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(steps):
        optimiser.zero_grad()
        loss(net(x), y).backward()
        optimiser.step()
    return net.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def several_labels():
    """A model of five labels, trained, and its data; as in docs/howto/goals.md."""
    x, y = make_multilabel_classification(300, 20, n_classes=5, n_labels=2, random_state=0)
    x = torch.tensor((x - x.mean(0)) / x.std(0), dtype=torch.float32)
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 5))
    return train(net, x, torch.tensor(y, dtype=torch.float32), nn.BCEWithLogitsLoss()), x


@pytest.fixture(scope="module")
def regression():
    """A model of one value, trained on real data, and its data."""
    data = load_diabetes()
    x = torch.tensor(data.data / data.data.std(0), dtype=torch.float32)
    y = torch.tensor(data.target, dtype=torch.float32)[:, None]
    y = (y - y.mean()) / y.std()
    torch.manual_seed(2)
    return train(nn.Sequential(nn.Linear(10, 12), nn.ReLU(), nn.Linear(12, 1)), x, y, nn.MSELoss()), x


@pytest.fixture(scope="module")
def labels_run(several_labels, tmp_path_factory):
    net, x = several_labels
    out = tmp_path_factory.mktemp("runs") / "labels"
    return evaluate(net, (x, None), goal="labels", limit=SAMPLES, out=out, certify=60.0, save_perturbations=True)


@pytest.fixture(scope="module")
def values_run(regression, tmp_path_factory):
    net, x = regression
    out = tmp_path_factory.mktemp("runs") / "values"
    return evaluate(net, (x, None), goal="within:0.5", limit=SAMPLES, out=out, certify=60.0, save_perturbations=True)


def test_rows_and_the_manifest_name_the_goal(labels_run, values_run):
    assert labels_run.identity["attack"]["knobs"]["goal"] == "labels"
    assert values_run.identity["attack"]["knobs"]["goal"] == "within:0.5"
    assert labels_run.manifest["data"]["classes"] == [*(f"label {j}" for j in range(5)), "unchanged"]
    assert values_run.manifest["data"]["classes"] == ["within", "above", "below"]
    for run, stays in ((labels_run, 5), (values_run, 0)):
        rows = list(run.rows())
        assert all(row["status"] == "FOOLED" and row["label"] == stays != row["adv_label"] for row in rows)
        assert all(row["true_label"] is None for row in rows)


def test_stored_perturbations_do_what_the_rows_say(several_labels, regression, labels_run, values_run):
    for (net, x), run in ((several_labels, labels_run), (regression, values_run)):
        assert verify(run, net, (x, None)).holds
    net, x = regression
    for rows, r in values_run.perturbations():
        index = [row["index"] for row in rows]
        moved = (net(x[index] + torch.from_numpy(r)) - net(x[index]))[:, 0]
        assert (moved.abs() >= 0.5 - 1e-5).all()
        assert [row["adv_label"] for row in rows] == [1 if each > 0 else 2 for each in moved.tolist()]


def test_certificates_of_goals(regression, labels_run, values_run):
    for run in (labels_run, values_run):
        records = run.records()
        assert records.certified.all()
        assert (records.lower <= records.upper * (1 + 1e-3)).all()
        assert (records.lower > 0).mean() > 0.9
    net, x = regression
    before = [row["proof"] for row in values_run.rows()]
    certify_run(values_run, net, (x, None), seconds=60.0)
    assert [row["proof"] for row in values_run.rows()] == before


def test_the_report_of_a_regression_model_does_not_speak_of_classes(values_run, tmp_path):
    page = write_report([values_run], tmp_path / "report.html").read_text()
    text = re.sub(r"<script.*?</script>|<style.*?</style>|<[^>]*>", " ", page, flags=re.DOTALL)
    assert "the output leaves y ± 0.5" in text
    assert "How many decisions hold" in text
    for word in (r"\bclass(es)?\b", "ccuracy", "lassified", r"\blabels?\b"):
        assert not re.search(word, text), (word, re.search(word, text))
    assert re.search(r"within\s+→\s+(above|below)", text)


def test_figures_and_words(labels_run, values_run):
    for run, words in ((labels_run, "any label flips"), (values_run, "the output leaves y ± 0.5")):
        summary = summarize(run)
        assert summary["goal"] == run.identity["attack"]["knobs"]["goal"]
        assert summary["classes_decide"] is False
        assert summary["accuracy"]["value"] is None
        said = " ".join(write_words(run, run.records()).all)
        assert f"counts as changed where {words}." in said
        assert "classified" not in said
        shown = CliRunner().invoke(app, ["show", str(run.folder)]).output
        assert "accuracy" not in shown


def test_gates_and_comparisons(several_labels, labels_run, tmp_path):
    net, x = several_labels
    assert all(each.passed for each in check(labels_run, min_rho=1e-6, min_samples=5))
    assert not all(each.passed for each in check(labels_run, min_samples=5, min_accuracy=["0.5"]))
    one = evaluate(net, (x, None), goal="label:2", limit=SAMPLES, out=tmp_path / "one")
    assert "goal labels and label:2" in find_differences(labels_run, one)
    assert (one.records().r["p"] >= labels_run.records().r["p"] * 0.9).all()


def test_top_k_of_the_true_label(tmp_path):
    model, x = affine_case(6, 8, 30, seed=1)
    model, x = model.float(), x.float()
    order = model(x).argsort(1, descending=True)
    labels = order[torch.arange(30), torch.arange(30) % 3]  # in the first, second and third place
    run = evaluate(model, (x, labels), "smallest", goal="top:2", skip_misclassified=True, out=tmp_path / "run")
    records = run.records()
    assert (records.status == 3).tolist() == (torch.arange(30) % 3 == 2).tolist()
    assert summarize(run)["accuracy"]["value"] == pytest.approx(2 / 3)
    plain = evaluate(model, (x, labels), "smallest", out=tmp_path / "plain").records()
    first = np.arange(30) % 3 == 0
    assert (records.r["p"][first] >= plain.r["p"][first] * 0.999).all()


def test_margins_are_exact_on_affine_models(tmp_path):
    model, x = affine_case(4, 6, 10, seed=2)
    run = evaluate(model, (x, None), goal="margin:1", dtype="float64", tighten=True, out=tmp_path / "run", certify=5.0)
    for row, size in zip(run.rows(), run.records().r["p"], strict=True):
        _, w, gap = score_differences(model, x[row["index"]].float().double().numpy())
        assert size == pytest.approx(free_distances(w, gap + 1, 2).min(), rel=1e-4)
        assert row["proof"] == "EXACT"


def test_the_command_line_takes_a_goal_and_the_report_repeats_it(tmp_path):
    command = ["evaluate", "--model", "lenet-mnist", "--data", "mnist-sample", "--limit", "4", "--goal", "top:2"]
    ran = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "run"), "--json", "--quiet"])
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout)["goal"] == "top:2"
    assert "--goal top:2" in repeat_command(Run(tmp_path / "run"))
    wrong = CliRunner().invoke(app, [*command[:-1], "top"])
    assert wrong.exit_code != 0
    assert "needs a whole number" in str(wrong.exception)


def test_one_image_with_a_goal(tmp_path):
    from PIL import Image

    from deepfool.datasets import load

    pixels = (load("mnist-sample").batch([0])[0, 0] * 255).byte().numpy()
    Image.fromarray(pixels).save(tmp_path / "digit.png")
    command = ["attack", str(tmp_path / "digit.png"), "--model", "lenet-mnist", "--json", "--goal"]
    sizes = {}
    for goal in ("other", "top:3", "confidence:0.9"):
        ran = CliRunner().invoke(app, [*command, goal])
        assert ran.exit_code == 0, ran.output
        sizes[goal] = json.loads(ran.stdout)["attacks"][0]["norm"]
    assert sizes["other"] < min(sizes["top:3"], sizes["confidence:0.9"])
    assert "no classes to show" in str(CliRunner().invoke(app, [*command, "within:1"]).exception)


def test_what_does_not_go_together(several_labels, tmp_path):
    net, x = several_labels
    with pytest.raises(InputError, match="skip_misclassified needs classes"):
        evaluate(net, (x, None), goal="labels", skip_misclassified=True, out=tmp_path / "a")
    with pytest.raises(InputError, match="cannot prove the goal top:2"):
        evaluate(net, (x, None), goal="top:2", certify=1.0, out=tmp_path / "b")
    with pytest.raises(InputError, match="no knob called 'goal'"):
        evaluate(net, (x, None), lambda model, x: None, goal="labels", out=tmp_path / "c")


def test_a_run_without_a_goal_is_the_run_that_it_was(tmp_path):
    model, x = affine_case(3, 4, 5, seed=3)
    run = evaluate(model.float(), (x.float(), None), out=tmp_path / "run", goal="other")
    assert "goal" not in run.identity["attack"]["knobs"]
