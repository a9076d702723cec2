"""A gate that cannot be fooled: each reason to fail, provoked by a run; what is not known has not passed."""

import json
import shutil

import pytest

from deepfool import Run, evaluate
from deepfool.attacks.shared.adversarial import Evidence
from deepfool.errors import InputError, RunError
from deepfool.metrics.comparison import FEWEST, compare
from deepfool.metrics.gates import check, parse_share
from deepfool.metrics.regression import parse_drop
from deepfool.runs.consistency import InconsistentModelWarning
from tests import nets
from tests.calling import call
from tests.reporting.simulated import simulate

STEADY = [
    {"started": "2026-01-05T10:00:00+00:00", "scores": {"repeatable": True, "independent": True, "difference": 0}}
]
HEALTH = ["complete", "min-samples", "max-cautioned", "audit", "repeatable"]


def healthy(folder, n=60, **how):
    return simulate(folder, n, **{"sessions": STEADY, **how})


def change_rows(folder, change, last=1):
    """Rewrite the last rows of a run."""
    lines = (folder / "records.jsonl").read_text().splitlines()
    for i in range(len(lines) - last, len(lines)):
        lines[i] = json.dumps(change(json.loads(lines[i])))
    (folder / "records.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def stretch(folder, by, last):
    """The same run of a model that is more robust (by > 1) on its last samples, or less."""
    scale = lambda row: row | {name: by * row[name] for name in ("r_p", "r_l1", "r_l2", "r_linf")}  # noqa: E731
    return change_rows(folder, scale, last)


def add_audit(folder, *verdicts, rows=None):
    checks = [{"name": "strongest attack", "verdict": v, "sentence": f"It is {v}.", "number": 1.0} for v in verdicts]
    run = Run(folder)
    about = {"model": run.identity["model"]["sha256"], "rows": rows or run.count, "samples": [1], "checks": checks}
    (folder / "audit.json").write_text(json.dumps(about))
    return folder


def judge(run, name, **conditions):
    """The verdict of one condition."""
    conditions = conditions or {"max_cautioned": 0}
    return next(verdict for verdict in check(run, **conditions) if verdict.name == name)


def failed(run, **conditions):
    return [verdict.name for verdict in check(run, **(conditions or {"max_cautioned": 0})) if not verdict.passed]


# whether the run can be relied on


def test_a_healthy_run_passes(tmp_path):
    verdicts = check(healthy(tmp_path / "run"), min_rho=0.1)
    assert [verdict.name for verdict in verdicts] == [*HEALTH, "min-rho"]
    assert all(verdict.outcome == "met" for verdict in verdicts)


def test_an_incomplete_run_fails(tmp_path):
    folder = healthy(tmp_path / "run")
    whole = (folder / "records.jsonl").read_text()
    (folder / "records.jsonl").write_text(whole.replace('"batch": 60', '"batch": 30')[:-9])
    found = judge(folder, "complete", min_accuracy="0")
    assert (found.outcome, found.why[:29]) == ("not met", "30 of 60 samples were measured"[:29])
    (folder / "records.jsonl").unlink()
    assert {"complete", "min-samples", "min-rho", "max-fooled"} <= set(failed(folder, min_rho=0, max_fooled="1@eps=9"))


def test_damaged_rows_meet_no_condition(tmp_path):
    folder = healthy(tmp_path / "run")
    lines = (folder / "records.jsonl").read_text().splitlines(keepends=True)
    lines[3] = lines[4]
    (folder / "records.jsonl").write_text("".join(lines))
    verdicts = check(Run(folder), min_rho=0.0, max_fooled="1@eps=0", min_accuracy="0")
    assert [verdict.name for verdict in verdicts] == [*HEALTH, "min-rho", "max-fooled", "min-accuracy"]
    assert not any(verdict.passed for verdict in verdicts)
    assert {verdict.outcome for verdict in verdicts[1:]} == {"not known"}
    assert "holds sample 4 twice" in verdicts[0].why
    with pytest.raises(RunError, match="holds sample 4 twice"):
        call("show", folder)


@pytest.mark.parametrize("text", ["{", "{}", '{"format": 1, "samples": 3}'])
def test_a_damaged_manifest_is_a_failure_that_ci_shows(tmp_path, text):
    folder = healthy(tmp_path / "run")
    (folder / "manifest.json").write_text(text)
    done = call("check", folder, "--min-rho", 0, "--junit", tmp_path / "j.xml", code=1)
    assert "manifest.json" in " ".join(done.stdout.split())
    assert "manifest.json" in (tmp_path / "j.xml").read_text()


def test_a_folder_that_is_no_run_is_an_error(tmp_path):
    with pytest.raises(RunError, match="is not a run"):
        check(tmp_path / "absent", min_rho=0)


def test_too_few_samples_fail(tmp_path):
    few = healthy(tmp_path / "few", FEWEST - 1)
    assert failed(few, min_rho=0.01) == ["min-samples"]
    assert failed(few, min_rho=0.01, min_samples=5) == []
    assert failed(healthy(tmp_path / "run"), min_samples=61) == ["min-samples"]


def test_skipped_samples_do_not_count(tmp_path):
    skip = lambda row: row | {"status": "MISCLASSIFIED", **{f"r_{n}": 0.0 for n in ("p", "l1", "l2", "linf")}}  # noqa: E731
    folder = change_rows(healthy(tmp_path / "run"), skip, last=45)
    found = judge(folder, "min-samples")
    assert (found.outcome, found.why) == ("not met", "15 samples were searched")


def test_rows_without_an_answer_are_cautioned(tmp_path):
    folder = healthy(tmp_path / "run", censored=3)
    found = judge(folder, "max-cautioned")
    assert (found.outcome, found.why) == ("not met", "3 of 60 rows come with a caution (3: no answer, EXHAUSTED)")
    assert judge(folder, "max-cautioned", max_cautioned=3).passed
    assert not judge(folder, "max-cautioned", max_cautioned=2).passed


@pytest.mark.parametrize("caution", [*({"evidence": each.name.lower()} for each in Evidence), {"reason": "beware"}, {}])
def test_rows_that_the_attack_has_a_caution_about(tmp_path, caution):
    folder = change_rows(healthy(tmp_path / "run"), lambda row: row | caution)
    found = judge(folder, "max-cautioned")
    assert found.passed == (caution in ({}, {"evidence": "gradients"}))
    assert found.passed or "1 of 60 rows come with a caution (1: " in found.why


def test_a_masked_model_fails(tmp_path):
    """A real one: `smallest` has to search without gradients where a rounding hides them."""
    import torch

    class Rounded(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nets.small()

        def forward(self, x):
            return self.body(torch.round(20 * x) / 20)

    run = evaluate(Rounded(), nets.points(FEWEST), "smallest", out=tmp_path / "run", budget=20, audit=False)
    found = judge(run, "max-cautioned", min_rho=0.0)
    assert found.outcome == "not met"
    assert "20 of 20 rows come with a caution" in found.why


@pytest.mark.parametrize(
    ("verdicts", "outcome"), [((), "met"), (("pass",), "met"), (("caution",), "met"), (("pass", "fail"), "not met")]
)
def test_an_audit_that_failed(tmp_path, verdicts, outcome):
    folder = healthy(tmp_path / "run")
    found = judge(add_audit(folder, *verdicts) if verdicts else folder, "audit")
    assert found.outcome == outcome
    assert ("It is fail." in found.why) == (outcome == "not met")


def test_an_audit_that_is_missing(tmp_path):
    """`evaluate` audits large runs: to delete what it found, or to add rows, does not help."""
    large = healthy(tmp_path / "large", 200)
    assert judge(large, "audit").outcome == "not known"
    assert judge(add_audit(large, "fail", rows=199), "audit").outcome == "not known"
    assert judge(add_audit(large, "pass"), "audit").passed
    small = healthy(tmp_path / "small")
    assert judge(small, "audit", require_audit=True).outcome == "not known"
    assert judge(add_audit(small, "pass"), "audit", require_audit=True).passed


def test_a_random_model_fails(tmp_path):
    with pytest.warns(InconsistentModelWarning, match="it is random"):
        run = evaluate(nets.noisy(), nets.points(FEWEST), out=tmp_path / "run")
    found = judge(run, "repeatable")
    assert found.outcome == "not met"
    assert "it is random" in found.why


@pytest.mark.parametrize(
    ("scores", "outcome"),
    [
        ({"repeatable": True, "independent": True, "difference": 0.0}, "met"),
        ({"repeatable": True, "independent": None, "difference": None}, "met"),
        ({"repeatable": True, "independent": False, "difference": 0.4}, "not met"),
        ({"repeatable": True, "independent": False, "difference": None}, "met"),  # it cannot be run alone
        ({"repeatable": False, "independent": None, "difference": None}, "not met"),
        ({"repeatable": None, "independent": None, "difference": None}, "not known"),
        (None, "not known"),
    ],
)
def test_scores_that_change(tmp_path, scores, outcome):
    sessions = [] if scores is None else [{"scores": scores}]
    assert judge(healthy(tmp_path / "run", sessions=sessions), "repeatable").outcome == outcome


def test_one_bad_session_is_enough(tmp_path):
    noisy = {"scores": {"repeatable": False, "independent": None, "difference": 0.1}}
    assert not judge(healthy(tmp_path / "run", sessions=[*STEADY, noisy, "?"]), "repeatable").passed


# the numbers


def test_rho_is_compared_by_the_lower_end_of_its_interval(tmp_path):
    folder = healthy(tmp_path / "run")
    ratios = Run(folder).records().ratio("p")
    least = float(ratios.mean()) * 0.99
    assert judge(folder, "min-rho", min_rho=least).outcome == "not met"
    found = judge(folder, "min-rho", min_rho=least, point=True)
    assert found.passed
    assert found.why.startswith("rho_adv in l2 <= ")
    assert judge(folder, "min-rho", min_rho=float(ratios.mean()) * 0.8).passed


def test_rho_is_not_known_where_a_sample_has_no_answer(tmp_path):
    folder = healthy(tmp_path / "run", censored=1)
    found = judge(folder, "min-rho", min_rho=0.0, max_cautioned=1)
    assert (found.outcome, found.why) == ("not known", "rho_adv in l2 is not known: 1 of 60 samples have no answer")


def test_a_failing_attack_never_helps(tmp_path):
    """About half of the samples cannot be fooled, because there is no gradient to follow."""
    x, _ = nets.points(40)
    run = evaluate(nets.Flat(), (x, [0] * 40), out=tmp_path / "run", max_iter=5)
    records = run.records()
    share = records.censored.mean()
    assert 0.2 < share < 0.8
    assert judge(run, "min-rho", min_rho=0.0).outcome == "not known"
    assert not judge(run, "max-fooled", max_fooled=f"{share * 0.9}@eps=0").passed
    assert judge(run, "max-fooled", max_fooled=f"{share * 1.1}@eps=0").passed
    assert not judge(run, "min-accuracy", min_accuracy=f"{share * 0.5}@eps=1000").passed
    assert "STUCK" in judge(run, "max-cautioned").why


def test_several_conditions_of_a_kind(tmp_path):
    verdicts = check(healthy(tmp_path / "run"), min_accuracy=["0.9", "0.9@eps=9"], max_fooled=("1@eps=1", "0@eps=9"))
    assert [(v.name, v.passed) for v in verdicts[5:]] == [
        ("max-fooled", True), ("max-fooled", False), ("min-accuracy", True), ("min-accuracy", False),
    ]  # fmt: skip


def test_accuracy_needs_labels(tmp_path):
    run = evaluate(nets.small(), (nets.points(5)[0], None), out=tmp_path / "run")
    assert judge(run, "min-accuracy", min_accuracy="0").outcome == "not known"


# verified


@pytest.fixture
def kept(tmp_path):
    out = tmp_path / "kept"
    call("evaluate", "--model", "fc500-mnist", "--data", "mnist-sample", "--limit", 20, "--save-perturbations",
         "--out", out, "-q", "--no-report")  # fmt: skip
    return out


def test_verified(kept, tmp_path):
    assert judge(kept, "verified", require_verified=True).outcome == "not known"
    call("verify", kept)
    assert judge(kept, "verified", require_verified=True).passed
    assert failed(kept, require_verified=True) == []
    # The rows are changed afterwards: what was verified is something else.
    stretch(kept, 2.0, last=1)
    assert judge(kept, "verified", require_verified=True).outcome == "not known"
    call("verify", kept, code=1)
    assert judge(kept, "verified", require_verified=True).outcome == "not met"


def test_what_cannot_be_verified(tmp_path):
    found = judge(healthy(tmp_path / "run"), "verified", require_verified=True)
    assert found.outcome == "not known"
    assert "--save-perturbations" in found.why


# against a baseline


def pair_of_runs(tmp_path, by, last=60, n=60, **how):
    before = healthy(tmp_path / "before", n)
    after = stretch(healthy(tmp_path / "after", n, **how), by, last)
    return before, after


def test_the_same_model_is_no_regression(tmp_path):
    before, after = pair_of_runs(tmp_path, 1.0)
    found = judge(after, "baseline", baseline=before, max_drop="0%")
    assert found.passed
    assert "as large on average as in the baseline" in found.why


def test_less_robust_beyond_chance(tmp_path):
    before, after = pair_of_runs(tmp_path, 0.98)
    found = judge(after, "baseline", baseline=before)
    assert found.outcome == "not met"
    assert "2.0 % smaller on average than in the baseline" in found.why
    assert found.why.endswith("less robust beyond chance")
    assert judge(before, "baseline", baseline=after).passed, "more robust is no regression"


def test_a_drop_that_may_be_chance(tmp_path):
    before, after = pair_of_runs(tmp_path, 0.5, last=1)
    drop = -compare(Run(before).records(), Run(after).records()).mean_difference.value
    assert judge(after, "baseline", baseline=before).passed
    assert judge(after, "baseline", baseline=before, max_drop=1.01 * drop).passed
    found = judge(after, "baseline", baseline=before, max_drop=0.99 * drop)
    assert found.outcome == "not met"
    assert "a drop of more than" in found.why
    assert judge(after, "baseline", baseline=before, max_drop="5%").passed
    assert not judge(after, "baseline", baseline=before, max_drop="0.01%").passed


def test_a_collapse_on_a_few_samples_is_not_outvoted(tmp_path):
    """Most samples are a little better, some have become very fragile: the mean counts."""
    before, after = pair_of_runs(tmp_path, 1.001)
    stretch(after, 0.01, last=15)
    assert not judge(after, "baseline", baseline=before).passed


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda folder: (folder / "manifest.json").write_text("{"), "cannot be read"),
        (lambda folder: (folder / "records.jsonl").write_text(""), "the baseline is not complete: 0 of 60 samples"),
        (lambda folder: change_rows(folder, lambda row: row | {"index": 0}), "holds sample 0 twice"),
        (lambda folder: shutil.rmtree(folder), "is not a run"),
    ],
)
def test_a_baseline_that_tells_nothing(tmp_path, spoil, why):
    before, after = pair_of_runs(tmp_path, 1.5)
    spoil(before)
    found = judge(after, "baseline", baseline=before)
    assert found.outcome == "not known"
    assert why in found.why


def with_identity(folder, **changes):
    about = json.loads((folder / "manifest.json").read_text())
    for name, value in changes.items():
        about["identity"][name] = value
    (folder / "manifest.json").write_text(json.dumps(about))
    return folder


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"attack": {"name": "smallest", "knobs": {}}}, "attack smallest and deepfool"),
        ({"attack": {"name": "deepfool", "knobs": {"bounds": [0, 1]}}}, "bounds [0, 1] and none"),
        ({"p": "inf"}, "norm linf and l2"),
        ({"data": {"sha256": "ef" * 32, "samples": 60}}, "different data"),
    ],
)
def test_a_baseline_that_was_measured_in_another_way(tmp_path, changes, why):
    before, after = pair_of_runs(tmp_path, 1.5)
    found = judge(after, "baseline", baseline=with_identity(before, **changes))
    assert found.outcome == "not known"
    assert why in found.why


def test_a_baseline_without_answers_or_pairs(tmp_path):
    after = healthy(tmp_path / "after")
    found = judge(after, "baseline", baseline=healthy(tmp_path / "before", censored=2))
    assert (found.outcome, "2 samples of the baseline and 0 of this run have no answer" in found.why) == (
        "not known", True,
    )  # fmt: skip
    small = healthy(tmp_path / "small", 10)
    with_identity(small, data={"sha256": "cd" * 32, "samples": 60})
    change_rows(small, lambda row: row, 0)
    x = {i: json.loads(line) for i, line in enumerate((after / "records.jsonl").read_text().splitlines())}
    lines = [json.dumps(x[i] | {"batch": 10}) for i in range(10)]
    (small / "records.jsonl").write_text("\n".join(lines) + "\n")
    found = judge(after, "baseline", baseline=small)
    assert (found.outcome, found.why) == ("not known", "only 10 samples are in both runs")
    assert judge(after, "baseline", baseline=after).why == "the baseline is the run itself"


# measured as agreed


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ({"attack": "deepfool", "p": 2, "bounds": "none", "knobs": {"max_iter": 50}}, ""),
        ({"attack": "smallest"}, "attack deepfool, not smallest"),
        ({"p": "inf"}, "p 2, not inf"),
        ({"bounds": [0, 1]}, "bounds none, not [0, 1]"),
        ({"knobs": {"max_iter": 100, "overshoot": 0.02}}, "knob max_iter 50, not 100"),
    ],
)
def test_measured_as_agreed(tmp_path, wanted, why):
    found = judge(healthy(tmp_path / "run"), "measured", measured=wanted)
    assert found.passed == (not why)
    assert why in found.why


# what is no condition


@pytest.mark.parametrize("text", ["", "x@eps=1", "0.5@eps=", "0.5@eps=-1", "1.5@eps=1", "0.5@delta=1", "0.5@eps=inf"])
def test_what_is_no_share(text):
    with pytest.raises(InputError):
        parse_share(text, eps_needed=True)


@pytest.mark.parametrize("text", ["", "-1", "nan", "inf", "5 percent", "%"])
def test_what_is_no_drop(text):
    with pytest.raises(InputError, match=r"such as 0\.01 or 5%"):
        parse_drop(text)


@pytest.mark.parametrize(
    "conditions",
    [
        {}, {"point": True}, {"max_drop": "5%"}, {"min_rho": float("nan")}, {"min_rho": -1}, {"min_rho": "high"},
        {"min_samples": 0}, {"max_cautioned": -1}, {"measured": {}}, {"measured": {"speed": 1}},
        {"measured": {"p": "two"}}, {"measured": {"knobs": 3}}, {"require_audit": "no"}, {"min_rho": 0, "point": 2},
    ],
)  # fmt: skip
def test_what_is_no_condition(tmp_path, conditions):
    with pytest.raises(InputError):
        check(tmp_path, **conditions)
