"""Accuracy against eps. One run gives the whole curve, because it measured the distance of every sample."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deepfool.errors import InputError, RunError
from deepfool.metrics.arguments import as_floats, check_eps, check_norm, check_records
from deepfool.metrics.brackets import accuracy_band
from deepfool.metrics.estimates import find_wilson
from deepfool.metrics.robustness import distances
from deepfool.outcomes import Status
from deepfool.runs.rows import Floats, Records
from deepfool.values import check_count


@dataclass(frozen=True)
class Curve:
    """Accuracy against eps, from the distances of one run.

    `accuracy` is an upper bound: only what the attack found counts against the model, and a stronger attack may find
    more. `low` counts the searches without an answer as fooled too; without such searches the two are the same.
    """

    eps: Floats
    accuracy: Floats
    low: Floats
    band: tuple[Floats, Floats]
    """How far chance in the choice of the samples may move the curve: Wilson's intervals, 95 % at each eps. Its lower
    edge is that of `low`, its upper edge that of `accuracy`."""
    norm: str
    labelled: bool
    """Whether every sample has a true label. Samples without one count as right at eps = 0."""
    area: float
    """The area under `accuracy` from 0 to the last eps: the mean distance, capped there (the restricted mean of
    survival analysis)."""
    certified: tuple[Floats, Floats] | None = None
    """What is proved, if samples were certified: the true curve lies between the two. The upper one counts what the
    proofs found too, so it may be below `accuracy`."""

    @property
    def area_share(self) -> float:
        """The area as a share of the largest possible one."""
        return self.area / float(self.eps[-1]) if self.eps[-1] > 0 else math.nan


def accuracy_curve(
    records: Records, eps: Sequence[float] | Floats | int = 101, norm: str = "p", *, relative: bool = False
) -> Curve:
    """The share of samples that are right and stay right within eps.

    `eps` is the values to use, or how many, spread evenly from 0 to the largest distance. With `relative` it is a share
    of the size of each sample, ||x||; samples that are all zeros have none and are left out.

    >>> rows = [{"index": i, "label": 1, "true_label": 1, "status": "FOOLED", "r_p": r} for i, r in enumerate((1, 3))]
    >>> wrong = {"index": 2, "label": 1, "true_label": 0, "status": "FOOLED", "r_p": 2.0}
    >>> curve = accuracy_curve(Records.of([*rows, wrong], p=2), [0, 1, 2, 3])
    >>> (curve.accuracy * 3).round().tolist(), round(curve.area * 3, 6)
    ([2.0, 1.0, 1.0, 0.0], 4.0)
    """
    away = distances(records, norm, relative=relative)
    if relative:
        away = away[~np.isnan(away)]
    if len(away) == 0:
        raise RunError("the run has no rows, so there is no curve.")
    if isinstance(eps, bool | numbers.Integral):
        finite = away[np.isfinite(away)]
        grid = np.linspace(0.0, float(finite.max(initial=0.0)), check_count(eps, "eps"))
    else:
        grid = as_floats(eps, "eps")
        if grid.ndim != 1 or not len(grid) or grid[0] < 0 or not np.isfinite(grid).all() or (np.diff(grid) < 0).any():
            raise InputError("eps must be finite numbers >= 0 in ascending order.")
    n = len(away)
    standing = n - np.searchsorted(np.sort(away), grid, side="right")
    sure = np.maximum(0, standing - int(np.isinf(away).sum()))
    return Curve(
        grid, standing / n, sure / n, (find_wilson(sure, n)[0], find_wilson(standing, n)[1]), norm,
        labelled=bool((records.true_label >= 0).all()), area=float(np.minimum(away, grid[-1]).mean()),
        certified=accuracy_band(records, grid, relative=relative) if norm == "p" else None,
    )  # fmt: skip


def accuracy_at(records: Records, eps: float, norm: str = "p") -> tuple[float, float]:
    """The accuracy within eps, with searches without an answer counted as fooled and as not fooled.

    >>> rows = [{"index": 0, "status": "FOOLED", "r_p": 1.0}, {"index": 1, "status": "EXHAUSTED"}]
    >>> accuracy_at(Records.of(rows, p=2), 1.0)
    (0.0, 0.5)
    """
    curve = accuracy_curve(records, [check_eps(eps)], norm)
    return float(curve.low[0]), float(curve.accuracy[0])


def fooled_within(records: Records, eps: float, norm: str = "p") -> tuple[float, float]:
    """The share of decisions, right or wrong, that a perturbation of at most eps changes: as found, and at most.

    The second number also counts censored samples. Skipped samples were not searched and do not count.

    >>> rows = [{"index": 0, "status": "FOOLED", "r_p": 1.0}, {"index": 1, "status": "EXHAUSTED"}]
    >>> fooled_within(Records.of(rows, p=2), 1.0)
    (0.5, 1.0)
    """
    tried = check_records(records).status != Status.MISCLASSIFIED
    norm, eps = check_norm(norm), check_eps(eps)
    if not tried.any():
        return math.nan, math.nan
    found = float((records.r[norm][tried] <= eps).mean())
    return found, found + float(records.censored[tried].mean())
