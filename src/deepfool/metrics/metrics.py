"""METRICS: pure functions of records.

The measure of the paper is rho_adv, the mean of ||r(x)|| / ||x|| over the data, where r(x) is the smallest
perturbation that changes the decision, right or wrong. Three kinds of samples ask for care:

- Not fooled (STUCK, EXHAUSTED). The search ended without an answer, which shows neither that the distance is small nor
  that it is large: the sample is censored. All that is known of its share in the mean is that it is not negative, so
  rho_adv is then given as a lower bound that counts it as 0, with no upper end. Quantiles take it as +infinity, as
  survival analysis does: they are exact as long as fewer samples are censored than lie beyond them (the median: fewer
  than half). It is never left out: a mean over the survivors would reward an attack for failing.
- Skipped (MISCLASSIFIED, only when the run was told to skip them). Nothing was searched, so rho_adv is that of the
  others. In the accuracy curve they are wrong at eps = 0, as is every sample whose predicted label is not the true one.
- x = 0. Its relative distance does not exist; it is left out of rho_adv, counted, and warned of.

Intervals are at 95 % unless told otherwise: BCa bootstrap (Efron 1987) for means, order statistics for quantiles
(distribution-free), Wilson's for shares.
"""

from __future__ import annotations

import math
import numbers
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from deepfool.attacks.shared.adversarial import Status
from deepfool.attacks.shared.arguments import as_number, check_count, check_number
from deepfool.errors import InputError, RunError
from deepfool.runs.consistency import list_cautions
from deepfool.runs.records import Run
from deepfool.runs.rows import NORMS, Floats, Ints, Records, Row

RESAMPLES = 2000
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Estimate:
    """A number with its interval. `exact` is False where censored samples make it a lower bound."""

    value: float
    low: float
    high: float
    count: int
    """How many samples it rests on."""
    exact: bool = True

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "-"
        interval = f"[{self.low:.4g}, {self.high:.4g}]" if self.exact else f"[{self.low:.4g}, ?]"
        return f"{'' if self.exact else '>= '}{self.value:.4g} {interval}"


def rho_adv(
    records: Records, norm: str = "l2", *, confidence: float = 0.95, seed: int = 0, resamples: int = RESAMPLES
) -> Estimate:
    """The mean of ||r|| / ||x||, or the lower bound of it that censored samples allow.

    >>> rows = [{"index": i, "status": "FOOLED", "r_l2": r, "x_l2": 10.0} for i, r in enumerate((1.0, 2.0, 3.0))]
    >>> round(rho_adv(Records.of(rows, p=2)).value, 12)
    0.2
    >>> stuck = {"index": 3, "status": "STUCK", "x_l2": 10.0}
    >>> bound = rho_adv(Records.of([*rows, stuck], p=2))
    >>> round(bound.value, 12), bound.exact, bound.high
    (0.15, False, inf)
    """
    ratios = relative_distances(_check_records(records), norm)
    censored = int(np.isinf(ratios).sum())
    found = mean_with_interval(
        np.where(np.isinf(ratios), 0.0, ratios), confidence=confidence, seed=seed, resamples=resamples
    )
    if censored:
        return Estimate(found.value, found.low, math.inf, found.count, exact=False)
    return found


def relative_distances(records: Records, norm: str = "l2") -> Floats:
    """||r|| / ||x|| of the samples that were searched and that have one; infinite where censored."""
    ratios = _check_records(records).ratio(_known(norm))
    found: Floats = ratios[(records.status != Status.MISCLASSIFIED) & ~np.isnan(ratios)]
    return found


def mean_with_interval(
    values: Floats, *, confidence: float = 0.95, seed: int = 0, resamples: int = RESAMPLES
) -> Estimate:
    """The mean of some numbers and its bias-corrected and accelerated (BCa) bootstrap interval.

    >>> found = mean_with_interval(np.array([1.0, 2.0, 3.0, 4.0]))
    >>> found.value, found.low < 2 < 3 < found.high
    (2.5, True)
    """
    values, confidence = _check_values(values), check_number(confidence, "confidence", 0, 1)
    seed, resamples = check_count(seed, "seed", least=0), check_count(resamples, "resamples")
    n = len(values)
    if n == 0:
        return Estimate(math.nan, math.nan, math.nan, 0)
    mean = float(values.mean())
    spread = values - mean
    if n == 1 or not spread.any():
        return Estimate(mean, mean, mean, n)
    means = _resampled_means(values, resamples, seed)
    below = ((means < mean).sum() + 0.5 * (means == mean).sum()) / resamples
    normal = NormalDist()
    bias = normal.inv_cdf(min(max(below, 0.5 / resamples), 1 - 0.5 / resamples))
    # The jackknife of a mean is linear in the values, so the acceleration is their skewness over 6 sqrt(n).
    acceleration = float((spread**3).sum() / (6 * (spread**2).sum() ** 1.5))
    tail = (1 - confidence) / 2
    ends = []
    for share in (tail, 1 - tail):
        z = bias + normal.inv_cdf(share)
        ends.append(normal.cdf(bias + z / (1 - acceleration * z)))
    low, high = np.quantile(means, ends)
    return Estimate(mean, float(low), float(high), n)


def _resampled_means(values: Floats, resamples: int, seed: int) -> Floats:
    """Means of samples drawn with replacement, some at a time: the memory does not grow with the number of them."""
    rng = np.random.default_rng(seed)
    at_once = max(1, 2**21 // len(values))
    means = [
        values[rng.integers(0, len(values), (min(at_once, resamples - start), len(values)), dtype=np.int32)].mean(1)
        for start in range(0, resamples, at_once)
    ]
    return np.concatenate(means)


def quantile(values: Floats, q: float, *, confidence: float = 0.95) -> Estimate:
    """The q-th quantile of distances, some of which may be infinite, with its interval from order statistics.

    It is the smallest value that at least a share q of the samples does not exceed, so that it is always the distance
    of a sample, and infinite only if that many are censored. At the median of an even number the two middle ones are
    averaged.

    >>> quantile(np.array([1.0, 2.0, 3.0, math.inf]), 0.5).value
    2.5
    >>> quantile(np.array([1.0, math.inf, math.inf]), 0.5).value
    inf
    """
    values, confidence = _check_values(values), check_number(confidence, "confidence", 0, 1)
    q = check_number(q, "q", 0, 1)
    n = len(values)
    if n == 0:
        return Estimate(math.nan, math.nan, math.nan, 0)
    ordered = np.sort(values)
    rank = max(0, math.ceil(q * n - 1e-9) - 1)
    value = float(ordered[rank])
    if q == 0.5 and n % 2 == 0:
        value = float(ordered[n // 2 - 1] / 2 + ordered[n // 2] / 2)
    # The number of samples below the true quantile is binomial: count in from both sides of that distribution.
    cumulative = np.cumsum(_binomial(n, q))
    tail = (1 - confidence) / 2
    low_rank = int((cumulative <= tail).sum())  # P(count < low_rank) <= tail
    high_rank = int((cumulative < 1 - tail).sum())
    low = float(ordered[low_rank - 1]) if low_rank >= 1 else 0.0
    high = float(ordered[high_rank]) if high_rank < n else math.inf
    return Estimate(value, low, high, n, exact=math.isfinite(value))


def _binomial(n: int, q: float) -> Floats:
    """P(k successes of n), k = 0..n."""
    k = np.arange(n + 1)
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])  # of the factorials
    chances: Floats = np.exp(logs[n] - logs - logs[::-1] + k * math.log(q) + (n - k) * math.log1p(-q))
    return chances


def share(count: int, total: int, *, confidence: float = 0.95) -> Estimate:
    """A share and its Wilson interval.

    >>> share(5, 10).value
    0.5
    """
    count, total = check_count(count, "count", least=0), check_count(total, "total", least=0)
    confidence = check_number(confidence, "confidence", 0, 1)
    if count > total:
        raise InputError(f"count must not exceed total, got {count} of {total}.")
    if total == 0:
        return Estimate(math.nan, math.nan, math.nan, 0)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    p = count / total
    centre = (p + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total))
    return Estimate(p, max(0.0, centre - half), min(1.0, centre + half), total)


@dataclass(frozen=True)
class Curve:
    """Accuracy against eps, from the minimal distances of one run.

    `accuracy` counts censored samples as standing (no perturbation is known), `low` as fallen (none of them is known
    to stand): the accuracy under this attack lies between the two. Under a better attack it may be lower still.
    """

    eps: Floats
    accuracy: Floats
    low: Floats
    norm: str
    labelled: bool
    """Whether true labels were known for all; otherwise unlabelled samples count as right at eps = 0."""
    area: float
    """Under `accuracy` from 0 to the last eps: the mean distance, cut there (the restricted mean of survival
    analysis)."""

    @property
    def area_share(self) -> float:
        """The area as a share of the largest possible one."""
        return self.area / float(self.eps[-1]) if self.eps[-1] > 0 else math.nan


def distances(records: Records, norm: str = "p") -> Floats:
    """How far each sample is from being wrong: 0 if it is wrong already, infinite where censored."""
    return np.where(_check_records(records).misclassified, 0.0, records.r[_known(norm)])


def accuracy_curve(records: Records, eps: Sequence[float] | Floats | int = 101, norm: str = "p") -> Curve:
    """The share of samples that are right and stay so within eps, for each eps (or that many, up to the largest).

    >>> rows = [{"index": i, "label": 1, "true_label": 1, "status": "FOOLED", "r_p": r} for i, r in enumerate((1, 3))]
    >>> wrong = {"index": 2, "label": 1, "true_label": 0, "status": "FOOLED", "r_p": 2.0}
    >>> curve = accuracy_curve(Records.of([*rows, wrong], p=2), [0, 1, 2, 3])
    >>> (curve.accuracy * 3).round().tolist(), round(curve.area * 3, 6)
    ([2.0, 1.0, 1.0, 0.0], 4.0)
    """
    away = distances(records, norm)
    if len(away) == 0:
        raise RunError("there are no rows to make a curve of.")
    if isinstance(eps, bool | numbers.Integral):
        finite = away[np.isfinite(away)]
        grid = np.linspace(0.0, float(finite.max(initial=0.0)), check_count(eps, "eps"))
    else:
        grid = _as_floats(eps, "eps")
        if grid.ndim != 1 or not len(grid) or grid[0] < 0 or not np.isfinite(grid).all() or (np.diff(grid) < 0).any():
            raise InputError("eps must be finite numbers >= 0 that do not fall.")
    n = len(away)
    standing = 1 - np.searchsorted(np.sort(away), grid, side="right") / n
    censored = np.isinf(away).sum() / n
    return Curve(
        grid, standing, np.maximum(0.0, standing - censored), norm,
        labelled=bool((records.true_label >= 0).all()), area=float(np.minimum(away, grid[-1]).mean()),
    )  # fmt: skip


def accuracy_at(records: Records, eps: float, norm: str = "p") -> tuple[float, float]:
    """Accuracy within eps: with censored samples counted as fallen, and as standing.

    >>> rows = [{"index": 0, "status": "FOOLED", "r_p": 1.0}, {"index": 1, "status": "EXHAUSTED"}]
    >>> accuracy_at(Records.of(rows, p=2), 1.0)
    (0.0, 0.5)
    """
    curve = accuracy_curve(records, [_check_eps(eps)], norm)
    return float(curve.low[0]), float(curve.accuracy[0])


def fooled_within(records: Records, eps: float, norm: str = "p") -> tuple[float, float]:
    """The share of decisions that a perturbation of at most eps changes, right or wrong to begin with: the share
    found, and the most it can be, censored samples included. Skipped samples are no decisions that were tried.

    >>> rows = [{"index": 0, "status": "FOOLED", "r_p": 1.0}, {"index": 1, "status": "EXHAUSTED"}]
    >>> fooled_within(Records.of(rows, p=2), 1.0)
    (0.5, 1.0)
    """
    tried = _check_records(records).status != Status.MISCLASSIFIED
    norm, eps = _known(norm), _check_eps(eps)
    if not tried.any():
        return math.nan, math.nan
    found = float((records.r[norm][tried] <= eps).mean())
    return found, found + float(records.censored[tried].mean())


def confusion(records: Records) -> Ints:
    """(c, c) counts: of the fooled samples with predicted label i, how many became j.

    >>> rows = [{"index": 0, "label": 0, "adv_label": 2, "status": "FOOLED"}]
    >>> confusion(Records.of(rows, p=2)).tolist()
    [[0, 0, 1], [0, 0, 0], [0, 0, 0]]
    """
    fooled = _check_records(records).fooled
    there, here = records.label[fooled], records.adv_label[fooled]
    c = int(max(there.max(initial=-1), here.max(initial=-1))) + 1
    counts = np.zeros((c, c), np.int64)
    np.add.at(counts, (there, here), 1)
    return counts


def per_class(records: Records, norm: str = "l2", *, seed: int = 0, resamples: int = 500) -> dict[int, dict[str, Any]]:
    """rho_adv, its median, and the share fooled, for each predicted label.

    >>> rows = [{"index": i, "label": i, "status": "FOOLED", "r_l2": 1.0, "x_l2": 10.0 / (i + 1)} for i in range(2)]
    >>> [found["rho_adv"].value for found in per_class(Records.of(rows, p=2)).values()]
    [0.1, 0.2]
    """
    found = {}
    for label in np.unique(_check_records(records).label).tolist():
        part = records.pick(records.label == label)
        found[label] = {
            "samples": len(part),
            "rho_adv": rho_adv(part, norm, seed=seed, resamples=resamples),
            "median": quantile(relative_distances(part, norm), 0.5),
            "fooled": share_fooled(part),
        }
    return found


def share_fooled(records: Records) -> Estimate:
    """The share fooled of the samples that were searched.

    >>> share_fooled(Records.of([{"index": 0, "status": "FOOLED"}, {"index": 1, "status": "STUCK"}], p=2)).value
    0.5
    """
    _check_records(records)
    return share(int(records.fooled.sum()), int((records.status != Status.MISCLASSIFIED).sum()))


def count_iterations(records: Records) -> dict[str, float]:
    """Mean, median and largest number of iterations over the samples that were searched.

    >>> count_iterations(Records.of([{"index": i, "status": "FOOLED", "iterations": i} for i in (1, 2, 6)], p=2))
    {'mean': 3.0, 'median': 2.0, 'max': 6}
    """
    steps = _check_records(records).iterations[records.status != Status.MISCLASSIFIED]
    if not len(steps):
        return {"mean": math.nan, "median": math.nan, "max": 0}
    return {"mean": float(steps.mean()), "median": float(np.median(steps)), "max": int(steps.max())}


def clean_accuracy(records: Records) -> Estimate:
    """The share of labelled samples that the model gets right.

    >>> clean_accuracy(Records.of([{"index": 0, "label": 1, "true_label": 1, "status": "FOOLED"}], p=2)).value
    1.0
    """
    labelled = _check_records(records).true_label >= 0
    return share(int((labelled & (records.true_label == records.label)).sum()), int(labelled.sum()))


@dataclass(frozen=True)
class Comparison:
    """Two runs on the same samples. Differences are relative distances of b minus those of a."""

    norm: str
    pairs: int
    only_a: int
    only_b: int
    rho_a: Estimate
    rho_b: Estimate
    mean_difference: Estimate | None
    """None where a sample is censored in only one of the runs: its difference is not known."""
    median_difference: Estimate
    larger_in_a: int
    larger_in_b: int
    ties: int
    censored_a: int
    censored_b: int
    p_value: float
    """Wilcoxon's signed-rank test that the differences are symmetric about 0, two-sided; a distance that was not
    found ranks above all that were."""

    def as_dict(self) -> dict[str, Any]:
        return _plain(asdict(self))  # type: ignore[no-any-return]


def compare(a: Records, b: Records, norm: str = "p", *, confidence: float = 0.95, seed: int = 0) -> Comparison:
    """Pair two runs by sample.

    >>> rows = [{"index": i, "status": "FOOLED", "r_p": 1.0 + i / 10, "x_p": 10.0} for i in range(8)]
    >>> more = [{**row, "r_p": row["r_p"] * 1.1} for row in rows]
    >>> found = compare(Records.of(rows, p=2), Records.of(more, p=2))
    >>> found.larger_in_b, round(found.mean_difference.value, 4), found.p_value < 0.05
    (8, 0.0135, True)
    """
    _check_records(a)
    _check_records(b)
    norm, confidence = _known(norm), check_number(confidence, "confidence", 0, 1)
    _, in_a, in_b = np.intersect1d(a.index, b.index, return_indices=True)
    one, other = a.pick(in_a), b.pick(in_b)
    if not np.allclose(one.x[norm], other.x[norm], rtol=1e-5, atol=0, equal_nan=True):
        raise RunError(
            "the samples of the two runs differ: the norms of x are not the same.",
            hint="measure both on the same data.",
        )
    tried = (one.status != Status.MISCLASSIFIED) & (other.status != Status.MISCLASSIFIED)
    tried &= one.x[norm] > 0
    one, other = one.pick(tried), other.pick(tried)
    if not len(one):
        raise RunError(
            "the two runs have no sample in common.", hint="measure both with the same --limit or --indices."
        )
    ratio_a, ratio_b = one.ratio(norm), other.ratio(norm)
    difference = _subtract(ratio_b, ratio_a)
    known = bool(np.isfinite(difference).all())
    return Comparison(
        norm=norm, pairs=len(one), only_a=len(a) - len(one), only_b=len(b) - len(one),
        rho_a=rho_adv(one, norm, seed=seed), rho_b=rho_adv(other, norm, seed=seed),
        mean_difference=mean_with_interval(difference, confidence=confidence, seed=seed) if known else None,
        median_difference=_median_of_signed(difference, confidence),
        larger_in_a=int((difference < 0).sum()), larger_in_b=int((difference > 0).sum()),
        ties=int((difference == 0).sum()), censored_a=int(one.censored.sum()), censored_b=int(other.censored.sum()),
        p_value=_signed_rank(difference),
    )  # fmt: skip


def _subtract(b: Floats, a: Floats) -> Floats:
    """b - a, where two that were not found are a tie."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isinf(a) & np.isinf(b), 0.0, b - a)


def _median_of_signed(difference: Floats, confidence: float) -> Estimate:
    """As `quantile`, for numbers of either sign."""
    found = quantile(difference, 0.5, confidence=confidence)
    n = len(difference)
    lowest = int((np.cumsum(_binomial(n, 0.5)) <= (1 - confidence) / 2).sum()) < 1
    return Estimate(found.value, -math.inf if lowest else found.low, found.high, n, found.exact)


def _signed_rank(difference: Floats) -> float:
    moved = difference[difference != 0]
    if not len(moved):
        return 1.0
    from scipy.stats import wilcoxon  # type: ignore[import-untyped]

    # Only ranks count, so anything beyond the largest difference stands for an infinite one.
    finite = np.abs(moved[np.isfinite(moved)])
    beyond = 2 * float(finite.max(initial=1.0))
    return float(wilcoxon(np.clip(moved, -beyond, beyond)).pvalue)


def check_same_data(a: Run, b: Run) -> None:
    """Refuse to compare runs on different data."""
    _check_runs(a, b)
    mine, theirs = a.identity["data"]["sha256"], b.identity["data"]["sha256"]
    if mine != theirs:
        names = [run.manifest["data"]["name"] for run in (a, b)]
        raise RunError(
            f"the runs are on different data: {names[0]} ({mine[:12]}) and {names[1]} ({theirs[:12]}).",
            hint="paired differences need the same samples.",
        )


def shared_norm(a: Run, b: Run, norm: str | None) -> str:
    """The norm to compare in: the one asked for, or the one that both attacks minimised."""
    _check_runs(a, b)
    if norm is not None and norm != "p":
        return _known(norm)
    if a.p != b.p:
        raise RunError(
            f"the runs minimise different norms, l{a.p:g} and l{b.p:g}.", hint="choose one: --norm l2, l1 or linf."
        )
    return "p"


def summarize(run: Run, *, confidence: float = 0.95, seed: int = 0) -> dict[str, Any]:
    """All of the above for a run, as plain values for JSON: null where there is no number, "inf" for infinity.

    >>> import tempfile, torch
    >>> from deepfool import evaluate
    >>> model, data = torch.nn.Linear(4, 3), (torch.rand(8, 4), torch.zeros(8, dtype=torch.long))
    >>> with tempfile.TemporaryDirectory() as here:
    ...     summary = summarize(evaluate(model, data, out=here))
    >>> summary["samples"], summary["status"]["FOOLED"], summary["warnings"]
    (8, 8, [])
    """
    _check_runs(run)
    records = run.records()
    warnings = find_warnings(run, records)
    own = f"l{run.p:g}"
    rho = {norm: rho_adv(records, norm, confidence=confidence, seed=seed) for norm in dict.fromkeys(("l2", "p"))}
    curve = accuracy_curve(records) if len(records) else None
    ratios, sizes = relative_distances(records, "p"), records.r["p"][records.status != Status.MISCLASSIFIED]
    summary = {
        "run": str(run.folder),
        "model": run.manifest["model"]["spec"],
        "data": run.manifest["data"]["name"],
        "attack": run.identity["attack"]["name"],
        "p": run.p,
        "norm": own,
        "samples": len(records),
        "expected": run.expected,
        "status": {status.name: int((records.status == status).sum()) for status in Status},
        "accuracy": clean_accuracy(records),
        "fooled": share_fooled(records),
        "rho_adv": rho["p"],
        "rho_adv_l2": rho["l2"],
        "quantiles_relative": {f"{q:g}": quantile(ratios, q, confidence=confidence) for q in QUANTILES},
        "quantiles": {f"{q:g}": quantile(sizes, q, confidence=confidence) for q in QUANTILES},
        "curve": None if curve is None else {
            "eps": curve.eps, "accuracy": curve.accuracy, "low": curve.low, "area": curve.area,
            "area_share": curve.area_share, "labelled": curve.labelled,
        },
        "classes": per_class(records, "p", seed=seed),
        "confusion": confusion(records),
        "iterations": count_iterations(records),
        "passes": {"forwards": int(records.forwards.sum()), "backwards": int(records.backwards.sum())},
        "seconds": float(np.nansum(records.seconds)),
        "warnings": warnings,
    }  # fmt: skip
    return _plain(summary)  # type: ignore[no-any-return]


def find_warnings(run: Run, records: Records) -> list[str]:
    """What a reader of the figures has to know."""
    _check_runs(run)
    found = []
    if len(_check_records(records)) < run.expected:
        found.append(f"the run is not complete: {len(records)} of {run.expected} samples are there.")
    if censored := int(records.censored.sum()):
        kinds = ", ".join(
            f"{n} {status.name}"
            for status in (Status.STUCK, Status.EXHAUSTED)
            if (n := int((records.status == status).sum()))
        )
        found.append(
            f"{censored} of {len(records)} samples were not fooled ({kinds}): rho_adv is a lower bound that counts "
            f"them as 0, and has no upper end."
        )
    for reason, count in Counter(row["reason"] for row in run.rows() if _is_remark(row)).most_common(3):
        found.append(f"{count} of the fooled samples: {reason}.")
    sessions = [session for session in run.manifest["sessions"] if isinstance(session, dict)]
    told = [list_cautions(session["scores"]) for session in sessions if isinstance(session.get("scores"), dict)]
    found += dict.fromkeys(caution for cautions in told for caution in cautions)
    if zero := int((records.x["l2"] == 0).sum()):
        found.append(f"{zero} samples are all zeros and have no relative distance: they are left out of rho_adv.")
    return found


def _is_remark(row: Row) -> bool:
    return row["status"] == Status.FOOLED.name and "reason" in row


def _known(norm: str) -> str:
    if norm not in NORMS:
        raise InputError(f"norm must be one of {', '.join(NORMS)}, got {norm!r}.")
    return norm


def _check_records(records: Records) -> Records:
    if not isinstance(records, Records):
        raise InputError(
            f"records must be the Records of a run, got {type(records).__name__}.", hint="Run(folder).records()."
        )
    return records


def _check_runs(*runs: Run) -> None:
    for run in runs:
        if not isinstance(run, Run):
            raise InputError(f"a Run was expected, got {type(run).__name__}.", hint="deepfool.Run(folder).")


def _check_values(values: Floats) -> Floats:
    """Distances: numbers in one dimension, none of them NaN."""
    found = _as_floats(values, "values")
    if found.ndim != 1 or np.isnan(found).any():
        raise InputError(f"values must be numbers in one dimension, without NaN, got shape {found.shape}.")
    return found


def _as_floats(values: Any, name: str) -> Floats:
    try:
        given = np.asarray(values)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be numbers, got {type(values).__name__}: {error}") from error
    if given.dtype.kind not in "iuf":
        raise InputError(f"{name} must be numbers, got {type(values).__name__} of {given.dtype}.")
    return given.astype(np.float64)


def _check_eps(eps: float) -> float:
    number = as_number(eps)
    if number is None or not number >= 0:
        raise InputError(f"eps must be a number >= 0, got {eps!r:.80}.")
    return number


def _plain(value: Any) -> Any:
    """Values that JSON has."""
    if isinstance(value, Estimate):
        return _plain(asdict(value))
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value
