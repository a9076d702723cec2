"""Is a model less robust than another one was? Paired, sample by sample, against a baseline run."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from deepfool.errors import DeepFoolError, InputError
from deepfool.metrics.comparison import TRIFLE, Comparison, check_same_data, compare
from deepfool.metrics.conditions import Finding, count_words
from deepfool.metrics.formatting import format_number, format_percent
from deepfool.metrics.health import Subject
from deepfool.metrics.settings import find_differences
from deepfool.runs.records import Run


@dataclass(frozen=True)
class Drop:
    """How much smaller rho_adv may be: as a number, or as a share of that of the baseline."""

    size: float
    relative: bool

    @property
    def text(self) -> str:
        return f"{100 * self.size:g} %" if self.relative else f"{self.size:g}"

    def exceeded(self, found: Comparison) -> bool:
        """Whether the mean of b is smaller than that of a by more than this."""
        if self.relative:
            return found.change is not None and found.change < -self.size
        return found.mean_difference is not None and found.mean_difference.value < -self.size


def parse_drop(text: str | float) -> Drop:
    """A drop from text.

    >>> parse_drop("5%"), parse_drop("0.01").text
    (Drop(size=0.05, relative=True), '0.01')
    >>> parse_drop("much")
    Traceback (most recent call last):
    ...
    deepfool.errors.InputError: expected a drop of rho_adv, such as 0.01 or 5%, got 'much'.
    """
    match = re.fullmatch(r"(.+?)\s*(%?)", str(text).strip())
    try:
        size = float(match[1]) if match else math.nan
        if not 0 <= size < math.inf:
            raise ValueError
    except ValueError:
        raise InputError(f"expected a drop of rho_adv, such as 0.01 or 5%, got {text!r:.80}.") from None
    relative = bool(match and match[2])
    return Drop(size / 100 if relative else size, relative)


def find_regression(subject: Subject, baseline: Run | str | Path, drop: Drop | None, least: int) -> Finding:
    """Whether the run is not less robust than the baseline: beyond chance, or by more than `drop`."""
    try:
        before = baseline if isinstance(baseline, Run) else Run(baseline)
        if before.folder.resolve() == subject.run.folder.resolve():
            return Finding(None, "the baseline is the run itself")
        check_same_data(before, subject.run)
        if differences := find_differences(before, subject.run):
            return Finding(None, f"the baseline was measured in another way: {'; '.join(differences)}")
        records = before.records()
        if len(records) < before.expected:
            return Finding(None, f"the baseline is not complete: {len(records)} of {before.expected} samples")
        found = compare(records, subject.records)
    except DeepFoolError as error:
        return Finding(None, str(error).partition(" Hint:")[0].rstrip("."))
    return _judge(found, drop, least)


def _judge(found: Comparison, drop: Drop | None, least: int) -> Finding:
    mean = found.mean_difference
    if mean is None:
        lost = f"{count_words(found.censored_a, 'sample')} of the baseline and {found.censored_b} of this run"
        return Finding(None, f"whether it is less robust is not known: {lost} have no answer")
    if found.pairs < least:
        return Finding(None, f"only {count_words(found.pairs, 'sample')} are in both runs")
    change = 0.0 if found.change is None else found.change
    told = "as large on average as in the baseline"
    if abs(change) >= TRIFLE:
        told = (
            f"{format_percent(abs(change), 2)} {'smaller' if change < 0 else 'larger'} on average than in the baseline"
        )
    told = (
        f"the perturbations found are {told} (difference of rho_adv {format_number(mean.value)}, 95 % interval "
        f"{format_number(mean.low)} .. {format_number(mean.high)}, {count_words(found.pairs, 'pair')})"
    )
    if mean.high < 0 and abs(change) >= TRIFLE:
        return Finding(False, f"{told}: less robust beyond chance")
    if drop is not None and drop.exceeded(found):
        return Finding(False, f"{told}: a drop of more than {drop.text}")
    return Finding(True, told)
