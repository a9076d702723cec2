"""Metrics against hand-made records with known answers, simulations, and SciPy."""

import json
import math

import numpy as np
import pytest
from scipy import integrate, stats

from deepfool import Run, evaluate, metrics
from deepfool.errors import InputError, RunError
from deepfool.runs.rows import Records
from tests import nets

INF = math.inf


def make(distances, *, x=10.0, statuses=None, labels=None, true=None, adv=None, p=2):
    """Records with these distances; None is a sample that was not fooled."""
    rows = []
    for i, r in enumerate(distances):
        size = x if isinstance(x, float) else x[i]
        rows.append({
            "index": i, "label": labels[i] if labels else 0, "true_label": true[i] if true else None,
            "adv_label": adv[i] if adv else 1,
            "status": statuses[i] if statuses else ("EXHAUSTED" if r is None else "FOOLED"), "iterations": i + 1,
            "r_l2": r, "r_p": r, "x_l2": size, "x_p": size,
        })  # fmt: skip
    return Records.of(rows, p=p)


# rho_adv and censoring


def test_rho_is_the_mean_of_ratios_not_the_ratio_of_means():
    records = make([1.0, 4.0], x=[10.0, 20.0])
    assert metrics.rho_adv(records).value == pytest.approx((0.1 + 0.2) / 2)
    assert metrics.rho_adv(records).exact


def test_rho_in_both_norms():
    row = {"index": 0, "status": "FOOLED", "r_l2": 2.0, "x_l2": 10.0, "r_p": 0.3, "x_p": 1.0}
    records = Records.of([row], p=INF)
    assert metrics.rho_adv(records, "l2").value == pytest.approx(0.2)
    assert metrics.rho_adv(records, "p").value == pytest.approx(0.3)
    with pytest.raises(InputError, match="norm must be one of"):
        metrics.rho_adv(records, "l3")


def test_one_search_without_an_answer_makes_rho_unknown():
    """Neither a lower bound that counts it as 0 nor a mean of the others that calls itself rho_adv."""
    records = make([1.0, 2.0, 3.0, None])
    found = metrics.rho_adv(records)
    assert not found.exact
    assert math.isnan(found.value)
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    assert str(found) == "not known"
    others = metrics.rho_answered(records)
    assert (others.value, others.count) == (pytest.approx(0.2), 3)
    assert metrics.rho_answered(make([1.0, 2.0])) == metrics.rho_adv(make([1.0, 2.0]))


def test_rho_when_nothing_was_fooled():
    assert str(metrics.rho_adv(make([None, None]))) == "not known"
    assert math.isnan(metrics.rho_answered(make([None, None])).value)


def test_skipped_samples_are_no_part_of_rho():
    records = make([1.0, 0.0, 3.0], statuses=["FOOLED", "MISCLASSIFIED", "FOOLED"])
    assert metrics.rho_adv(records).value == pytest.approx(0.2)
    assert metrics.rho_adv(records).count == 2


def test_inputs_of_zero_have_no_ratio():
    records = make([1.0, 3.0, 5.0], x=[10.0, 10.0, 0.0])
    assert metrics.rho_adv(records).value == pytest.approx(0.2)
    assert metrics.rho_adv(records).count == 2


def test_nothing_at_all():
    assert math.isnan(metrics.rho_adv(make([])).value)
    assert math.isnan(metrics.quantile(np.zeros(0), 0.5).value)
    assert str(metrics.rho_adv(make([]))) == "–"


# quantiles


def test_quantiles_are_exact_while_fewer_are_censored_than_lie_beyond():
    values = np.array([1.0, 2.0, 3.0, 4.0, INF, INF, INF])
    assert metrics.quantile(values, 0.5).value == 4.0
    assert metrics.quantile(values, 0.25).value == 2.0
    assert metrics.quantile(values, 0.75).value == INF
    assert not metrics.quantile(values, 0.75).exact
    half = metrics.quantile(np.array([1.0, 2.0, INF, INF]), 0.5)
    assert half.value == INF
    # What the censored ones truly are does not matter to the quantiles below them.
    for truth in (4.5, 100.0):
        completed = np.where(np.isinf(values), truth, values)
        assert metrics.quantile(completed, 0.5).value == 4.0


def test_quantiles_without_censoring_are_those_of_numpy():
    values = np.random.default_rng(0).lognormal(size=101)
    for q in (0.05, 0.25, 0.5, 0.75, 0.95):
        assert metrics.quantile(values, q).value == np.quantile(values, q, method="inverted_cdf")
    assert metrics.quantile(values[:100], 0.5).value == pytest.approx(np.median(values[:100]))


def test_the_interval_of_a_quantile_is_that_of_order_statistics():
    # n = 10, median: X_(2) .. X_(9) is the classical 97.9 % interval.
    found = metrics.quantile(np.arange(1.0, 11.0), 0.5)
    assert (found.low, found.high) == (2.0, 9.0)


# intervals


def test_bca_agrees_with_scipy():
    values = np.random.default_rng(1).lognormal(size=60)
    # Both draw: with so many draws, and theirs seeded too, what is left of chance is 0.4 % of the width.
    mine = metrics.mean_with_interval(values, resamples=200_000)
    drawn = stats.bootstrap((values,), np.mean, n_resamples=200_000, batch=20_000, method="BCa", random_state=0)
    theirs = drawn.confidence_interval
    width = theirs.high - theirs.low
    assert mine.low == pytest.approx(theirs.low, abs=0.02 * width)
    assert mine.high == pytest.approx(theirs.high, abs=0.02 * width)


@pytest.mark.parametrize(
    ("draw", "truth"),
    [(lambda rng, n: rng.lognormal(sigma=0.6, size=n), math.exp(0.18)), (lambda rng, n: rng.random(n), 0.5)],
)
def test_intervals_of_the_mean_cover_the_truth(draw, truth):
    """600 simulated data sets of 100: 95 % +- 2.6 % (3 sigma); skewed data cost bootstraps a point or two."""
    rng = np.random.default_rng(3)
    hits = sum(
        found.low <= truth <= found.high
        for found in (metrics.mean_with_interval(draw(rng, 100), resamples=400, seed=i) for i in range(600))
    )
    assert 0.91 <= hits / 600 <= 0.976


def test_intervals_of_the_median_cover_the_truth():
    rng = np.random.default_rng(4)
    hits = 0
    for _ in range(600):
        values = rng.lognormal(size=80)
        values[values > 2.5] = INF  # censored: above the median, so the interval does not mind
        found = metrics.quantile(values, 0.5)
        hits += found.low <= 1.0 <= found.high
    assert 0.93 <= hits / 600 <= 1.0


def test_wilson_by_hand():
    """The two shares at which 7 of 20 lies 1.96 standard deviations away."""
    found = metrics.share(7, 20)
    for end in (found.low, found.high):
        assert abs(0.35 - end) == pytest.approx(1.959964 * math.sqrt(end * (1 - end) / 20), rel=1e-6)
    assert metrics.share(0, 20).low == 0.0
    assert metrics.share(20, 20).high == 1.0


def test_too_few_samples_have_no_interval():
    """Five values lie on one side of their true mean too often for a bootstrap of 95 %."""
    few = metrics.mean_with_interval(np.array([0.1681, 0.1682]))
    assert str(few) == "0.1681"
    assert math.isnan(few.low)
    rng = np.random.default_rng(8)
    one_sided = [np.ptp(np.sign(rng.normal(size=5))) == 0 for _ in range(4000)]
    assert np.mean(one_sided) > 0.05
    six = metrics.mean_with_interval(rng.random(6))
    assert six.low < six.value < six.high


def test_intervals_can_be_seeded():
    values = np.random.default_rng(5).random(50)
    assert metrics.mean_with_interval(values, seed=1) == metrics.mean_with_interval(values, seed=1)
    assert metrics.mean_with_interval(values, seed=1) != metrics.mean_with_interval(values, seed=2)
    assert metrics.mean_with_interval(np.full(9, 3.0)).low == 3.0


# accuracy against eps


def test_the_curve_by_hand():
    # right and fooled at 1 and 3; wrong from the start (its own distance of 2 does not count); right and not fooled
    records = make([1.0, 3.0, 2.0, None], labels=[0, 0, 0, 0], true=[0, 0, 1, 0])
    curve = metrics.accuracy_curve(records, [0.0, 0.99, 1.0, 2.0, 3.0, 4.0])
    assert (curve.accuracy * 4).tolist() == [3, 3, 2, 2, 1, 1]
    assert (curve.low * 4).tolist() == [2, 2, 1, 1, 0, 0]
    assert curve.labelled
    assert curve.area == pytest.approx((1 + 3 + 0 + 4) / 4)
    assert curve.area_share == pytest.approx(2 / 4)
    assert metrics.accuracy_at(records, 1.0) == (0.25, 0.5)


def test_the_area_is_the_integral_of_the_curve():
    records = make(np.random.default_rng(6).lognormal(size=300).tolist())
    fine = metrics.accuracy_curve(records, np.linspace(0, 5, 20_001))
    assert fine.area == pytest.approx(integrate.trapezoid(fine.accuracy, fine.eps), rel=1e-3)
    whole = metrics.accuracy_curve(records)
    assert whole.area == pytest.approx(records.r["p"].mean())
    assert not whole.labelled
    assert whole.accuracy[0] == 1.0
    assert whole.accuracy[-1] == 0.0


def test_the_band_is_wilsons_at_each_eps():
    records = make([1.0, 3.0, 2.0, None], labels=[0, 0, 0, 0], true=[0, 0, 1, 0])
    curve = metrics.accuracy_curve(records, [0.0, 1.0, 3.0])
    for i, (sure, standing) in enumerate(((2, 3), (1, 2), (0, 1))):
        assert curve.band[0][i] == pytest.approx(metrics.share(sure, 4).low)
        assert curve.band[1][i] == pytest.approx(metrics.share(standing, 4).high)


def test_eps_relative_to_the_input():
    records = make([1.0, 4.0, 1.0, 1.0], x=[10.0, 20.0, 0.0, 5.0], labels=[0] * 4, true=[0, 0, 0, 1])
    curve = metrics.accuracy_curve(records, [0.0, 0.1, 0.15, 0.2], relative=True)
    assert (curve.accuracy * 3).round().tolist() == [2, 1, 1, 0], "zeros have no relative distance; one was wrong"


def test_wilsons_interval_is_that_of_scipy():
    for count, total in ((0, 7), (3, 7), (7, 7), (512, 1000)):
        theirs = stats.binomtest(count, total).proportion_ci(0.95, method="wilson")
        ours = metrics.share(count, total)
        assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-9)


def test_eps_must_be_ascending():
    with pytest.raises(InputError, match="ascending order"):
        metrics.accuracy_curve(make([1.0]), [1.0, 0.5])


def test_fooled_within():
    records = make([1.0, 2.0, None, 0.0], statuses=["FOOLED", "FOOLED", "STUCK", "MISCLASSIFIED"])
    assert metrics.fooled_within(records, 1.5) == pytest.approx((1 / 3, 2 / 3))


# classes, confusion, iterations


def test_classes_and_confusion():
    records = make([1.0, 3.0, 2.0, None], labels=[0, 0, 2, 2], adv=[1, 2, 0, 2])
    assert metrics.confusion(records).tolist() == [[0, 1, 1], [0, 0, 0], [1, 0, 0]]
    classes = metrics.per_class(records)
    assert sorted(classes) == [0, 2]
    assert classes[0]["rho_adv"].value == pytest.approx(0.2)
    assert not classes[2]["rho_adv"].exact
    assert (classes[2]["rho_answered"].value, classes[2]["unanswered"]) == (pytest.approx(0.2), 1)
    assert classes[2]["fooled"].value == 0.5
    assert metrics.count_iterations(records) == {"mean": 2.5, "median": 2.5, "max": 4}


def test_clean_accuracy_counts_labelled_samples_alone():
    records = make([1.0, 1.0, 1.0], labels=[0, 1, 1], true=[0, 0, None])
    assert metrics.clean_accuracy(records).value == 0.5
    assert metrics.clean_accuracy(records).count == 2


# comparing


def test_paired_differences():
    rng = np.random.default_rng(7)
    a = rng.lognormal(size=200)
    b = a * 1.05 + rng.normal(scale=0.01, size=200)
    found = metrics.compare(make(a.tolist()), make(b.tolist()))
    assert found.mean_difference.value == pytest.approx((b - a).mean() / 10)
    assert found.mean_difference.low < (b - a).mean() / 10 < found.mean_difference.high
    assert found.mean_difference.low > 0
    assert found.p_value == pytest.approx(stats.wilcoxon((b - a) / 10).pvalue, rel=1e-6)
    assert found.larger_in_b == (b > a).sum()
    same = metrics.compare(make(a.tolist()), make(a.tolist()))
    assert (same.p_value, same.ties, same.mean_difference.value) == (1.0, 200, 0.0)


def test_pairs_with_censored_samples():
    a = make([1.0, 2.0, 3.0, None, None])
    b = make([2.0, 3.5, None, 1.0, None])
    found = metrics.compare(a, b)
    assert found.mean_difference is None
    assert (found.larger_in_a, found.larger_in_b, found.ties) == (1, 3, 1)
    assert found.median_difference.value == pytest.approx(0.1)
    assert not found.rho_a.exact
    json.dumps(found.as_dict(), allow_nan=False)


def test_only_shared_samples_are_paired():
    a = make([1.0, 2.0, 3.0])
    b = make([9.0, 9.0, 3.5]).pick(np.array([2]))
    found = metrics.compare(a, b)
    assert (found.pairs, found.only_a, found.only_b) == (1, 2, 0)
    assert found.mean_difference.value == pytest.approx(0.05)
    with pytest.raises(RunError, match="no sample in common"):
        metrics.compare(a.pick(np.array([0])), b)
    with pytest.raises(RunError, match="norms of x are not the same"):
        metrics.compare(make([1.0], x=10.0), make([1.0], x=11.0))


def test_runs_on_different_data_or_norms_are_not_compared(tmp_path):
    one = evaluate(nets.small(), nets.points(9), out=tmp_path / "one")
    other = evaluate(nets.small(), nets.points(8), out=tmp_path / "other")
    again = evaluate(nets.small(), nets.points(9), out=tmp_path / "again", p=INF)
    with pytest.raises(RunError, match="the runs are on different data"):
        metrics.check_same_data(one, other)
    metrics.check_same_data(one, again)
    with pytest.raises(RunError, match="different norms, l2 and linf"):
        metrics.shared_norm(one, again, None)
    assert metrics.shared_norm(one, again, "l1") == "l1"


# the summary


def test_remarks_of_the_attack_are_passed_on(tmp_path):
    """`smallest` uses scores or decisions alone where there is no gradient, and says so."""
    run = evaluate(nets.Flat(), nets.points(20), "smallest", out=tmp_path / "run")
    summary = metrics.summarize(run)
    found = summary["evidence"]
    blind = found["scores"] + found["decisions"]
    assert blind > 0
    assert any("alone: the gradients are zero or mislead" in warning for warning in summary["warnings"])
    assert blind + found["gradients"] == summary["status"]["FOOLED"]


def test_what_had_not_converged_is_told(tmp_path):
    run = evaluate(nets.small(), nets.points(20), "smallest", out=tmp_path / "run")
    lines = [json.loads(line) for line in (run.folder / "records.jsonl").read_text().splitlines()]
    lines = [{**row, "converged": row["index"] > 2} for row in lines]
    (run.folder / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    summary = metrics.summarize(run)
    assert summary["not_converged"] == 3
    assert any(warning.startswith("3 of 20 perturbations had not converged") for warning in summary["warnings"])


def test_the_summary_is_plain_json_and_warns(tmp_path):
    run = evaluate(nets.Flat(), nets.points(40), out=tmp_path / "run", max_iter=3)
    summary = json.loads(json.dumps(metrics.summarize(run), allow_nan=False))
    failed = 40 - summary["status"]["FOOLED"]
    assert failed > 0
    assert any(f"{failed} of 40 samples were not fooled" in warning for warning in summary["warnings"])
    assert summary["rho_adv"]["exact"] is False
    assert summary["rho_adv"]["value"] is None
    records = Run(run.folder).records()
    assert summary["rho_answered"]["value"] == pytest.approx(records.ratio("p")[records.fooled].mean())
    assert summary["headline"]["unanswered"] == failed
    assert sum(summary["headline"]["failures"].values()) == failed
