"""The one place where it is decided what a run may be said to show: its headline.

What an attack finds is an upper bound on the distance, and it is worth as much as the search behind it. So before any
number stands what speaks against it: nothing measured, searches without an answer, an audit that fails or cautions.
`metrics.verdict` puts the headline into words; pages, terminals and gates read it here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from math import isnan
from typing import Any

import numpy as np

from deepfool.metrics.brackets import Bracket, find_bracket
from deepfool.metrics.estimates import Estimate
from deepfool.metrics.formatting import format_number, format_percent
from deepfool.metrics.robustness import rho_adv, rho_answered
from deepfool.outcomes import Evidence, Status
from deepfool.runs.audit.checklist import Audit, Check, Verdict
from deepfool.runs.cautions import list_cautions
from deepfool.runs.records import Run
from deepfool.runs.rows import Records


class Standing(str, Enum):
    """How far the number of a run may be trusted, from worst to best."""

    EMPTY = "empty"
    """Nothing has been measured."""
    UNANSWERED = "unanswered"
    """No search had an answer: nothing is known."""
    FAILED = "failed"
    """The audit says not to use the number."""
    PARTLY = "partly"
    """Some searches had no answer: the mean is not known."""
    MASKED = "masked"
    """The gradients are hidden or mislead, or the scores change by themselves: the number may be far too large."""
    LOOSE = "loose"
    """A stronger search finds clearly smaller perturbations."""
    UNDEFINED = "undefined"
    """No sample has a relative distance: all are zeros."""
    SOUND = "sound"
    """Every search had an answer, and nothing is known to speak against it."""

    def __str__(self) -> str:
        return self.value


LEVELS = {
    Standing.EMPTY: "bad", Standing.UNANSWERED: "bad", Standing.FAILED: "bad", Standing.PARTLY: "warning",
    Standing.MASKED: "warning", Standing.LOOSE: "warning", Standing.UNDEFINED: "warning", Standing.SOUND: "good",
}  # fmt: skip

STILL_COMPARABLE = ("strongest attack", "converged", "8-bit rounding")
"""Cautions that say that the attack is weak or the distances tiny, not that the model misleads it. Figures of the same
attack can still be compared with each other."""

MANY = 10
"""A mean of larger ratios tells no more: a single sample that lies on a boundary makes it as large as one likes."""

IN_WORDS = {
    "same scores twice": "the model gives other scores each time it is run, so the distances are random",
    "alone as in a batch": "the scores of a sample depend on the other samples in its batch",
    "gradients": "the gradients are zero at some samples, and an attack that follows gradients is blind there",
    "hidden gradients": "the model hides its gradients behind a rounding or a last layer that saturates",
    "saturation": "scores are too close together for the precision of the run",
    "tenfold budget": "the search is hard on this model: ten times the effort finds perturbations {percent} smaller",
    "strongest attack": "the perturbations are on average {times} times as large as those of a stronger attack",
    "found by": "some perturbations were not found by the model's own gradients",
    "converged": "many perturbations were still getting smaller when the search ended",
    "bounds": "the inputs themselves leave the bounds",
    "8-bit rounding": "the distances are smaller than what images of 8 bits can show",
}
"""Each check of an audit in the reader's words, for when it does not pass; with its number where that tells more."""


@dataclass(frozen=True)
class Headline:
    """What a run may be said to show."""

    standing: Standing
    rho: Estimate
    """rho_adv in the norm of the attack: an upper bound, or not known."""
    answered: Estimate
    """The mean over the samples whose search had an answer."""
    searched: int
    unanswered: int
    failures: dict[str, int] = field(default_factory=dict)
    """Why searches had no answer, and how many, the most common first."""
    reasons: tuple[str, ...] = ()
    """What speaks against the number, in the reader's words, the worst first."""
    comparable: bool = True
    """Whether the number may stand beside those of other networks."""
    bracket: Bracket | None = None
    """rho_adv from both sides, if samples were certified."""

    @property
    def bracketed(self) -> bool:
        """Whether the bracket is the headline: something was proved, and the audit does not say to keep off."""
        barred = self.standing in (Standing.EMPTY, Standing.FAILED)
        return self.bracket is not None and self.bracket.lower.value > 0 and not barred

    @property
    def level(self) -> str:
        """good, warning or bad."""
        return LEVELS[self.standing]

    def as_dict(self) -> dict[str, Any]:
        return {
            "standing": self.standing.value, "level": self.level, "searched": self.searched,
            "unanswered": self.unanswered, "failures": self.failures, "reasons": list(self.reasons),
            "comparable": self.comparable, "bracketed": self.bracketed,
        }  # fmt: skip


def choose_headline(run: Run, records: Records, audit: Audit | None = None) -> Headline:
    """The headline of a run; `audit` is the checklist in its folder, if there is one.

    >>> import tempfile, torch
    >>> from deepfool import evaluate
    >>> with tempfile.TemporaryDirectory() as here:
    ...     run = evaluate(torch.nn.Linear(4, 3), (torch.rand(8, 4), torch.zeros(8, dtype=torch.long)), out=here)
    ...     choose_headline(run, run.records()).standing.value
    'sound'
    """
    rho = rho_adv(records, "p")
    answered = rho if rho.exact else rho_answered(records, "p")
    searched, unanswered = int((records.status != Status.MISCLASSIFIED).sum()), int(records.censored.sum())
    misled = [*_find_random(run), *_find_blind(records)]
    cautions = _list(audit, Verdict.CAUTION)
    misled += [check for check in cautions if check.name not in STILL_COMPARABLE and check.name not in _names(misled)]
    loose = [check for check in cautions if check.name in STILL_COMPARABLE]
    failed = _list(audit, Verdict.FAIL)
    standing = Standing.SOUND
    if not searched:
        standing = Standing.EMPTY
    elif unanswered == searched:
        standing = Standing.UNANSWERED
    elif failed:
        standing = Standing.FAILED
    elif unanswered:
        standing = Standing.PARTLY
    elif misled:
        standing = Standing.MASKED
    elif loose:
        standing = Standing.LOOSE
    elif isnan(rho.value):
        standing = Standing.UNDEFINED
    return Headline(
        standing, rho, answered, searched, unanswered, count_failures(records) if unanswered else {},
        tuple(_say(check) for check in [*failed, *misled, *loose]),
        comparable=standing in (Standing.SOUND, Standing.LOOSE), bracket=find_bracket(records),
    )  # fmt: skip


def count_failures(records: Records) -> dict[str, int]:
    """Why searches had no answer, and how many, the most common first; by their status if they do not say.

    >>> rows = [{"status": "STUCK"}, *2 * [{"status": "EXHAUSTED", "reason": "not fooled in 9 steps"}]]
    >>> count_failures(Records.of(rows, p=2))
    {'not fooled in 9 steps': 2, 'STUCK': 1}
    """
    found: Counter[str] = Counter()
    for status in (Status.STUCK, Status.EXHAUSTED):
        counts = records.count_reasons(np.asarray(records.status == status))
        found.update({reason or status.name: count for reason, count in counts.items()})
    return dict(found.most_common())


def _find_random(run: Run) -> list[Check]:
    """What was seen of the scores when the run began."""
    seen = [each.get("scores") for each in run.manifest["sessions"] if isinstance(each, dict)]
    facts = [each for each in seen if isinstance(each, dict) and list_cautions(each)]
    names = ["alone as in a batch" if each.get("repeatable") else "same scores twice" for each in facts]
    return [Check(name, Verdict.CAUTION, "", 0.0) for name in dict.fromkeys(names)]


def _find_blind(records: Records) -> list[Check]:
    """Rows that were found by other means than the model's own gradients."""
    blind = int((records.fooled & (records.evidence > Evidence.GRADIENTS)).sum())
    return [Check("found by", Verdict.CAUTION, "", float(blind))] if blind else []


def _names(checks: list[Check]) -> list[str]:
    return [check.name for check in checks]


def _list(audit: Audit | None, verdict: Verdict) -> list[Check]:
    return [check for check in audit.checks if check.verdict is verdict] if audit else []


def _say(check: Check) -> str:
    """A check in the reader's words; where there is no number, something could not be found out, and it says what."""
    if check.number is None or check.name not in IN_WORDS:
        return check.sentence.strip().rstrip(".")
    times = format_number(check.number, 2) if check.number <= MANY else f"more than {MANY}"
    return IN_WORDS[check.name].format(times=times, percent=format_percent(check.number, 2))
