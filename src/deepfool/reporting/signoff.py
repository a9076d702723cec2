"""The first page on paper: what was measured and how, the criteria, cautions, limits, hashes, and a line for a name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from deepfool import __version__
from deepfool.attacks.shared.aims import find_goal
from deepfool.metrics import clean_accuracy, find_bracket, find_warnings, mean_with_interval, relative_distances
from deepfool.metrics.conditions import Verdict, count_words
from deepfool.metrics.criteria import Criteria
from deepfool.metrics.health import count_cautions
from deepfool.outcomes import Status
from deepfool.reporting.times import format_moment
from deepfool.reporting.wording import format_estimate, format_number, format_percent, name_norm
from deepfool.runs.audit.checklist import Audit
from deepfool.runs.audit.checklist import Verdict as Outcome
from deepfool.runs.manifests import now
from deepfool.runs.records import Run
from deepfool.runs.rows import Records
from deepfool.runs.verified import hash_records, read_verification

MOST_CAUTIONS = 6
"""So many are on the first page; the rest are on the others."""


@dataclass(frozen=True)
class SignOff:
    """Everything on the first page."""

    measured: list[tuple[str, str]]
    result: list[tuple[str, str]]
    criteria: Criteria | None
    verdicts: list[Verdict]
    late: bool
    """Whether the criteria were set after the measurement had begun."""
    cautions: list[str]
    more_cautions: int
    limits: list[str]
    hashes: list[tuple[str, str]]
    mark: str
    """The start of the hash of the rows, on every page: the signature is under these."""

    @property
    def outcome(self) -> str:
        """How the criteria came out, in a sentence."""
        count = {word: sum(v.outcome == word for v in self.verdicts) for word in ("met", "not met", "not known")}
        if count["met"] == len(self.verdicts):
            return f"All {len(self.verdicts)} criteria are met."
        told = [f"{n} {word}" for word, n in count.items() if n]
        return f"Of {len(self.verdicts)} criteria: {', '.join(told)}."


def make_signoff(run: Run, records: Records, audit: Audit | None, criteria: Criteria | None) -> SignOff:
    """The first page of a run."""
    cautions = list(_list_cautions(run, records, audit))
    digest = hash_records(run)
    hashes = [
        ("model", str(run.identity["model"]["sha256"])), ("data", str(run.identity["data"]["sha256"])),
        ("rows (records.jsonl)", digest or "there are no rows"),
    ]  # fmt: skip
    if criteria is not None:
        hashes.append((f"criteria ({criteria.path.name})", criteria.sha256))
    return SignOff(
        measured=_list_measured(run, records), result=_list_result(run, records, audit), criteria=criteria,
        verdicts=[] if criteria is None else criteria.judge(run), late=criteria is not None and criteria.is_late(run),
        cautions=cautions[:MOST_CAUTIONS], more_cautions=max(0, len(cautions) - MOST_CAUTIONS),
        limits=_list_limits(run), hashes=hashes, mark=(digest or "no rows")[:16],
    )  # fmt: skip


def _list_measured(run: Run, records: Records) -> list[tuple[str, str]]:
    identity, data = run.identity, run.manifest["data"]
    knobs = identity["attack"]["knobs"]
    bounds, norm = knobs.get("bounds"), name_norm(run.p, run.unit, run.weighted)
    other = ", ".join(
        f"{name} {_say(value)}" for name, value in knobs.items() if name != "bounds" and value is not None
    )
    sessions = [each for each in run.manifest["sessions"] if isinstance(each, dict)]
    facts = [
        ("model", str(run.manifest["model"]["spec"])),
        ("data", f"{data['name']}, {data['split']}, {len(records):,} of {run.expected:,} samples"),
        ("attack", f"{identity['attack']['name']} in {norm}, {_say_bounds(bounds)}"),
        ("settings", other or "none"),
        ("precision, seed", f"{identity['dtype']}, {identity['seed']}"),
        ("versions", _say_versions(run, sessions)),
    ]
    if sessions:
        last = sessions[-1]
        facts.append(("measured", format_moment(last.get("finished") or last.get("stopped") or last.get("started"))))
    return [*facts, ("this page", f"{format_moment(now())}, by deepfool {__version__}")]


def _say(value: Any) -> str:
    many = value.get("feature") if isinstance(value, dict) else value
    if isinstance(many, list) and (many is not value or len(many) > 8):
        return f"of {len(many)} features"
    if isinstance(value, dict):
        return "given as a tensor"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _say_bounds(bounds: Any) -> str:
    return f"inputs kept in {bounds}" if isinstance(bounds, list) else "no bounds" if bounds is None else "own bounds"


def _say_versions(run: Run, sessions: Sequence[dict[str, Any]]) -> str:
    last = sessions[-1] if sessions else {}
    names = [f"{name} {last[name]}" for name in ("torch", "numpy", "python") if name in last]
    return ", ".join([f"deepfool {run.identity.get('deepfool', '?')}", *names])


def _list_result(run: Run, records: Records, audit: Audit | None) -> list[tuple[str, str]]:
    ratios = relative_distances(records, "p")
    lost = int(np.isinf(ratios).sum())
    found = mean_with_interval(ratios[np.isfinite(ratios)])
    value = f"{format_number(found.value)} (95 % interval {format_number(found.low)} – {format_number(found.high)})"
    if not len(ratios) or lost == len(ratios):
        rho = "not known: no sample has an answer"
    elif lost:
        rho = f"not known: {lost} of {len(ratios)} samples have no answer (among the others ≤ {value})"
    else:
        rho = f"≤ {value}"
    searched = int((records.status != Status.MISCLASSIFIED).sum())
    accuracy, aim = clean_accuracy(records), find_goal(run.identity["attack"]["knobs"])
    right = "not known" if math.isnan(accuracy.value) else format_percent(accuracy.value)
    return [
        (f"ρ in {name_norm(run.p, run.unit, run.weighted)}", rho),
        *_list_certified(records),
        ("decisions changed", f"{int(records.fooled.sum()):,} of {searched:,}"),
        ("accuracy", right) if aim.reads == "classes" else ("a decision changes where", aim.words),
        ("audit", "none" if audit is None else _AUDITED[audit.verdict]),
    ]


def _list_certified(records: Records) -> list[tuple[str, str]]:
    bracket = find_bracket(records)
    if bracket is None:
        return []
    exact = f"{format_percent(bracket.exact.value)} of the samples exact"
    return [("certified", f"≥ {format_estimate(bracket.lower)}, {exact}")]


_AUDITED = {
    Outcome.PASS: "passed", Outcome.CAUTION: "passed with cautions, see below",
    Outcome.FAIL: "FAILED: these numbers are not to be used as they are",
}  # fmt: skip


def _list_cautions(run: Run, records: Records, audit: Audit | None) -> list[str]:
    found = []
    if audit is None:
        found.append("The run was not audited.")
    else:
        checks = sorted(audit.checks, key=lambda check: check.verdict is not Outcome.FAIL)  # what failed comes first
        found += [f"Audit, {check.verdict}: {check.sentence}" for check in checks if check.verdict is not Outcome.PASS]
    if cautioned := sum(count_cautions(records).values()):
        found.append(f"{cautioned} of {count_words(len(records), 'row')} come with a caution.")
    found += [warning[:1].upper() + warning[1:] for warning in find_warnings(run, records)]
    verified = read_verification(run, len(records))
    if verified is None:
        found.append("The perturbations were not recomputed (deepfool verify).")
    elif not verified["holds"]:
        found.append("The stored perturbations do not match the rows.")
    return found


def _list_limits(run: Run) -> list[str]:
    limits = [
        "What an attack finds is an upper bound on the distance to the decision boundary: a stronger attack may find "
        "smaller perturbations. Only a certificate bounds it from below.",
        "The interval is about the choice of samples, not about the strength of the attack. The numbers hold for this "
        "model, this data, this norm and these bounds, and for changes of the input that the attack may make.",
    ]
    if run.identity["attack"]["knobs"].get("bounds") is None:
        limits.append("No bounds were set: perturbed inputs may leave the range of valid inputs, such as [0, 1].")
    return limits
