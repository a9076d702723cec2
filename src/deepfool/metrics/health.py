"""Whether a run can be relied on at all: conditions on how it was measured, whatever the numbers are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from deepfool.metrics.conditions import Finding, count_words
from deepfool.outcomes import Evidence, Status
from deepfool.runs.audit.checklist import LEAST, read_audit
from deepfool.runs.audit.checklist import Verdict as Outcome
from deepfool.runs.cautions import list_cautions
from deepfool.runs.manifests import read_number
from deepfool.runs.records import Run
from deepfool.runs.rows import Records, Row
from deepfool.runs.verified import hash_records, read_verification


@dataclass(frozen=True)
class Subject:
    """The run that is checked, and its rows."""

    run: Run
    records: Records


def find_complete(subject: Subject) -> Finding:
    """A row for every sample."""
    done, expected = len(subject.records), subject.run.expected
    why = f"{done} of {expected} samples were measured"
    return Finding(done == expected, why if done == expected else f"{why}: the same command resumes the run")


def find_samples(subject: Subject, least: int) -> Finding:
    """Enough samples; those that were skipped tell nothing."""
    searched = int((subject.records.status != Status.MISCLASSIFIED).sum())
    return Finding(searched >= least, f"{count_words(searched, 'sample')} were searched")


def find_cautioned(subject: Subject, most: int) -> Finding:
    """Few enough rows that come with a caution (see `why_cautioned`)."""
    reasons = count_cautions(subject.records)
    count = sum(reasons.values())
    why = f"{count} of {len(subject.records)} rows come with a caution"
    if reasons:
        why += f" ({'; '.join(f'{n}: {reason}' for reason, n in reasons.most_common(3))})"
    return Finding(count <= most, why)


def count_cautions(records: Records) -> Counter[str]:
    """Why rows come with a caution (see `why_cautioned`), and how many.

    >>> rows = [{"status": "STUCK"}, {"status": "FOOLED", "evidence": "scores"}, {"status": "FOOLED"}]
    >>> sorted(count_cautions(Records.of(rows, p=2)).items())
    [('found by scores', 1), ('no answer, STUCK', 1)]
    """
    kinds = {int(each): each.name.lower() for each in Evidence}
    found: Counter[str] = Counter()
    for status in Status:
        for code in (*kinds, -1):
            alike = (records.status == status) & (records.evidence == code)
            row = {"status": status.name} | ({"evidence": kinds[code]} if code >= 0 else {})
            for reason, count in records.count_reasons(np.asarray(alike)).items() if alike.any() else ():
                if why := why_cautioned({**row, "reason": reason}):
                    found[why] += count
    return found


def why_cautioned(row: Row) -> str:
    """Why the distance of a row is not to be trusted; an empty text if nothing speaks against it.

    A search that ended without an answer, an answer that the attack itself has a caution about, and one that was not
    found by the model's own gradients.

    >>> why_cautioned({"status": "STUCK"}), why_cautioned({"status": "FOOLED", "evidence": "scores"})
    ('no answer, STUCK', 'found by scores')
    >>> why_cautioned({"status": "FOOLED", "evidence": "gradients"})
    ''
    """
    reason = str(row.get("reason", ""))
    if row["status"] in (Status.STUCK.name, Status.EXHAUSTED.name):
        return f"no answer, {row['status']}{': ' if reason else ''}{reason}"
    if row["status"] != Status.FOOLED.name:
        return ""
    evidence = row.get("evidence", _OWN)
    return reason or ("" if evidence == _OWN else f"found by {_FOUND_BY.get(evidence, evidence)}")


_OWN = Evidence.GRADIENTS.name.lower()
_FOUND_BY = {"repaired": "repaired gradients"}


def find_audit(subject: Subject, *, needed: bool) -> Finding:
    """No audit that failed. `evaluate` audits runs that are large enough, so such a run without one tells nothing."""
    audit = read_audit(subject.run, len(subject.records))
    if audit is None:
        told = f"there is no audit of these rows (deepfool audit {subject.run.folder.name})"
        return Finding(None if needed or subject.run.expected >= LEAST else True, told)
    failed = [check.sentence for check in audit.checks if check.verdict is Outcome.FAIL]
    return Finding(not failed, f"the audit failed: {' '.join(failed)}" if failed else audit.headline.rstrip("."))


def find_repeatable(subject: Subject) -> Finding:
    """The same scores when the model is called again; and alone as in a batch."""
    sessions = [each for each in subject.run.manifest["sessions"] if isinstance(each, dict)]
    facts = [each["scores"] for each in sessions if isinstance(each.get("scores"), dict)]
    # A model that cannot be run on a single sample has no difference to report, and is not held against it.
    told = [fact for fact in facts if fact.get("repeatable") is False or fact.get("difference") is not None]
    if cautions := list(dict.fromkeys(caution for fact in told for caution in list_cautions(fact))):
        return Finding(False, " ".join(cautions).rstrip("."))
    if not any(fact.get("repeatable") for fact in facts):
        return Finding(None, "the run does not say whether the model gives the same scores when it is called again")
    return Finding(True, "the model gave the same scores when it was called again")


def find_verified(subject: Subject) -> Finding:
    """What `deepfool verify` found of exactly these rows."""
    run = subject.run
    hint = f"deepfool verify {run.folder.name}"
    if not run.identity["perturbations"]:
        return Finding(None, "the run did not keep its perturbations (--save-perturbations), so they cannot be checked")
    found = read_verification(run, len(subject.records))
    if found is None:
        return Finding(None, f"these rows were not verified ({hint})")
    if found.get("records") != hash_records(run):
        return Finding(None, f"the rows are not those that were verified ({hint})")
    if not found["holds"]:
        return Finding(False, "the stored perturbations do not match the rows")
    return Finding(True, f"{found['fooled']} stored perturbations match the rows")


MEASURED = ("attack", "p", "bounds", "knobs")
"""What a condition on the measurement may name."""


def find_measured(subject: Subject, wanted: Mapping[str, Any]) -> Finding:
    """Measured by the attack, in the norm and the bounds, and with the knobs that were agreed."""
    identity = subject.run.identity
    knobs = identity["attack"]["knobs"]
    wrong = []
    for name, value in wanted.items():
        if name == "knobs":
            wrong += [_differs(f"knob {knob}", knobs.get(knob), each) for knob, each in value.items()]
        elif name == "p":
            wrong.append(_differs("p", subject.run.p, read_number(value)))
        else:
            there = identity["attack"]["name"] if name == "attack" else knobs.get("bounds")
            wrong.append(_differs(name, there, None if value == "none" else value))
    if found := [each for each in wrong if each]:
        return Finding(False, f"measured in another way: {', '.join(found)}")
    return Finding(True, f"measured by {write_measured(identity)}")


def _differs(name: str, there: Any, wanted: Any) -> str:
    return "" if there == wanted else f"{name} {_say(there)}, not {_say(wanted)}"


def _say(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def write_measured(identity: Mapping[str, Any]) -> str:
    """Attack, norm and bounds in words.

    >>> write_measured({"attack": {"name": "deepfool", "knobs": {"bounds": [0, 1]}}, "p": "inf"})
    'deepfool in linf, bounds [0, 1]'
    """
    bounds = identity["attack"]["knobs"].get("bounds")
    told = "no bounds" if bounds is None else f"bounds {bounds}" if isinstance(bounds, list) else "bounds of its own"
    return f"{identity['attack']['name']} in l{read_number(identity['p']):g}, {told}"
