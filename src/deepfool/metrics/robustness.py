"""rho_adv and what else the records say of a run, as a whole and by class.

The paper's measure is rho_adv: the mean of ||r(x)|| / ||x|| over the data, where r(x) is the smallest perturbation that
changes the decision, whether the decision was right or wrong. Three kinds of samples need care:

- Not fooled (STUCK, EXHAUSTED): the search ended without an answer, which shows neither that the distance is small nor
  that it is large. One such sample makes the mean unknown: rho_adv says so (`exact` is False, the value NaN), and
  `rho_answered` gives the mean of the others, which is the mean of nobody else. Counting the sample as 0 would bound
  nothing, since what an attack finds is an upper bound; dropping it silently would reward an attack for failing.
  Quantiles treat it as +infinity: they stay upper bounds, and are finite while fewer samples have no answer than lie
  above them (the median: fewer than half).
- Skipped (MISCLASSIFIED, only with `skip_misclassified`): nothing was searched, so rho_adv covers the other samples. In
  the accuracy curve they are wrong at eps = 0, as is every sample whose predicted label is not the true one.
- x = 0: the relative distance is not defined. The sample is left out of rho_adv, counted, and reported in a warning.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from deepfool.metrics.arguments import check_norm, check_records
from deepfool.metrics.estimates import RESAMPLES, Estimate, mean_with_interval, quantile, share
from deepfool.outcomes import Status
from deepfool.runs.rows import Floats, Ints, Records


def rho_adv(
    records: Records, norm: str = "l2", *, confidence: float = 0.95, seed: int = 0, resamples: int = RESAMPLES
) -> Estimate:
    """The mean of ||r|| / ||x||: an upper bound on the true one. Not known if a search ended without an answer.

    >>> rows = [{"index": i, "status": "FOOLED", "r_l2": r, "x_l2": 10.0} for i, r in enumerate((1.0, 2.0, 3.0))]
    >>> round(rho_adv(Records.of(rows, p=2)).value, 12)
    0.2
    >>> stuck = {"index": 3, "status": "STUCK", "x_l2": 10.0}
    >>> print(rho_adv(Records.of([*rows, stuck], p=2)))
    not known
    """
    ratios = relative_distances(check_records(records), norm)
    if np.isinf(ratios).any():
        return Estimate(math.nan, math.nan, math.nan, len(ratios), exact=False)
    return mean_with_interval(ratios, confidence=confidence, seed=seed, resamples=resamples)


def rho_answered(
    records: Records, norm: str = "l2", *, confidence: float = 0.95, seed: int = 0, resamples: int = RESAMPLES
) -> Estimate:
    """The mean of ||r|| / ||x|| over the samples whose search had an answer: rho_adv if all had one.

    Otherwise it says nothing of the samples without an answer, and runs must not be ranked by it.

    >>> rows = [{"index": i, "status": "FOOLED", "r_l2": r, "x_l2": 10.0} for i, r in enumerate((1.0, 2.0, 3.0))]
    >>> found = rho_answered(Records.of([*rows, {"index": 3, "status": "STUCK", "x_l2": 10.0}], p=2))
    >>> round(found.value, 12), found.count
    (0.2, 3)
    """
    ratios = relative_distances(check_records(records), norm)
    return mean_with_interval(ratios[np.isfinite(ratios)], confidence=confidence, seed=seed, resamples=resamples)


def relative_distances(records: Records, norm: str = "l2") -> Floats:
    """||r|| / ||x|| of the samples that were searched and have one; infinite where censored."""
    ratios = check_records(records).ratio(check_norm(norm))
    found: Floats = ratios[(records.status != Status.MISCLASSIFIED) & ~np.isnan(ratios)]
    return found


def distances(records: Records, norm: str = "p", *, relative: bool = False) -> Floats:
    """The distance of each sample from being wrong: 0 if it is wrong already, infinite where censored.

    With `relative` it is a share of ||x||, and NaN if x is zero.
    """
    check_records(records)
    found = records.ratio(check_norm(norm)) if relative else records.r[check_norm(norm)]
    return np.where(records.misclassified, 0.0, found)


def share_fooled(records: Records) -> Estimate:
    """The share of the searched samples that were fooled.

    >>> share_fooled(Records.of([{"index": 0, "status": "FOOLED"}, {"index": 1, "status": "STUCK"}], p=2)).value
    0.5
    """
    check_records(records)
    return share(int(records.fooled.sum()), int((records.status != Status.MISCLASSIFIED).sum()))


def clean_accuracy(records: Records) -> Estimate:
    """The share of the labelled samples that the model gets right.

    >>> clean_accuracy(Records.of([{"index": 0, "label": 1, "true_label": 1, "status": "FOOLED"}], p=2)).value
    1.0
    """
    labelled = check_records(records).true_label >= 0
    return share(int((labelled & ~records.misclassified).sum()), int(labelled.sum()))


def confusion(records: Records) -> Ints:
    """(c, c) counts: how many of the fooled samples with predicted label i became j.

    >>> rows = [{"index": 0, "label": 0, "adv_label": 2, "status": "FOOLED"}]
    >>> confusion(Records.of(rows, p=2)).tolist()
    [[0, 0, 1], [0, 0, 0], [0, 0, 0]]
    """
    fooled = check_records(records).fooled
    before, after = records.label[fooled], records.adv_label[fooled]
    c = int(max(before.max(initial=-1), after.max(initial=-1))) + 1
    counts = np.zeros((c, c), np.int64)
    np.add.at(counts, (before, after), 1)
    return counts


def per_class(records: Records, norm: str = "l2", *, seed: int = 0, resamples: int = 500) -> dict[int, dict[str, Any]]:
    """rho_adv, the median and the share fooled, for each predicted label.

    >>> rows = [{"index": i, "label": i, "status": "FOOLED", "r_l2": 1.0, "x_l2": 10.0 / (i + 1)} for i in range(2)]
    >>> [found["rho_adv"].value for found in per_class(Records.of(rows, p=2)).values()]
    [0.1, 0.2]
    """
    found = {}
    for label in np.unique(check_records(records).label).tolist():
        part = records.pick(records.label == label)
        rho = rho_adv(part, norm, seed=seed, resamples=resamples)
        found[label] = {
            "samples": len(part),
            "rho_adv": rho,
            "rho_answered": rho if rho.exact else rho_answered(part, norm, seed=seed, resamples=resamples),
            "unanswered": int(part.censored.sum()),
            "median": quantile(relative_distances(part, norm), 0.5),
            "fooled": share_fooled(part),
        }
    return found


def count_iterations(records: Records) -> dict[str, float]:
    """The mean, median and largest number of iterations over the samples that were searched.

    >>> count_iterations(Records.of([{"index": i, "status": "FOOLED", "iterations": i} for i in (1, 2, 6)], p=2))
    {'mean': 3.0, 'median': 2.0, 'max': 6}
    """
    steps = check_records(records).iterations[records.status != Status.MISCLASSIFIED]
    if not len(steps):
        return {"mean": math.nan, "median": math.nan, "max": 0}
    return {"mean": float(steps.mean()), "median": float(np.median(steps)), "max": int(steps.max())}
