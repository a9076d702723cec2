"""Numbers with their confidence intervals.

Intervals are 95 % by default: BCa bootstrap (Efron 1987) for means, order statistics for quantiles (no assumption about
the distribution), Wilson for shares.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from deepfool.errors import InputError
from deepfool.metrics.arguments import check_values
from deepfool.metrics.distributions import find_binomial_ranks
from deepfool.metrics.formatting import format_estimate
from deepfool.runs.rows import Floats, Ints
from deepfool.values import check_count, check_number

RESAMPLES = 2000

ONE_BY_ONE = 10_000
"""Of so many samples at most, each is drawn by itself. As many again take a quarter of a second."""
BINS, SINGLE = 512, 128
"""Of more samples: bins with equal numbers of them, and how many at each end have a bin of their own."""


@dataclass(frozen=True)
class Estimate:
    """A number and its interval, which is NaN where there are too few samples for one."""

    value: float
    low: float
    high: float
    count: int
    """The number of samples it is based on."""
    exact: bool = True
    """False if the number is not known, because searches ended without an answer."""

    def __str__(self) -> str:
        return format_estimate(self, 4)


def is_enough(count: int, confidence: float) -> bool:
    """Whether so many samples can have an interval of this confidence.

    The ends of a bootstrap interval lie between the smallest and the largest sample. With n samples, symmetric about
    their mean, all lie on one side of it with a chance of 2 ** (1 - n): more than 5 % for five samples or fewer.

    >>> is_enough(5, 0.95), is_enough(6, 0.95)
    (False, True)
    """
    return 2.0 ** (1 - count) <= 1 - confidence


def mean_with_interval(
    values: Floats, *, confidence: float = 0.95, seed: int = 0, resamples: int = RESAMPLES
) -> Estimate:
    """The mean of an array and its bias-corrected and accelerated (BCa) bootstrap interval.

    Not `scipy.stats.bootstrap`: its BCa computes n jackknife means in O(n**2) time and memory, although they have a
    closed form. A test checks that the two agree.

    >>> found = mean_with_interval(np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))
    >>> found.value, found.low < 3 < 4 < found.high
    (3.5, True)
    >>> print(mean_with_interval(np.array([1.0, 2.0])))
    1.500
    """
    values, confidence = check_values(values), check_number(confidence, "confidence", 0, 1)
    seed, resamples = check_count(seed, "seed", least=0), check_count(resamples, "resamples")
    n = len(values)
    if n == 0:
        return Estimate(math.nan, math.nan, math.nan, 0)
    mean = float(values.mean())
    spread = values - mean
    if not is_enough(n, confidence):
        return Estimate(mean, math.nan, math.nan, n)
    if not spread.any():
        return Estimate(mean, mean, mean, n)
    means = _resampled_means(values, resamples, seed)
    below = ((means < mean).sum() + 0.5 * (means == mean).sum()) / resamples
    normal = NormalDist()
    bias = normal.inv_cdf(min(max(below, 0.5 / resamples), 1 - 0.5 / resamples))
    # The jackknife values of a mean are linear in the data, so the acceleration is the skewness over 6 sqrt(n).
    square = spread * spread  # a power takes ten times as long
    acceleration = float((square * spread).sum() / (6 * square.sum() ** 1.5))
    tail = (1 - confidence) / 2
    ends = []
    for level in (tail, 1 - tail):
        z = bias + normal.inv_cdf(level)
        ends.append(normal.cdf(bias + z / (1 - acceleration * z)))
    low, high = np.quantile(means, ends)
    return Estimate(mean, float(low), float(high), n)


def _resampled_means(values: Floats, resamples: int, seed: int) -> Floats:
    """Means of samples drawn with replacement; of many samples by `_resample_bins`, which is as good and far faster."""
    rng = np.random.default_rng(seed)
    if len(values) > ONE_BY_ONE:
        return _resample_bins(values, resamples, rng)
    return _resample_samples(values, resamples, rng)


def _resample_samples(values: Floats, resamples: int, rng: np.random.Generator) -> Floats:
    """Every sample drawn by itself; in blocks, so that memory does not grow with `resamples`."""
    at_once = max(1, 2**21 // len(values))
    means = [
        values[rng.integers(0, len(values), (min(at_once, resamples - start), len(values)), dtype=np.int32)].mean(1)
        for start in range(0, resamples, at_once)
    ]
    return np.concatenate(means)


def _resample_bins(values: Floats, resamples: int, rng: np.random.Generator) -> Floats:
    """As `_resample_samples`, in time that hardly grows with the number of samples.

    The samples are sorted into bins; how many draws fall into each bin is multinomial. Given these counts, the sum of
    the draws is a sum of many independent terms with a known mean and variance, and is drawn as a normal number. The
    smallest and the largest samples have a bin each, so that a heavy tail is drawn sample by sample.
    """
    ordered = np.sort(values)
    n = len(ordered)
    middle = np.linspace(SINGLE, n - SINGLE, BINS, endpoint=False).astype(np.int64)
    starts = np.concatenate([np.arange(SINGLE), middle, np.arange(n - SINGLE, n)])
    sizes = np.diff(starts, append=n)
    means = np.add.reduceat(ordered, starts) / sizes
    ordered -= np.repeat(means, sizes)
    variances = np.add.reduceat(np.square(ordered, out=ordered), starts) / sizes
    found = []
    for start in range(0, resamples, 256):
        counts = rng.multinomial(n, sizes / n, min(256, resamples - start))
        spread = np.sqrt(counts @ variances)
        found.append((counts @ means + spread * rng.standard_normal(len(counts))) / n)
    return np.concatenate(found)


def quantile(values: Floats, q: float, *, confidence: float = 0.95) -> Estimate:
    """The q-quantile of distances, some of which may be infinite, and its interval from order statistics.

    It is the smallest value that at least a share q of the samples does not exceed. So it is always the distance of a
    sample, and infinite only if that many samples are censored. The median of an even number of values is the mean of
    the two in the middle.

    >>> quantile(np.array([1.0, 2.0, 3.0, math.inf]), 0.5).value
    2.5
    >>> quantile(np.array([1.0, math.inf, math.inf]), 0.5).value
    inf
    """
    values, confidence = check_values(values), check_number(confidence, "confidence", 0, 1)
    q = check_number(q, "q", 0, 1)
    n = len(values)
    if n == 0:
        return Estimate(math.nan, math.nan, math.nan, 0)
    rank, middle = max(0, math.ceil(q * n - 1e-9) - 1), n // 2
    low_rank, high_rank = find_ranks(n, q, confidence)
    needed = {rank, max(0, middle - 1), middle, max(0, low_rank - 1), min(high_rank, n - 1)}
    ordered = np.partition(values, sorted(needed))  # as sorted, at these places
    value = float(ordered[rank])
    if q == 0.5 and n % 2 == 0:
        value = float(ordered[middle - 1] / 2 + ordered[middle] / 2)
    low = float(ordered[low_rank - 1]) if low_rank >= 1 else 0.0
    high = float(ordered[high_rank]) if high_rank < n else math.inf
    return Estimate(value, low, high, n, exact=math.isfinite(value))


def find_ranks(n: int, q: float, confidence: float) -> tuple[int, int]:
    """The order statistics that enclose the q-quantile: the `low`-th smallest (0: there is none) and the `high`-th,
    counted from 0 (n: there is none).

    The number of samples below the true quantile has a binomial distribution; the ranks are its quantiles.

    >>> find_ranks(10, 0.5, 0.95)
    (2, 8)
    """
    return find_binomial_ranks(n, q, (1 - confidence) / 2)


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
    low, high = find_wilson(np.array([count]), total, confidence)
    return Estimate(count / total, float(low[0]), float(high[0]), total)


def find_wilson(counts: Ints, total: int, confidence: float = 0.95) -> tuple[Floats, Floats]:
    """The ends of Wilson's interval for some shares of one total.

    >>> low, high = find_wilson(np.array([0, 5]), 10)
    >>> low.round(3).tolist(), high.round(3).tolist()
    ([0.0, 0.237], [0.278, 0.763])
    """
    z2 = NormalDist().inv_cdf((1 + confidence) / 2) ** 2
    share, n = counts / total, float(total)
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = np.sqrt(z2 * (share * (1 - share) + z2 / (4 * n)) / n) / (1 + z2 / n)
    # At its ends the interval is closed by what is known: the share itself.
    low, high = np.where(counts == 0, 0.0, middle - half), np.where(counts == total, 1.0, middle + half)
    return np.asarray(low), np.asarray(high)


def as_json(value: Any) -> Any:
    """The value in types that JSON has: null for NaN, "inf" for infinity.

    >>> as_json({"rho": Estimate(math.nan, 0.0, math.inf, 3, exact=False)})
    {'rho': {'value': None, 'low': 0.0, 'high': 'inf', 'count': 3, 'exact': False}}
    """
    if isinstance(value, Estimate):
        return as_json(asdict(value))
    if isinstance(value, dict):
        return {str(key): as_json(each) for key, each in value.items()}
    if isinstance(value, np.ndarray):
        return as_json(value.tolist())
    if isinstance(value, list | tuple):
        return [as_json(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value
