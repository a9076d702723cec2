"""Criteria set before a measurement, in a file: `criteria.toml`. Each is met, not met, or not known.

title = "Sign classifier, release 3"
by = "the safety team"
date = 2026-05-04            # when they were set

min_rho = 0.1                # the names and values are those of `deepfool.metrics.gates.check`
min_accuracy = ["0.97", "0.6@eps=0.5"]
min_samples = 500
require_verified = true

[measured]                   # how it has to be measured: attack, p, bounds, knobs
attack = "smallest"
bounds = [0, 1]
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

from deepfool.errors import DataError, InputError
from deepfool.metrics.conditions import Verdict
from deepfool.metrics.gates import check, plan
from deepfool.runs.records import Run
from deepfool.values import check_path

CRITERIA = "criteria.toml"
"""The report looks for this file in the run folder."""


@dataclass(frozen=True)
class Criteria:
    """What a run has to meet, and where that is written."""

    path: Path
    sha256: str
    """Of the file."""
    conditions: Mapping[str, Any]
    """The arguments of `check`."""
    title: str = ""
    by: str = ""
    date: date | None = None
    """When they were set, as the file says."""

    def judge(self, run: Run | str | Path) -> list[Verdict]:
        """A verdict for each criterion."""
        return check(run, **self.conditions)

    def is_late(self, run: Run) -> bool:
        """Whether the file says that they were set after the measurement had begun."""
        starts = [str(each.get("started", "")) for each in run.manifest["sessions"] if isinstance(each, dict)]
        began = min((start[:10] for start in starts if start), default="")
        return self.date is not None and bool(began) and self.date.isoformat() > began


def read_criteria(path: str | Path) -> Criteria:
    """Criteria from a file; a condition that makes no sense is an error, before anything is measured.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as here:
    ...     _ = Path(here, "criteria.toml").write_text('title = "Release 3"\\nmin_rho = 0.1\\n')
    ...     read_criteria(Path(here, "criteria.toml")).conditions
    {'min_rho': 0.1}
    """
    path = check_path(path, "criteria")
    try:
        content = path.read_bytes()
        # Python has tomllib from 3.11 on; tomli is the same code for older ones.
        found = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli").loads(content.decode())
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file.", hint="criteria are written in TOML: min_rho = 0.1") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}.") from error
    about = {name: found.pop(name) for name in ("title", "by", "date") if name in found}
    if unknown := sorted(set(found) - set(NAMES)):
        raise DataError(f"{path}: there is no criterion called {unknown[0]!r:.60}.", hint=f"use {', '.join(NAMES)}.")
    if isinstance(found.get("baseline"), str):
        found["baseline"] = path.parent / found["baseline"]
    try:
        plan(**found)
    except InputError as error:
        raise DataError(f"{path}: {error}") from error
    return Criteria(path, hashlib.sha256(content).hexdigest(), found, **_read_about(path, about))


NAMES = tuple(inspect.signature(plan).parameters)
"""The criteria that a file may hold."""


def _read_about(path: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    for name in ("title", "by"):
        if not isinstance(about.get(name, ""), str):
            raise DataError(f"{path}: {name} must be a text, got {about[name]!r:.60}.")
    when = about.get("date")
    if not isinstance(when, date | None):  # a time of TOML is a date too
        raise DataError(f"{path}: date must be a date such as 2026-05-04, without quotes, got {when!r:.60}.")
    return {**about, "date": when.date() if isinstance(when, datetime) else when}


def find_criteria(run: Run, given: str | Path | None = None) -> Criteria | None:
    """The criteria given, or those in the run folder; None if there are none."""
    if given is not None:
        return read_criteria(given)
    own = run.folder / CRITERIA
    return read_criteria(own) if own.exists() else None
