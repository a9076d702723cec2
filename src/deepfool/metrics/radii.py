"""Robust accuracy at the radii that the literature uses, or at any others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from deepfool.errors import InputError
from deepfool.metrics.arguments import check_eps
from deepfool.metrics.brackets import certified_distances
from deepfool.metrics.estimates import Estimate, share
from deepfool.metrics.formatting import format_number
from deepfool.metrics.robustness import distances
from deepfool.metrics.setup import has_pixels
from deepfool.runs.records import Run
from deepfool.runs.rows import Records

L2 = ("0.5", "1", "2")
LINF = ("2/255", "4/255", "8/255")
LINF_MNIST = ("0.1", "0.3")
"""The radii of the common benchmarks, for images in [0, 1]; digits stand larger changes of each pixel."""


@dataclass(frozen=True)
class AtRadius:
    """The accuracy where every input may change by at most eps."""

    text: str
    """eps as it was written, such as 8/255."""
    eps: float
    accuracy: Estimate
    """An upper bound: only what the attack found counts against the model."""
    unanswered: int
    """How many of the samples that count as right had a search without an answer."""
    certified: Estimate | None = None
    """A lower bound: the share that is proved to stay right; None if no sample was certified."""

    @property
    def if_fooled(self) -> float:
        """The accuracy if the samples without an answer counted as fooled."""
        return self.accuracy.value - self.unanswered / max(1, self.accuracy.count)


def choose_radii(run: Run, records: Records) -> tuple[str, ...]:
    """The usual radii for a run; none for data or norms without such a convention."""
    if not has_pixels(run, records) or run.p not in (2, math.inf):
        return ()
    if run.p == 2:
        return L2
    found = records.r["p"][np.isfinite(records.r["p"])]
    digits = str(run.manifest["data"]["name"]).startswith("mnist")
    # Of other images the scale decides: where half of them stand 0.1, radii of 8/255 tell nothing.
    return LINF_MNIST if digits or (len(found) and float(np.median(found)) > 0.1) else LINF


def read_radius(text: str) -> float:
    """A radius: a number, or a fraction such as 8/255.

    >>> read_radius("0.5"), round(read_radius("8/255"), 4)
    (0.5, 0.0314)
    >>> read_radius("two")
    Traceback (most recent call last):
    ...
    deepfool.errors.InputError: eps must be a number or a fraction such as 8/255, got 'two'.
    """
    try:
        top, slash, below = str(text).partition("/")
        value = float(Fraction(top.strip()) / Fraction(below.strip())) if slash else float(text)
    except (ValueError, ZeroDivisionError, OverflowError):
        raise InputError(f"eps must be a number or a fraction such as 8/255, got {text!r:.80}.") from None
    if not math.isfinite(value):
        raise InputError(f"eps must be finite, got {text!r:.80}.")
    return check_eps(value)


def accuracy_at_radii(run: Run, records: Records, eps: Sequence[str | float] | None = None) -> list[AtRadius]:
    """The accuracy at some radii, in the norm of the attack; by default at the usual ones for this data and norm.

    >>> import tempfile, torch
    >>> from deepfool import evaluate
    >>> with tempfile.TemporaryDirectory() as here:
    ...     run = evaluate(torch.nn.Linear(4, 3), (torch.rand(8, 4), torch.zeros(8, dtype=torch.long)), out=here)
    ...     found = accuracy_at_radii(run, run.records(), ["1/2", 100])
    >>> [each.text for each in found], found[1].accuracy.value
    (['1/2', '100'], 0.0)
    """
    wanted = choose_radii(run, records) if eps is None else eps
    if not len(records):
        return []
    away, known = distances(records), bool(records.fooled.any()) or not records.censored.any()
    low, _ = certified_distances(records)
    found = []
    for each in wanted:
        radius = read_radius(str(each))
        right = int((away > radius).sum())
        text = str(each) if isinstance(each, str) else format_number(each, 4) if each % 1 else f"{each:.0f}"
        proved = share(int((low > radius).sum()), len(away)) if records.certified.any() else None
        found.append(
            AtRadius(text, radius, share(right, len(away)) if known else _UNKNOWN, int(np.isinf(away).sum()), proved)
        )
    return found


_UNKNOWN = Estimate(math.nan, math.nan, math.nan, 0, exact=False)
"""Where no search had an answer, the accuracy without a perturbation would be an upper bound that tells nothing."""
