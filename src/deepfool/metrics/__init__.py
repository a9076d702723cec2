"""METRICS: pure functions of records.

    estimates.py    a number with its interval: means, quantiles, shares
    robustness.py   rho_adv, distances, classes; how samples that were not fooled count
    curves.py       accuracy against eps
    comparison.py   two runs, sample by sample
    summary.py      all metrics of one run, with warnings
    gates.py        conditions that a run must meet, for CI
    arguments.py    checks of what callers pass

None of them draws or prints.
"""

from deepfool.metrics.comparison import Comparison, check_same_data, compare, shared_norm
from deepfool.metrics.curves import Curve, accuracy_at, accuracy_curve, fooled_within
from deepfool.metrics.estimates import Estimate, mean_with_interval, quantile, share
from deepfool.metrics.robustness import (
    clean_accuracy,
    confusion,
    count_iterations,
    distances,
    per_class,
    relative_distances,
    rho_adv,
    share_fooled,
)
from deepfool.metrics.summary import find_warnings, summarize

__all__ = [
    "Comparison",
    "Curve",
    "Estimate",
    "accuracy_at",
    "accuracy_curve",
    "check_same_data",
    "clean_accuracy",
    "compare",
    "confusion",
    "count_iterations",
    "distances",
    "find_warnings",
    "fooled_within",
    "mean_with_interval",
    "per_class",
    "quantile",
    "relative_distances",
    "rho_adv",
    "share",
    "share_fooled",
    "shared_norm",
    "summarize",
]
