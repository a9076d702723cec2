"""An attack that fails never makes a gate pass."""

import shutil

import pytest
from typer.testing import CliRunner

from deepfool import Run, evaluate
from deepfool.cli import app
from deepfool.errors import InputError, RunError
from deepfool.metrics.gates import check, parse_share
from tests import nets


@pytest.fixture(scope="module")
def half_fooled(tmp_path_factory):
    """About half of the samples cannot be fooled, because there is no gradient to follow."""
    x, _ = nets.points(40)
    return evaluate(nets.Flat(), (x, [0] * 40), out=tmp_path_factory.mktemp("run") / "run", max_iter=5)


def verdict(run, **conditions):
    complete, found = check(run, **conditions)
    assert complete.passed
    return found


def test_not_fooled_counts_against_the_model(half_fooled):
    records = half_fooled.records()
    failed = records.censored.mean()
    assert 0.2 < failed < 0.8
    survivors = records.ratio("p")[records.fooled].mean()
    assert not verdict(half_fooled, min_rho=survivors * 0.99).passed, "that would be a mean over the survivors"
    found = verdict(half_fooled, min_rho=survivors * (1 - failed) * 0.99)
    assert found.passed
    assert "samples that were not fooled count as 0" in found.why
    assert not verdict(half_fooled, max_fooled=f"{failed * 0.9}@eps=0").passed
    assert verdict(half_fooled, max_fooled=f"{failed * 1.1}@eps=0").passed
    assert not verdict(half_fooled, min_accuracy=f"{failed * 0.5}@eps=1000").passed


def test_damaged_rows_meet_no_condition(half_fooled, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(half_fooled.folder, folder)
    lines = (folder / "records.jsonl").read_text().splitlines(keepends=True)
    lines[3] = lines[4]
    (folder / "records.jsonl").write_text("".join(lines))
    verdicts = check(Run(folder), min_rho=0.0, max_fooled="1@eps=0", min_accuracy="0")
    assert [verdict.name for verdict in verdicts] == ["complete", "min-rho", "max-fooled", "min-accuracy"]
    assert not any(verdict.passed for verdict in verdicts)
    assert "holds sample 4 twice" in verdicts[0].why
    done = CliRunner().invoke(app, ["check", str(folder), "--min-rho", "0", "--junit", str(tmp_path / "j.xml")])
    assert done.exit_code == 1
    assert done.stderr.startswith("failed: complete: ")
    assert "holds sample 4 twice" in (tmp_path / "j.xml").read_text()
    with pytest.raises(RunError, match="holds sample 4 twice"):
        CliRunner().invoke(app, ["show", str(folder)], catch_exceptions=False)


def test_accuracy_needs_labels(tmp_path):
    run = evaluate(nets.small(), (nets.points(5)[0], None), out=tmp_path / "run")
    assert not verdict(run, min_accuracy="0").passed


@pytest.mark.parametrize("text", ["", "x@eps=1", "0.5@eps=", "0.5@eps=-1", "1.5@eps=1", "0.5@delta=1", "0.5@eps=inf"])
def test_what_is_no_condition(text):
    with pytest.raises(InputError):
        parse_share(text, eps_needed=True)
