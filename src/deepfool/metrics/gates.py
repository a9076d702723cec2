"""Conditions that a run must meet, for CI: `deepfool check`.

An attack that fails must not make a gate pass. Samples that were not fooled count against the model: as 0 in rho_adv,
as fooled in the share fooled, as wrong in the accuracy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from xml.etree import ElementTree

from deepfool.errors import InputError, RunError
from deepfool.metrics.curves import accuracy_at, fooled_within
from deepfool.metrics.robustness import clean_accuracy, rho_adv
from deepfool.runs.records import Run
from deepfool.runs.rows import Records


@dataclass(frozen=True)
class Verdict:
    """One condition, and whether the run meets it."""

    name: str
    passed: bool
    why: str


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
    match = re.fullmatch(r"([^@]+)(?:@eps=(.+))?", text.strip())
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


def check(
    run: Run, *, min_rho: float | None = None, max_fooled: str | None = None, min_accuracy: str | None = None
) -> list[Verdict]:
    """A verdict for each condition. The first condition is always that the run is complete.

    `min_rho` and eps are in the norm of the attack. If rows are damaged, no condition is met.

    >>> import tempfile, torch
    >>> from deepfool import evaluate
    >>> model, data = torch.nn.Linear(4, 3), (torch.rand(8, 4), torch.zeros(8, dtype=torch.long))
    >>> with tempfile.TemporaryDirectory() as here:
    ...     verdicts = check(evaluate(model, data, out=here), min_rho=1e-6)
    >>> [(verdict.name, verdict.passed) for verdict in verdicts]
    [('complete', True), ('min-rho', True)]
    """
    gates: dict[str, Callable[[Records], Verdict]] = {}
    if min_rho is not None:
        gates["min-rho"] = partial(_check_rho, least=min_rho)
    if max_fooled is not None:
        gates["max-fooled"] = partial(_check_fooled, share=parse_share(max_fooled, eps_needed=True))
    if min_accuracy is not None:
        gates["min-accuracy"] = partial(_check_accuracy, share=parse_share(min_accuracy, eps_needed=False))
    if not gates:
        raise InputError("no condition was given.", hint="--min-rho, --max-fooled, --min-accuracy.")
    try:
        records = run.records()
    except RunError as error:
        unknown = [Verdict(name, False, "unknown, because rows are damaged") for name in gates]
        return [Verdict("complete", False, str(error)), *unknown]
    why = f"{len(records)} of {run.expected} samples were measured"
    return [Verdict("complete", len(records) == run.expected, why), *(gate(records) for gate in gates.values())]


def _check_rho(records: Records, least: float) -> Verdict:
    found = rho_adv(records, "p")
    also = "" if found.exact else f"; {int(records.censored.sum())} samples that were not fooled count as 0"
    why = f"rho_adv (l{records.p:g}) is {found.value:.6g}, required: at least {least:g}{also}"
    return Verdict("min-rho", found.value >= least, why)


def _check_fooled(records: Records, share: tuple[float, float | None]) -> Verdict:
    most, eps = share
    assert eps is not None
    found, worst = fooled_within(records, eps)
    also = "" if found == worst else f" ({found:.6g} found, the rest are undecided)"
    why = f"{worst:.6g} of the decisions change within l{records.p:g} eps {eps:g}{also}, required: at most {most:g}"
    return Verdict("max-fooled", worst <= most, why)


def _check_accuracy(records: Records, share: tuple[float, float | None]) -> Verdict:
    least, eps = share
    if bool((records.true_label < 0).any()):
        return Verdict("min-accuracy", False, "some samples have no true label, so the accuracy is unknown")
    value = clean_accuracy(records).value if eps is None else accuracy_at(records, eps)[0]
    where = "" if eps is None else f" within l{records.p:g} eps {eps:g}"
    return Verdict("min-accuracy", value >= least, f"accuracy{where} is {value:.6g}, required: at least {least:g}")


def to_junit(verdicts: list[Verdict], name: str) -> str:
    """The verdicts as JUnit XML.

    >>> print(to_junit([Verdict("min-rho", False, "0.1 < 0.2")], "run"))
    <?xml version="1.0" encoding="utf-8"?>
    <testsuites><testsuite name="deepfool check" tests="1" failures="1" errors="0"><testcase classname="run"
    name="min-rho"><failure message="0.1 &lt; 0.2" /></testcase></testsuite></testsuites>
    """
    root = ElementTree.Element("testsuites")
    failures = sum(not verdict.passed for verdict in verdicts)
    suite = ElementTree.SubElement(
        root, "testsuite", name="deepfool check", tests=str(len(verdicts)), failures=str(failures), errors="0"
    )
    for verdict in verdicts:
        case = ElementTree.SubElement(suite, "testcase", classname=name, name=verdict.name)
        if not verdict.passed:
            ElementTree.SubElement(case, "failure", message=verdict.why)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode")
