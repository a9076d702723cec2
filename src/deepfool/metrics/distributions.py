"""Two textbook distributions. `scipy.stats` has them too, but importing it takes longer than everything else that
`deepfool show` does; tests compare the two."""

from __future__ import annotations

import math

import numpy as np

from deepfool.runs.rows import Floats, Ints

EXACT_UP_TO = 50
"""Up to so many differences, the signed-rank test counts all cases; beyond, the sum of ranks is as good as normal."""


def find_binomial_ranks(n: int, q: float, tail: float) -> tuple[int, int]:
    """The smallest k that a binomial count (n draws, chance q) exceeds with a chance of at most 1 - tail, and at most
    tail; the first is one more where it is reached exactly.

    >>> find_binomial_ranks(10, 0.5, 0.025)
    (2, 8)
    """
    start, shares = _sum_binomial(n, q)
    low = int(np.searchsorted(shares, tail * (1 - ROUNDING)))
    low += bool(low < len(shares) and shares[low] <= tail * (1 + ROUNDING))
    return start + low, start + min(int(np.searchsorted(shares, (1 - tail) * (1 - ROUNDING))), len(shares) - 1)


ROUNDING = 1e-11
"""Chances that differ by no more, relatively, are the same: the sums below are exact to about 1e-13."""


def _sum_binomial(n: int, q: float) -> tuple[int, Floats]:
    """Where the chances begin to matter, and P(count <= k) from there on."""
    spread = 12 * math.sqrt(n * q * (1 - q)) + 40  # beyond 12 standard deviations nothing is left in double precision
    start, end = max(0, math.floor(n * q - spread)), min(n, math.ceil(n * q + spread))
    k = np.arange(start, end + 1)
    first = math.lgamma(n + 1) - math.lgamma(start + 1) - math.lgamma(n - start + 1)
    first += start * math.log(q) + (n - start) * math.log1p(-q)
    steps = np.log((n - k[:-1]) / (k[:-1] + 1) * (q / (1 - q)))
    chances = np.exp(first + np.concatenate([[0.0], np.cumsum(steps)]))
    shares = np.cumsum(chances)
    return start, np.asarray(shares / shares[-1])


def signed_rank_test(difference: Floats) -> float:
    """The p-value of Wilcoxon's signed-rank test, two-sided: are the differences symmetric about 0? None may be 0.

    >>> round(signed_rank_test(np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])), 6)  # 2 of 2 ** 8 cases
    0.007812
    """
    n = len(difference)
    _, place, counts = np.unique(np.abs(difference), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]  # ties share the mean of their ranks
    total = float(ranks[difference > 0].sum())
    total = min(total, n * (n + 1) / 2 - total)
    if n <= EXACT_UP_TO:
        twice = (2 * ranks).astype(np.int64)  # whole numbers
        return min(1.0, 2 * float(_count_sums(twice)[: round(2 * total) + 1].sum()) / 2.0**n)
    tied = float((counts**3 - counts).sum()) / 48
    z = (n * (n + 1) / 4 - total) / math.sqrt(n * (n + 1) * (2 * n + 1) / 24 - tied)
    return math.erfc(z / math.sqrt(2))


def _count_sums(sizes: Ints) -> Floats:
    """How many subsets have each sum; exact in double precision for up to 53 numbers.

    >>> _count_sums(np.array([1, 2, 3])).tolist()
    [1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0]
    """
    counts = np.ones(1)
    for size in sizes.tolist():
        counts = np.concatenate([counts, np.zeros(size)]) + np.concatenate([np.zeros(size), counts])
    return counts
