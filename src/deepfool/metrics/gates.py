"""Conditions that a run must meet, for CI: `deepfool check`.

A gate must not be fooled by an attack that fails. So it first asks whether the run can be relied on (`health.py`): is
it complete, are there enough samples, do rows come with cautions, did its audit fail, does the model give the same
scores twice. What the run does not tell has not passed.

What an attack finds is an upper bound on the distance. So a condition that is met says that this attack found nothing
against it, no more. If a sample has no answer, rho_adv is not known; in shares, such samples count against the model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from deepfool.errors import InputError, RunError
from deepfool.metrics import health
from deepfool.metrics.brackets import find_bracket
from deepfool.metrics.comparison import FEWEST
from deepfool.metrics.conditions import Finding, Verdict
from deepfool.metrics.curves import accuracy_at, fooled_within
from deepfool.metrics.estimates import mean_with_interval
from deepfool.metrics.formatting import format_interval, format_number
from deepfool.metrics.health import MEASURED, Subject
from deepfool.metrics.junit import to_junit
from deepfool.metrics.regression import find_regression, parse_drop
from deepfool.metrics.robustness import clean_accuracy, relative_distances
from deepfool.runs.records import MANIFEST, Run
from deepfool.values import as_number, check_count, check_flag, check_path

__all__ = ["Gate", "Verdict", "check", "parse_share", "plan", "to_junit"]

Several = str | Sequence[str]
"""One condition, or several of its kind."""


@dataclass(frozen=True)
class Gate:
    """A condition: its name, what it requires, and how to find out."""

    name: str
    required: str
    find: Callable[[Subject], Finding]

    def judge(self, subject: Subject) -> Verdict:
        met, why = self.find(subject)
        return Verdict(self.name, met is True, why, self.required, known=met is not None)

    def give_up(self, why: str) -> Verdict:
        return Verdict(self.name, False, why, self.required, known=False)


def check(run: Run | str | Path, **conditions: Any) -> list[Verdict]:
    """A verdict for each condition. The first ones say whether the run can be relied on; they are always there.

    Args:
        run: a run, or its folder.
        min_rho: the smallest rho_adv, in the norm of the attack: the lower end of its interval must not be below.
        min_certified_rho: the smallest rho_adv that is proved (see `deepfool.certify`): the lower end of the interval
            of its lower bound must not be below. Not known if the run was not certified.
        point: compare the means themselves with `min_rho` and `min_certified_rho`, not the lower ends of the intervals.
        max_fooled: the largest share of decisions that change within eps, such as "0.5@eps=0.3"; or several.
        min_accuracy: the smallest accuracy, such as "0.98", or within eps, "0.6@eps=0.3"; or several.
        min_samples: the fewest samples, 20 by default.
        max_cautioned: how many rows may come with a caution, 0 by default.
        baseline: a run on the same samples that this one must not be less robust than.
        max_drop: how much smaller than in the baseline rho_adv may be: 0.01, or "5%" of it.
        require_verified: `deepfool verify` must have been run, and hold.
        require_audit: `deepfool audit` must have been run, and not have failed.
        measured: how it must have been measured, a mapping with `attack`, `p`, `bounds`, `knobs`.

    If rows are damaged, no condition is met.

    >>> import tempfile, torch
    >>> from deepfool import evaluate
    >>> model, data = torch.nn.Linear(4, 3), (torch.rand(30, 4), torch.zeros(30, dtype=torch.long))
    >>> with tempfile.TemporaryDirectory() as here:
    ...     verdicts = check(evaluate(model, data, out=here), min_rho=1e-6)
    >>> [verdict.name for verdict in verdicts if verdict.passed]
    ['complete', 'min-samples', 'max-cautioned', 'audit', 'repeatable', 'min-rho']
    """
    gates = plan(**conditions)
    if not isinstance(run, Run) and not (check_path(run, "run") / MANIFEST).exists():
        Run(run)  # raises: that there is no run is a mistake of the caller, not damage
    try:
        opened = run if isinstance(run, Run) else Run(run)
        subject = Subject(opened, opened.records())
    except RunError as error:
        first, *others = gates
        damaged = Verdict(first.name, False, str(error).partition(" Hint:")[0].rstrip("."), first.required)
        return [damaged, *(gate.give_up("not known, because the run is damaged") for gate in others)]
    return [gate.judge(subject) for gate in gates]


def plan(
    *,
    min_rho: float | None = None,
    min_certified_rho: float | None = None,
    point: bool = False,
    max_fooled: Several | None = None,
    min_accuracy: Several | None = None,
    min_samples: int | None = None,
    max_cautioned: int | None = None,
    baseline: Run | str | Path | None = None,
    max_drop: str | float | None = None,
    require_verified: bool = False,
    require_audit: bool = False,
    measured: Mapping[str, Any] | None = None,
) -> list[Gate]:
    """The gates for the conditions of `check`, in the order of the verdicts; an error if a condition makes no sense.

    A new kind of condition is one more argument and one more gate here.

    >>> [gate.name for gate in plan(min_rho=0.1)][-2:]
    ['repeatable', 'min-rho']
    >>> plan()
    Traceback (most recent call last):
    ...
    deepfool.errors.InputError: no condition was given. Hint: --min-rho, --max-fooled, --min-accuracy, --baseline.
    """
    given = (min_rho, min_certified_rho, max_fooled, min_accuracy, min_samples, max_cautioned, baseline, measured)
    if all(each is None for each in given) and not (require_verified or require_audit):
        raise InputError("no condition was given.", hint="--min-rho, --max-fooled, --min-accuracy, --baseline.")
    if max_drop is not None and baseline is None:
        raise InputError("max_drop needs a baseline to compare with.", hint="--baseline RUN.")
    if check_flag(point, "point") and min_rho is None and min_certified_rho is None:
        raise InputError("point belongs to min_rho.", hint="--min-rho 0.1 --point.")
    least = FEWEST if min_samples is None else check_count(min_samples, "min_samples")
    gates = list(_plan_health(least, max_cautioned, require_audit, require_verified, measured))
    if min_rho is not None:
        gates.append(_plan_rho("min-rho", min_rho, point, _find_rho))
    if min_certified_rho is not None:
        gates.append(_plan_rho("min-certified-rho", min_certified_rho, point, _find_certified))
    gates += [_plan_fooled(text) for text in _list(max_fooled)]
    gates += [_plan_accuracy(text) for text in _list(min_accuracy)]
    if baseline is not None:
        drop = None if max_drop is None else parse_drop(max_drop)
        more = "" if drop is None else f", and rho_adv not smaller by more than {drop.text}"
        find = partial(find_regression, baseline=baseline, drop=drop, least=least)
        gates.append(Gate("baseline", f"not less robust than the baseline beyond chance{more}", find))
    return gates


def _plan_health(
    least: int, most: int | None, audited: bool, verified: bool, measured: Mapping[str, Any] | None
) -> Iterator[Gate]:
    most = 0 if most is None else check_count(most, "max_cautioned", least=0)
    yield Gate("complete", "a row for every sample", health.find_complete)
    yield Gate("min-samples", f"at least {least}", partial(health.find_samples, least=least))
    yield Gate("max-cautioned", f"at most {most}", partial(health.find_cautioned, most=most))
    audited = check_flag(audited, "require_audit")
    words = "an audit that did not fail" if audited else "no audit that failed"
    yield Gate("audit", words, partial(health.find_audit, needed=audited))
    yield Gate("repeatable", "the same scores in every pass", health.find_repeatable)
    if check_flag(verified, "require_verified"):
        yield Gate("verified", "perturbations that deepfool verify has recomputed", health.find_verified)
    if measured is not None:
        wanted = _check_measured(measured)
        words = ", ".join(f"{name} {value}" for name, value in wanted.items())
        yield Gate("measured", words, partial(health.find_measured, wanted=wanted))


def _check_measured(measured: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(measured, Mapping) or not measured or (unknown := set(measured) - set(MEASURED)):
        got = f"got {', '.join(sorted(unknown))}" if isinstance(measured, Mapping) and measured else "got nothing"
        raise InputError(f"measured may name {', '.join(MEASURED)}, {got}.")
    if "p" in measured:
        try:
            float(measured["p"])
        except (TypeError, ValueError):
            raise InputError(f"p must be a number or inf, got {measured['p']!r:.80}.") from None
    if not isinstance(measured.get("knobs", {}), Mapping):
        raise InputError(f"knobs must name knobs and their values, got {measured['knobs']!r:.80}.")
    return measured


def _list(conditions: Several | None) -> Sequence[str]:
    return [] if conditions is None else [conditions] if isinstance(conditions, str) else conditions


def _plan_rho(name: str, wanted: float, point: bool, find: Callable[..., Finding]) -> Gate:
    least = as_number(wanted)
    if least is None or not 0 <= least < math.inf:
        raise InputError(f"{name.replace('-', '_')} must be a number >= 0, got {wanted!r:.80}.")
    what = "a mean" if point else "a lower end of the interval"
    return Gate(name, f"{what} of at least {least:g}", partial(find, least=least, point=point))


def _find_rho(subject: Subject, least: float, point: bool) -> Finding:
    records, what = subject.records, f"rho_adv in {subject.run.norm}"
    ratios = relative_distances(records, "p")
    if not len(ratios):
        return Finding(None, f"{what} is not known: no sample has a relative distance")
    if lost := int(np.isinf(ratios).sum()):
        return Finding(None, f"{what} is not known: {lost} of {len(ratios)} samples have no answer")
    found = mean_with_interval(ratios)
    why = (
        f"{what} <= {format_number(found.value)} by {subject.run.identity['attack']['name']}, 95 % interval "
        f"{format_number(found.low)} .. {format_number(found.high)}"
    )
    return Finding((found.value if point else found.low) >= least, why)


def _find_certified(subject: Subject, least: float, point: bool) -> Finding:
    what, found = f"certified rho_adv in {subject.run.norm}", find_bracket(subject.records)
    if found is None:
        return Finding(None, f"{what} is not known: the run was not certified (deepfool certify)")
    if not found.count:
        return Finding(None, f"{what} is not known: no sample has a relative distance")
    why = f"{what} >= {format_number(found.lower.value)}"
    if interval := format_interval(found.lower.low, found.lower.high):
        why += f", 95 % interval {interval}"
    if lost := found.count - found.proved:
        why += f"; {lost} of {found.count} samples have no lower bound and count as 0"
    value = found.lower.value if point else found.lower.low
    return Finding(None if math.isnan(value) else value >= least, why)


def parse_share(text: str, *, eps_needed: bool) -> tuple[float, float | None]:
    """A share, and the eps it holds at.

    >>> parse_share("0.5@eps=0.3", eps_needed=True)
    (0.5, 0.3)
    >>> parse_share("0.98", eps_needed=False)
    (0.98, None)
    >>> parse_share("0.5", eps_needed=True)
    Traceback (most recent call last):
    ...
    deepfool.errors.InputError: expected a share and an eps, such as 0.5@eps=0.3, got '0.5'.
    """
    match = re.fullmatch(r"([^@]+)(?:@eps=(.+))?", str(text).strip())
    try:
        if match is None or (eps_needed and match[2] is None):
            raise ValueError
        wanted, eps = float(match[1]), None if match[2] is None else float(match[2])
        if not 0 <= wanted <= 1 or (eps is not None and not 0 <= eps < math.inf):
            raise ValueError
    except ValueError:
        what = "a share and an eps" if eps_needed else "a share, with or without an eps"
        raise InputError(f"expected {what}, such as 0.5@eps=0.3, got {text!r}.") from None
    return wanted, eps


def _plan_fooled(text: str) -> Gate:
    most, eps = parse_share(text, eps_needed=True)
    assert eps is not None
    return Gate("max-fooled", f"at most {most:g} within eps {eps:g}", partial(_find_fooled, most=most, eps=eps))


def _find_fooled(subject: Subject, most: float, eps: float) -> Finding:
    found, worst = fooled_within(subject.records, eps)
    if math.isnan(found):
        return Finding(None, "no sample was searched")
    also = "" if found == worst else f" ({format_number(found)} found, the rest have no answer and count as changed)"
    why = f"{format_number(worst)} of the decisions change within {subject.run.norm} eps {eps:g}{also}"
    return Finding(worst <= most, why)


def _plan_accuracy(text: str) -> Gate:
    least, eps = parse_share(text, eps_needed=False)
    where = "" if eps is None else f" within eps {eps:g}"
    return Gate("min-accuracy", f"at least {least:g}{where}", partial(_find_accuracy, least=least, eps=eps))


def _find_accuracy(subject: Subject, least: float, eps: float | None) -> Finding:
    records = subject.records
    if not len(records) or bool((records.true_label < 0).any()):
        return Finding(None, "the accuracy is not known: some samples have no true label")
    if eps is None:
        value = clean_accuracy(records).value
        return Finding(value >= least, f"the accuracy is {format_number(value)}")
    where, (value, upper) = f"the accuracy within {subject.run.norm} eps {eps:g}", accuracy_at(records, eps)
    if value < upper:
        why = f"{where} is {format_number(value)} where samples without an answer count as wrong"
        return Finding(value >= least, why)
    return Finding(value >= least, f"{where} is <= {format_number(value)}")
