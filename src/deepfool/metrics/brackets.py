"""From both sides: certified <= true <= found.

An attack finds an upper bound on each distance, a certificate proves a lower one. Their means enclose rho_adv, and the
accuracy within eps lies between the share that is certified there and the share that was not fooled. A sample without
a certificate counts with a lower bound of 0, never as safe. Lower bounds are in the norm of the attack.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from deepfool.metrics.arguments import check_records
from deepfool.metrics.estimates import RESAMPLES, Estimate, mean_with_interval, share
from deepfool.outcomes import Proof, Status
from deepfool.runs.proofs import EXACT, check_order
from deepfool.runs.rows import Floats, Records


@dataclass(frozen=True)
class Bracket:
    """rho_adv from both sides, each end with its bootstrap interval."""

    lower: Estimate
    """The mean of the certified lower bounds, relative to the size of the input."""
    upper: Estimate
    """The mean of the smallest perturbations that are known; not known if a sample has none."""
    exact: Estimate
    """The share of the samples whose two bounds meet."""
    count: int
    """How many samples have a relative distance."""
    proved: int
    """How many of them have a lower bound above 0."""
    missing: int
    """How many of them were not certified, and count with 0."""
    improved: int
    """How many have a smaller perturbation from the proof than from the attack."""
    unchangeable: int
    """How many no perturbation at all changes: they count with the largest finite lower bound of the others."""

    @property
    def known(self) -> bool:
        """Whether the upper end is known."""
        return self.upper.exact and not math.isnan(self.upper.value)

    @property
    def closed(self) -> bool:
        """Whether the two ends are the same within 0.1 %."""
        return self.known and self.lower.value >= (1 - EXACT) * self.upper.value

    def as_dict(self) -> dict[str, Any]:
        return vars(self) | {"known": self.known, "closed": self.closed}


def find_bracket(
    records: Records, *, confidence: float = 0.95, seed: int = 0, resamples: int = RESAMPLES
) -> Bracket | None:
    """rho_adv from both sides, in the norm of the attack; None if no sample was certified.

    >>> row = {"status": "FOOLED", "r_p": 2.0, "x_p": 10.0}
    >>> rows = [{**row, "index": 0, "proof": "CERTIFIED", "lower": 1.0}, {**row, "index": 1}]
    >>> found = find_bracket(Records.of(rows, p=2))
    >>> found.lower.value, found.upper.value, found.missing
    (0.05, 0.2, 1)
    """
    check_bounds(check_records(records))
    if not records.certified.any():
        return None
    used = records.pick((records.status != Status.MISCLASSIFIED) & (records.x["p"] > 0))
    lower, upper = used.lower / used.x["p"], used.upper / used.x["p"]
    endless = np.isinf(lower)
    lower = np.where(endless, lower[~endless].max(initial=0.0), lower)
    how: dict[str, Any] = {"confidence": confidence, "seed": seed, "resamples": resamples}
    unknown = Estimate(math.nan, math.nan, math.nan, len(used), exact=False)
    return Bracket(
        lower=mean_with_interval(lower, **how),
        upper=unknown if np.isinf(upper).any() else mean_with_interval(upper, **how),
        exact=share(int((used.proof == Proof.EXACT).sum()), len(used), confidence=confidence),
        count=len(used), proved=int((used.lower > 0).sum()), missing=int((~used.certified).sum()),
        improved=int((used.proof_upper < used.r["p"]).sum()), unchangeable=int(endless.sum()),
    )  # fmt: skip


def check_bounds(records: Records) -> None:
    """An error that names it a bug, if a lower bound is above a perturbation that was found.

    >>> row = {"index": 7, "status": "FOOLED", "r_p": 1.0, "proof": "CERTIFIED", "lower": 2.0}
    >>> check_bounds(Records.of([row], p=2))
    Traceback (most recent call last):
    ...
    deepfool.errors.SoundnessError: sample 7: the certified lower bound 2 is above a perturbation of 1 ...
    """
    for i in np.flatnonzero(records.lower > records.upper * (1 + EXACT)).tolist():
        check_order(float(records.lower[i]), float(records.upper[i]), f"sample {records.index[i]}")


def certified_distances(records: Records, *, relative: bool = False) -> tuple[Floats, Floats]:
    """How far each sample is from being wrong, at least and at most: 0 if it is wrong already.

    With `relative` it is a share of ||x||, and NaN if x is zero.
    """
    check_bounds(records)
    with np.errstate(divide="ignore", invalid="ignore"):
        size = np.where(records.x["p"] > 0, records.x["p"], math.nan) if relative else 1.0
        ends = (records.lower / size, records.upper / size)
    low, high = (np.where(records.misclassified, np.where(np.isnan(end), math.nan, 0.0), end) for end in ends)
    return low, high


def accuracy_band(records: Records, eps: Floats, *, relative: bool = False) -> tuple[Floats, Floats] | None:
    """The accuracy within each eps: what is certified, and what is left by the smallest perturbations known.

    None if no sample was certified.

    >>> row = {"index": 0, "label": 1, "true_label": 1, "status": "FOOLED", "r_p": 2.0, "x_p": 10.0}
    >>> certified = {**row, "proof": "CERTIFIED", "lower": 1.0}
    >>> low, high = accuracy_band(Records.of([certified], p=2), np.array([0.5, 1.5, 2.5]))
    >>> low.tolist(), high.tolist()
    ([1.0, 0.0, 0.0], [1.0, 1.0, 0.0])
    """
    if not check_records(records).certified.any():
        return None
    low, high = (_count_beyond(away, eps) for away in certified_distances(records, relative=relative))
    return low, high


def _count_beyond(away: Floats, eps: Floats) -> Floats:
    away = np.sort(away[~np.isnan(away)])
    beyond: Floats = 1 - np.searchsorted(away, eps, side="right") / max(1, len(away))
    return beyond
