"""The checklist of an audit, and the file that keeps it in the run folder."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

from deepfool import __version__, cache
from deepfool.errors import DataError
from deepfool.runs.manifests import now
from deepfool.runs.records import Run

LEAST = 200
"""Smaller runs are not audited by themselves: an audit would take much longer than the run."""

AUDIT = "audit.json"
"""In the run folder."""


class Verdict(str, Enum):
    """What a check found, from good to bad."""

    PASS = "pass"
    """Nothing speaks against the numbers."""
    CAUTION = "caution"
    """The true distances may be smaller than the numbers say, or could not be checked."""
    FAIL = "fail"
    """The numbers are not to be used as they are."""

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Check:
    """One line of the checklist."""

    name: str
    verdict: Verdict
    sentence: str
    number: float | None
    """What the sentence is about; None if there is none."""


@dataclass(frozen=True)
class Audit:
    """A checklist.

    >>> audit = Audit((Check("gradients", Verdict.PASS, "no gradient is zero.", 0.0),), samples=(3, 5))
    >>> audit.verdict.value, audit.count(Verdict.PASS)
    ('pass', 1)
    """

    checks: tuple[Check, ...]
    samples: tuple[int, ...]
    """The samples that were looked at, by their index in the data."""

    @property
    def verdict(self) -> Verdict:
        """The worst of all checks."""
        return max((check.verdict for check in self.checks), key=_ORDER.index, default=Verdict.PASS)

    def count(self, verdict: Verdict) -> int:
        return sum(check.verdict is verdict for check in self.checks)

    def __getitem__(self, name: str) -> Check:
        """The check of this name."""
        return next(check for check in self.checks if check.name == name)

    @property
    def headline(self) -> str:
        """The outcome in a sentence."""
        checks = f"{len(self.checks)} checks on {len(self.samples)} sample{'' if len(self.samples) == 1 else 's'}"
        cautions, fails = self.count(Verdict.CAUTION), self.count(Verdict.FAIL)
        if not cautions and not fails:
            return f"{checks}: nothing speaks against the numbers."
        told = [f"{n} {word if n == 1 else f'{word}s'}" for n, word in ((fails, "failure"), (cautions, "caution")) if n]
        return f"{checks}: {' and '.join(told)}."

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "verdict": self.verdict.value,
            "samples": list(self.samples),
            "checks": [
                {"name": check.name, "verdict": check.verdict.value, "sentence": check.sentence, "number": check.number}
                for check in self.checks
            ],
        }

    @staticmethod
    def of_dict(found: Mapping[str, Any]) -> Audit:
        """What `as_dict` gave; a ValueError if it is something else."""
        try:
            checks = tuple(_read_check(each) for each in found["checks"])
            samples = tuple(found["samples"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not an audit: {error}") from error
        if not all(type(index) is int and index >= 0 for index in samples):
            raise ValueError("not an audit: samples must be indices")
        return Audit(checks, samples)


_ORDER = (Verdict.PASS, Verdict.CAUTION, Verdict.FAIL)


def _read_check(found: Mapping[str, Any]) -> Check:
    number = found["number"]
    known = number is not None and type(number) in (int, float) and math.isfinite(number)
    if not (type(found["name"]) is str and type(found["sentence"]) is str and (known or number is None)):
        raise ValueError("not an audit: a check has a name, a sentence and a number")
    return Check(found["name"], Verdict(found["verdict"]), found["sentence"], number)


def keep_audit(run: Run, audit: Audit) -> None:
    """Store an audit in the run folder; a folder that cannot be written is not an error."""
    outcome = {
        "audited": now(), "deepfool": __version__, "model": run.identity["model"]["sha256"], "rows": run.count,
        **audit.as_dict(),
    }  # fmt: skip
    with suppress(DataError):
        cache.write(run.folder / AUDIT, json.dumps(outcome, indent=1, allow_nan=False).encode())


def read_audit(run: Run, rows: int | None = None) -> Audit | None:
    """The audit in a run folder; None if there is none, or it is of other rows than the `rows` there are now."""
    try:
        found = json.loads((run.folder / AUDIT).read_bytes())
        fits = found["model"] == run.identity["model"]["sha256"]
        if not fits or found["rows"] != (run.count if rows is None else rows):
            return None
        return Audit.of_dict(found)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
