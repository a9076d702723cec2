"""METRICS: pure functions of records.

    estimates.py    a number with its interval: means, quantiles, shares
    distributions.py  binomial ranks, and the signed-rank test
    formatting.py   numbers as people write them
    robustness.py   rho_adv, distances, classes; how samples that were not fooled count
    brackets.py     certified <= true <= found
    curves.py       accuracy against eps
    radii.py        robust accuracy at the usual radii
    measures.py     what the sizes are, in words: norms, or how many features changed
    setup.py        what was asked of the attack: figures compare only where it is the same
    headline.py     what a run may be said to show
    verdict.py      the same in words
    comparison.py   two runs, sample by sample
    settings.py     how the measurements of two runs differ
    pairing.py      two runs in words: which is more robust, beyond chance or not
    summary.py      all metrics of one run, with warnings
    gates.py        conditions that a run must meet, for CI: `check`
      health.py       whether the run can be relied on at all
      regression.py   whether it is less robust than a baseline
      verdicts.py     met, not met or not known
      criteria.py     conditions from a file
      junit.py        verdicts for CI servers
      sarif.py        verdicts for code scanning
    arguments.py    checks of what callers pass

None of them draws or prints.
"""

from deepfool.metrics.brackets import Bracket, accuracy_band, find_bracket
from deepfool.metrics.comparison import Comparison, check_same_data, compare, shared_norm
from deepfool.metrics.curves import Curve, accuracy_at, accuracy_curve, fooled_within
from deepfool.metrics.estimates import Estimate, mean_with_interval, quantile, share
from deepfool.metrics.headline import Headline, choose_headline
from deepfool.metrics.radii import accuracy_at_radii
from deepfool.metrics.robustness import (
    clean_accuracy,
    confusion,
    count_iterations,
    distances,
    per_class,
    relative_distances,
    rho_adv,
    rho_answered,
    share_fooled,
)
from deepfool.metrics.setup import Setup, describe_setup
from deepfool.metrics.summary import find_warnings, summarize
from deepfool.metrics.verdict import Words, write_words

__all__ = [
    "Bracket",
    "Comparison",
    "Curve",
    "Estimate",
    "Headline",
    "Setup",
    "Words",
    "accuracy_at",
    "accuracy_at_radii",
    "accuracy_band",
    "accuracy_curve",
    "check_same_data",
    "choose_headline",
    "clean_accuracy",
    "compare",
    "confusion",
    "count_iterations",
    "describe_setup",
    "distances",
    "find_bracket",
    "find_warnings",
    "fooled_within",
    "mean_with_interval",
    "per_class",
    "quantile",
    "relative_distances",
    "rho_adv",
    "rho_answered",
    "share",
    "share_fooled",
    "shared_norm",
    "summarize",
    "write_words",
]
