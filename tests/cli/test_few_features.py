"""`--p 0` from the command line to the report: the words say what is counted, and the rows hold it."""

import json

import pytest

from deepfool import Run
from deepfool.errors import DeepFoolError, InputError, RunError
from tests.calling import call


def said(*words):
    """What a command line printed, on one line."""
    done = call(*words)
    return " ".join(f"{done.stdout} {done.stderr}".split())


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    here = tmp_path_factory.mktemp("few")
    common = ["evaluate", "--model", "lenet-cifar10", "--data", "cifar10-sample", "--limit", "4", "--p", "0"]
    common += ["--bounds", "0,1", "--save-perturbations"]
    for name, more in {
        "features": ["--attack", "smallest", "--knob", "budget=30"],
        "pixels": ["--attack", "smallest", "--knob", "budget=30", "--knob", "unit=pixel"],
        "sparsefool": ["--attack", "sparsefool"],
    }.items():
        call(*common, *more, "--out", here / name)
    return here


def test_rows_hold_counts_and_shares(runs):
    for name, units in (("features", 3072), ("pixels", 1024)):
        records = Run(runs / name).records()
        assert (records.x["p"] == units).all()
        assert (records.r["p"] == records.r["p"].round()).all()
        assert (records.ratio("p") <= 1).all()
    assert (Run(runs / "features").unit, Run(runs / "pixels").unit) == ("feature", "pixel")


def test_the_report_says_what_is_counted(runs):
    page = (runs / "pixels" / "report.html").read_text()
    assert "share of pixels changed" in page
    assert "of the pixels is enough to change the decision" in page
    assert "ℓ0 (pixels)" in page
    assert "‖r‖ / ‖x‖</span>" not in page
    assert "share of features changed" in (runs / "features" / "report.html").read_text()


def test_show_verify_and_compare(runs):
    summary = json.loads(call("show", runs / "features", "--json").stdout)
    assert (summary["norm"], summary["unit"]) == ("l0", "feature")
    assert "of the features is enough" in summary["verdict"]["lead"]
    assert "norms: 4 of 4 match" in said("verify", runs / "pixels")
    assert "of the features" in said("compare", runs / "features", runs / "sparsefool")
    with pytest.raises(RunError, match="count different things, features and pixels"):
        call("compare", runs / "features", runs / "pixels")


def test_what_p_0_needs_and_what_refuses_it(runs, tmp_path):
    common = ["evaluate", "--model", "lenet-cifar10", "--data", "cifar10-sample", "--limit", "2", "--p", "0"]
    with pytest.raises(InputError, match="p = 0 needs bounds"):
        call(*common, "--attack", "smallest", "--out", tmp_path / "a")
    with pytest.raises(InputError, match="deepfool works in the norms p >= 1"):
        call(*common, "--bounds", "0,1", "--out", tmp_path / "b")
    with pytest.raises(DeepFoolError, match="certify works in the norms p = 1, 2 and inf"):
        call("certify", runs / "features")
