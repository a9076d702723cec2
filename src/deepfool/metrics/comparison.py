"""Two runs on the same samples, compared sample by sample."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from deepfool.errors import RunError
from deepfool.metrics.arguments import check_norm, check_records, check_runs
from deepfool.metrics.brackets import Bracket, find_bracket
from deepfool.metrics.distributions import signed_rank_test
from deepfool.metrics.estimates import Estimate, as_json, find_ranks, mean_with_interval, quantile
from deepfool.metrics.robustness import rho_adv
from deepfool.outcomes import Status
from deepfool.runs.records import Run
from deepfool.runs.rows import Floats, Records
from deepfool.runs.weighing import find_weights
from deepfool.values import check_number

FEWEST = 20
"""With fewer samples, an interval is not to be trusted. Measured on simulated distances (4,000 draws of each): the true
mean lies below the lower end in 5.5 % of the cases with 5 gamma-distributed samples, and in 3.2 % with 20 (2.5 % is
meant); an interval of differences about 0 leaves out 0 in 19 % with 5, in 10 % with 20, in 7.6 % with 50 (5 %)."""

TRIFLE = 1e-4
"""A smaller change of rho_adv is none, whatever the interval says: rounding alone makes one. With batches of 1, 7 and
64 samples, on 64 samples of lenet-mnist and of lenet-cifar10, it made up to 0.000004 (deepfool, smallest, ddn)."""


@dataclass(frozen=True)
class Comparison:
    """Two runs on the same samples. Differences are the relative distances of b minus those of a.

    What an attack finds is an upper bound on the distance. A sample without an answer (censored) has no known distance,
    so the mean difference and everything that follows from it is unknown if there is one.
    """

    norm: str
    pairs: int
    only_a: int
    only_b: int
    rho_a: Estimate
    rho_b: Estimate
    mean_difference: Estimate | None
    """None if a sample is censored in one of the runs: its difference is unknown."""
    median_difference: Estimate
    larger_in_a: int
    larger_in_b: int
    ties: int
    censored_a: int
    censored_b: int
    p_value: float
    """Two-sided Wilcoxon signed-rank test that the differences are symmetric about 0. Distances that were not found
    rank above all others, so nothing follows from it if there are any."""
    answered: int
    """The pairs with an answer in both runs."""
    mean_answered: Estimate | None
    """The mean difference of those pairs alone; None if there are none."""
    change: float | None
    """How much larger the mean of b is, as a share of that of a; None if the mean difference is unknown."""
    bracket_a: Bracket | None = None
    bracket_b: Bracket | None = None
    """rho_adv of the pairs from both sides, in the norm of the attack; None for a run that was not certified."""

    @property
    def proved(self) -> str | None:
        """ "a" or "b", if what is certified of that one is more than what was found for the other; else None."""
        if self.bracket_b and self.rho_a.exact and self.bracket_b.lower.value > self.rho_a.value:
            return "b"
        if self.bracket_a and self.rho_b.exact and self.bracket_a.lower.value > self.rho_b.value:
            return "a"
        return None

    @property
    def known(self) -> bool:
        """Whether every pair has an answer in both runs."""
        return self.mean_difference is not None

    @property
    def beyond_chance(self) -> bool | None:
        """Whether the interval of the mean difference leaves out 0; None if that is unknown, or the pairs are few."""
        if self.mean_difference is None or self.pairs < FEWEST:
            return None
        if self.change is not None and abs(self.change) < TRIFLE:
            return False
        return self.mean_difference.low > 0 or self.mean_difference.high < 0

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return as_json({**asdict(self), "beyond_chance": self.beyond_chance})  # type: ignore[no-any-return]


def compare(a: Records, b: Records, norm: str = "p", *, confidence: float = 0.95, seed: int = 0) -> Comparison:
    """Compare two runs, paired by sample.

    >>> rows = [{"index": i, "status": "FOOLED", "r_p": 1.0 + i / 10, "x_p": 10.0} for i in range(8)]
    >>> more = [{**row, "r_p": row["r_p"] * 1.1} for row in rows]
    >>> found = compare(Records.of(rows, p=2), Records.of(more, p=2))
    >>> found.larger_in_b, round(found.mean_difference.value, 4), found.p_value < 0.05
    (8, 0.0135, True)
    """
    check_records(a)
    check_records(b)
    norm, confidence = check_norm(norm), check_number(confidence, "confidence", 0, 1)
    one, other = a, b
    if not np.array_equal(a.index, b.index):
        _, in_a, in_b = np.intersect1d(a.index, b.index, return_indices=True)
        one, other = a.pick(in_a), b.pick(in_b)
    if not np.allclose(one.x[norm], other.x[norm], rtol=1e-5, atol=0, equal_nan=True):
        raise RunError(
            "the two runs have different samples: the norms of x are not the same.",
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
    answered = np.isfinite(ratio_a) & np.isfinite(ratio_b)
    known = bool(answered.all())
    mean = mean_with_interval(ratio_b[answered] - ratio_a[answered], confidence=confidence, seed=seed)
    return Comparison(
        norm=norm, pairs=len(one), only_a=len(a) - len(one), only_b=len(b) - len(one),
        rho_a=rho_adv(one, norm, seed=seed), rho_b=rho_adv(other, norm, seed=seed),
        mean_difference=mean if known else None,
        median_difference=_median_of_signed(difference, confidence),
        larger_in_a=int((difference < 0).sum()), larger_in_b=int((difference > 0).sum()),
        ties=int((difference == 0).sum()), censored_a=int(one.censored.sum()), censored_b=int(other.censored.sum()),
        p_value=_signed_rank(difference), answered=int(answered.sum()), mean_answered=mean if answered.any() else None,
        change=mean.value / float(ratio_a.mean()) if known and ratio_a.any() else None,
        bracket_a=find_bracket(one, seed=seed) if norm == "p" else None,
        bracket_b=find_bracket(other, seed=seed) if norm == "p" else None,
    )  # fmt: skip


def _subtract(b: Floats, a: Floats) -> Floats:
    """b - a. If neither was found, they are tied."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isinf(a) & np.isinf(b), 0.0, b - a)


def _median_of_signed(difference: Floats, confidence: float) -> Estimate:
    """As `quantile`, for numbers of either sign: an open lower end is -infinity, not 0."""
    found = quantile(difference, 0.5, confidence=confidence)
    low_rank, _ = find_ranks(len(difference), 0.5, confidence)
    low = found.low if low_rank >= 1 else -math.inf
    return Estimate(found.value, low, found.high, found.count, found.exact)


def _signed_rank(difference: Floats) -> float:
    moved = difference[difference != 0]
    if not len(moved):
        return 1.0
    # Only ranks count, so any value beyond the largest difference can stand in for an infinite one.
    finite = np.abs(moved[np.isfinite(moved)])
    beyond = 2 * float(finite.max(initial=1.0))
    return signed_rank_test(np.clip(moved, -beyond, beyond))


def check_same_data(a: Run, b: Run) -> None:
    """Refuse to compare runs on different data."""
    check_runs(a, b)
    mine, theirs = a.identity["data"]["sha256"], b.identity["data"]["sha256"]
    if mine != theirs:
        names = [run.manifest["data"]["name"] for run in (a, b)]
        raise RunError(
            f"the runs are on different data: {names[0]} ({mine[:12]}) and {names[1]} ({theirs[:12]}).",
            hint="paired differences need the same samples.",
        )


def shared_norm(a: Run, b: Run, norm: str | None) -> str:
    """The norm to compare in: the given one, or the one that both attacks minimised."""
    check_runs(a, b)
    weights = [find_weights(run.identity["attack"]["knobs"]) for run in (a, b)]
    if weights[0] != weights[1]:
        raise RunError(
            "the runs weigh features differently, so their distances do not compare.",
            hint="measure both with the same weights.",
        )
    if norm is not None and norm != "p":
        return check_norm(norm)
    if a.p != b.p:
        raise RunError(
            f"the runs minimise different norms, {a.norm} and {b.norm}.", hint="choose one: --norm l2, l1 or linf."
        )
    if a.unit != b.unit:
        raise RunError(f"the runs count different things, {a.unit}s and {b.unit}s.", hint="choose a norm: --norm l2.")
    return "p"
