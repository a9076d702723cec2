"""Run one case: the attack, then every check on what came back, all of it within a time limit."""

from __future__ import annotations

import signal
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

import deepfool
from deepfool import Adversarial, Status
from deepfool.classifier import ProbabilityWarning
from deepfool.errors import DeepFoolError
from tests.hostile.cases import Case, Setup
from tests.hostile.invariants import CHECKS, Snapshot, Trial

LIMIT = 60
"""Seconds that a case may take. The slowest take two or three."""


@dataclass
class Outcome:
    """What came of a case."""

    case: Case
    statuses: Counter[str] = field(default_factory=Counter)
    violations: list[tuple[str, str]] = field(default_factory=list)
    """(name of the invariant, what was found)"""

    def __str__(self) -> str:
        found = [f"  {name}: {what}" for name, what in self.violations]
        again = f"  again with: python -m tests.hostile --case {self.case.number}"
        return "\n".join([f"case {self.case.number}: {self.case}", *found, again])


class OutOfTime(BaseException):
    """Not an Exception: the package turns those that a model raises into errors of its own."""


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """An endless loop becomes an exception, where the system has alarms."""
    if not hasattr(signal, "SIGALRM"):
        yield
        return

    def ring(*_: Any) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@cache
def warm_up() -> None:
    """Let torch and SciPy load what they load at first use: an alarm in the middle of that breaks them for good."""
    model, x = torch.nn.Linear(2, 3), torch.zeros(1, 2)
    for attack in (deepfool.deepfool, deepfool.lbfgs):
        attack(model, x)


def run_case(number: int, limit: int = LIMIT) -> Outcome:
    """Draw the case of this number, run it, check it."""
    warm_up()
    outcome = Outcome(Case.draw(number))
    setup = outcome.case.prepare()
    stage = "attack"
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the house rule: a warning nobody asked for is an error
        warnings.simplefilter("ignore", ProbabilityWarning)
        try:
            with time_limit(limit):
                before = Snapshot(setup)
                result = _attack(setup, outcome)
                if result is None:
                    stage = "untouched"
                    outcome.violations += [("untouched", what) for what in before.changes(setup)]
                    return outcome
                outcome.statuses.update(Status(status).name for status in result.status.tolist())
                for stage, check in CHECKS.items():
                    try:
                        outcome.violations += [(stage, what) for what in check(Trial(setup, result, before))]
                    except Exception as error:  # some checks run the attack again, and it may raise there
                        outcome.violations.append(("errors", f"in the check of {stage}: {_tell(error)}"))
        except OutOfTime:
            outcome.violations.append(("time", f"not done after {limit} s ({stage})"))
    return outcome


def _attack(setup: Setup, outcome: Outcome) -> Adversarial | None:
    """The result, or None and a violation if it raised; models that are no classifiers may be refused."""
    try:
        return setup.run()
    except Exception as error:
        if setup.case.kind.healthy or not isinstance(error, DeepFoolError):
            outcome.violations.append(("errors", _tell(error)))
        outcome.statuses["refused"] += 1
        return None


def _tell(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({place.filename.rpartition('/')[2]}, line {place.lineno})"
