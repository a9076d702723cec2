"""All metrics of a run in one dictionary, and the warnings that belong with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from deepfool.attacks.shared.aims import find_goal
from deepfool.metrics.arguments import check_records, check_runs
from deepfool.metrics.brackets import find_bracket
from deepfool.metrics.curves import accuracy_curve
from deepfool.metrics.estimates import as_json, quantile
from deepfool.metrics.headline import choose_headline
from deepfool.metrics.radii import accuracy_at_radii
from deepfool.metrics.robustness import (
    clean_accuracy,
    confusion,
    count_iterations,
    per_class,
    relative_distances,
    rho_adv,
    rho_answered,
    share_fooled,
)
from deepfool.metrics.setup import describe_setup
from deepfool.metrics.verdict import tell_proofs, write_words
from deepfool.outcomes import Evidence, Status
from deepfool.runs.audit.checklist import read_audit
from deepfool.runs.cautions import list_cautions
from deepfool.runs.records import Run
from deepfool.runs.rows import Records, says_convergence

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)

_OTHER_EVIDENCE = {
    "repaired": "repaired gradients", "scores": "scores alone", "decisions": "decisions alone",
}  # fmt: skip


def summarize(
    run: Run, *, confidence: float = 0.95, seed: int = 0, eps: Sequence[str | float] | None = None
) -> dict[str, Any]:
    """All metrics of a run, ready for JSON: null where there is no number, "inf" for infinity.

    `eps` are the radii at which to give the robust accuracy; by default the usual ones for the data and the norm.

    >>> import tempfile, torch
    >>> from deepfool import evaluate
    >>> model, data = torch.nn.Linear(4, 3), (torch.rand(8, 4), torch.zeros(8, dtype=torch.long))
    >>> with tempfile.TemporaryDirectory() as here:
    ...     summary = summarize(evaluate(model, data, out=here))
    >>> summary["samples"], summary["status"]["FOOLED"], summary["warnings"]
    (8, 8, [])
    """
    check_runs(run)
    records = run.records()
    rho = {norm: rho_adv(records, norm, confidence=confidence, seed=seed) for norm in ("l2", "p")}
    audit = read_audit(run, len(records))
    curve = accuracy_curve(records) if len(records) else None
    head = choose_headline(run, records, audit)
    bracket = find_bracket(records, confidence=confidence, seed=seed)
    setup, words = describe_setup(run), write_words(run, records, audit)
    ratios, sizes = relative_distances(records, "p"), records.r["p"][records.status != Status.MISCLASSIFIED]
    summary = {
        "run": str(run.folder),
        "model": run.manifest["model"]["spec"],
        "data": run.manifest["data"]["name"],
        "attack": run.identity["attack"]["name"],
        "bounds": setup.bounds,
        "knobs": setup.knobs,
        "setup": str(setup),
        "headline": head.as_dict(),
        "verdict": {"lead": words.lead, "failures": words.failures, "lines": words.lines, "proofs": tell_proofs(head)},
        "p": run.p,
        "norm": run.norm,
        "unit": run.unit,
        "weighted": run.weighted,
        "samples": len(records),
        "expected": run.expected,
        "status": {status.name: int((records.status == status).sum()) for status in Status},
        "evidence": count_evidence(records),
        "not_converged": count_open(run, records),
        "goal": run.identity["attack"]["knobs"].get("goal") or "other",
        "classes_decide": find_goal(run.identity["attack"]["knobs"]).reads == "classes",
        "accuracy": clean_accuracy(records),
        "fooled": share_fooled(records),
        "rho_adv": rho["p"],
        "rho_adv_l2": rho["l2"],
        "rho_answered": rho["p"] if rho["p"].exact else rho_answered(records, "p", confidence=confidence, seed=seed),
        "bracket": None if bracket is None else bracket.as_dict(),
        "robust_accuracy": [asdict(each) for each in accuracy_at_radii(run, records, eps)],
        "quantiles_relative": {f"{q:g}": quantile(ratios, q, confidence=confidence) for q in QUANTILES},
        "quantiles": {f"{q:g}": quantile(sizes, q, confidence=confidence) for q in QUANTILES},
        "curve": None if curve is None else {
            "eps": curve.eps, "accuracy": curve.accuracy, "low": curve.low, "band": curve.band,
            "certified": curve.certified, "area": curve.area, "area_share": curve.area_share,
            "labelled": curve.labelled,
        },
        "classes": per_class(records, "p", seed=seed),
        "confusion": confusion(records),
        "iterations": count_iterations(records),
        "passes": {"forwards": int(records.forwards.sum()), "backwards": int(records.backwards.sum())},
        "seconds": float(np.nansum(records.seconds)),
        "warnings": find_warnings(run, records),
        "notes": find_notes(run, records),
        "audit": None if audit is None else audit.as_dict(),
    }  # fmt: skip
    return as_json(summary)  # type: ignore[no-any-return]


def count_evidence(records: Records) -> dict[str, int]:
    """What the perturbations were found by, and how many; "unknown" in runs of older versions.

    >>> rows = [{"status": "FOOLED", "evidence": "gradients"}, {"status": "FOOLED"}, {"status": "STUCK"}]
    >>> count_evidence(Records.of(rows, p=2))
    {'gradients': 1, 'unknown': 1}
    """
    names = {-1: "unknown", **{int(each): each.name.lower() for each in Evidence}}
    kinds = Counter(records.evidence[records.fooled].tolist())
    return {names[kind]: kinds[kind] for kind in (*map(int, Evidence), -1) if kinds[kind]}


def count_open(run: Run, records: Records) -> int | None:
    """How many perturbations had not converged when the search ended; None if that is not known of this attack."""
    if not says_convergence(str(run.identity["attack"]["name"]), records):
        return None
    return int((records.fooled & (records.converged == 0)).sum())


def find_warnings(run: Run, records: Records) -> list[str]:
    """What a reader of the numbers needs to know, a sentence each."""
    return [*tell_unanswered(records), *find_notes(run, records)]


def tell_unanswered(records: Records) -> list[str]:
    """How many searches had no answer, and what that means.

    >>> tell_unanswered(Records.of([{"status": "FOOLED"}, {"status": "STUCK"}], p=2))
    ['1 of 2 samples were not fooled (1 STUCK): their distances, and so rho_adv, are not known.']
    """
    kinds = {each.name: int((records.status == each).sum()) for each in (Status.STUCK, Status.EXHAUSTED)}
    if not any(kinds.values()):
        return []
    told = ", ".join(f"{n} {name}" for name, n in kinds.items() if n)
    return [
        f"{sum(kinds.values())} of {len(records)} samples were not fooled ({told}): their distances, and so rho_adv, "
        f"are not known."
    ]


def find_notes(run: Run, records: Records) -> list[str]:
    """The warnings that the verdict does not say already."""
    check_runs(run)
    found = []
    if len(check_records(records)) < run.expected:
        found.append(f"the run is not complete: it has {len(records)} of {run.expected} samples.")
    evidence = count_evidence(records)
    if others := [f"{evidence[kind]} by {words}" for kind, words in _OTHER_EVIDENCE.items() if kind in evidence]:
        found.append(
            f"not all perturbations were found by the model's own gradients ({', '.join(others)}): the smallest ones "
            f"may be smaller."
        )
    if count := count_open(run, records):
        found.append(
            f"{count} of {int(records.fooled.sum())} perturbations had not converged: with more passes they would "
            f"still get smaller."
        )
    remarks = [each for each in records.count_reasons(records.fooled).items() if each[0]]
    found += [f"{count} of the fooled samples: {reason}." for reason, count in remarks[:3]]
    sessions = [session for session in run.manifest["sessions"] if isinstance(session, dict)]
    noted = [list_cautions(session["scores"]) for session in sessions if isinstance(session.get("scores"), dict)]
    found += dict.fromkeys(caution for cautions in noted for caution in cautions)
    if zero := int((records.x["l2"] == 0).sum()):
        found.append(f"{zero} samples are all zeros and have no relative distance: rho_adv leaves them out.")
    return found
