"""Ranks and p-values beside those of scipy."""

import numpy as np
import pytest
from scipy import stats

from deepfool.metrics.distributions import find_binomial_ranks, signed_rank_test

CHANCES = (0.05, 0.25, 0.5, 0.75, 0.95, 1e-3)
TAILS = (0.025, 0.005, 0.25)


def ranks_of_scipy(n, q, tail):
    low = int(stats.binom.ppf(tail, n, q))
    return low + bool(stats.binom.cdf(low, n, q) <= tail), int(stats.binom.ppf(1 - tail, n, q))


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("q", CHANCES)
def test_binomial_ranks(q, tail):
    for n in (*range(1, 40), 41, 64, 99, 100, 365, 1000, 4321, 10_000, 123_456, 1_000_000):
        assert find_binomial_ranks(n, q, tail) == ranks_of_scipy(n, q, tail), n


def test_a_chance_that_is_reached_exactly():
    assert find_binomial_ranks(2, 0.5, 0.25) == (1, 1)  # P(count <= 0) = 1/4
    assert ranks_of_scipy(2, 0.5, 0.25) == (1, 1)


@pytest.mark.parametrize("n", [1, 2, 5, 6, 20, 49, 50, 51, 200, 5000])
def test_signed_ranks(n):
    rng = np.random.default_rng(n)
    for shift in (0.0, 0.3, -1.0):
        difference = rng.normal(shift, 1.0, n)
        assert signed_rank_test(difference) == pytest.approx(stats.wilcoxon(difference).pvalue, rel=1e-9)


@pytest.mark.parametrize("n", [2, 5, 9, 60, 500])  # scipy counts all cases up to 13, and takes a normal from 14 on
def test_signed_ranks_with_ties(n):
    difference = np.random.default_rng(n).integers(1, 6, n) * np.random.default_rng(1).choice([-1.0, 1.0, 1.0], n)
    wanted = stats.wilcoxon(difference).pvalue
    assert signed_rank_test(difference) == pytest.approx(wanted, rel=1e-9)
