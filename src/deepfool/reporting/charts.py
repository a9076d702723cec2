"""The numbers that the charts draw. Their size does not grow with the number of samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from deepfool.metrics import accuracy_curve, confusion, per_class, relative_distances
from deepfool.outcomes import Status
from deepfool.reporting.naming import name_class, names_of_run
from deepfool.runs.records import Run
from deepfool.runs.rows import Floats, Records

POINTS = 161
MOST_BINS = 40
MOST_CLASSES = 40
"""With more classes, the chart shows only the most fragile and the most robust ones."""
MOST_IN_MATRIX = 24
"""With more classes, a list of the most common changes replaces the matrix."""


def find_end(runs: Sequence[Records], *, relative: bool = False) -> float:
    """Where the eps axis ends: at most 1 % of the fooled samples of any run lie beyond. 0 if nothing was found."""
    ends = [0.0]
    for records in runs:
        sizes = records.ratio("p") if relative else records.r["p"]
        sizes = sizes[np.isfinite(sizes)]
        if len(sizes):
            ends.append(float(np.quantile(sizes, 0.99)))
    return max(ends)


def make_curve(records: Records, end: float, *, relative: bool = False) -> dict[str, Any]:
    """Accuracy against eps, up to `end`, with the band that chance in the choice of samples may move it in."""
    curve = accuracy_curve(records, np.linspace(0.0, end, POINTS), relative=relative)
    return {
        "eps": [float(f"{value:.6g}") for value in curve.eps],
        "accuracy": _round(curve.accuracy),
        "low": _round(curve.low) if bool((curve.low < curve.accuracy).any()) else None,
        "band": [_round(edge) for edge in curve.band],
        "certified": None if curve.certified is None else [_round(edge) for edge in curve.certified],
        "labelled": curve.labelled,
    }


def _round(values: Floats) -> list[float]:
    return [round(float(value), 6) for value in values]


def make_histogram(records: Sequence[Records]) -> dict[str, Any]:
    """The distribution of ||r|| / ||x|| of some runs, in shared bins. The last bin includes everything beyond it."""
    ratios = [relative_distances(each, "p") for each in records]
    found = [each[np.isfinite(each)] for each in ratios]
    everything = np.concatenate([*found, np.zeros(0)])
    if not len(everything):
        return {"edges": [], "shares": [], "beyond": 0.0}
    last = float(np.quantile(everything, 0.995)) if len(everything) > 200 else float(everything.max())
    # No more bins than the samples can fill: bars of one sample each say nothing.
    bins = int(np.clip(2 * np.sqrt(min(map(len, found))), 10, MOST_BINS))
    edges = np.linspace(0.0, last * (1 + 1e-9) or 1.0, bins + 1)
    shares = []
    for values, each in zip(ratios, found, strict=True):
        counts, _ = np.histogram(np.minimum(each, last), edges)
        shares.append(_round(counts / max(1, len(values))))
    return {
        "edges": [float(f"{edge:.6g}") for edge in edges],
        "shares": shares,
        "beyond": float((everything > last).mean()),
    }


def make_classes(run: Run, records: Records) -> dict[str, Any]:
    """rho_adv per predicted class, the most fragile first.

    Classes with a search that had no answer are kept apart: nobody knows where they belong.
    """
    names = names_of_run(run)
    # A few hundred resamples are enough for an error bar, and quick even for a thousand classes.
    found = per_class(records, "p", resamples=400 if len(np.unique(records.label)) <= MOST_CLASSES else 100)
    rows = [
        {
            "label": label,
            "name": name_class(names, label),
            "samples": each["samples"],
            "unanswered": each["unanswered"],
            "rho": _finite(each["rho_answered"].value),
            "low": _finite(each["rho_answered"].low),
            "high": _finite(each["rho_answered"].high),
            "median": _finite(each["median"].value),
            "fooled": _finite(each["fooled"].value),
        }
        for label, each in found.items()
    ]
    known = [row for row in rows if not row["unanswered"] and row["rho"] is not None]
    known.sort(key=lambda row: (row["rho"], row["label"]))
    apart = sorted((row for row in rows if row["unanswered"]), key=lambda row: (-row["unanswered"], row["label"]))
    half = MOST_CLASSES // 2
    shown = known if len(known) <= MOST_CLASSES else [*known[:half], *known[-half:]]
    return {"rows": shown, "total": len(known), "apart": apart[:MOST_CLASSES], "apart_total": len(apart)}


def make_matrix(run: Run, records: Records) -> dict[str, Any]:
    """Changes from class to class: the full matrix if it is small enough to read, and the most common changes."""
    names = names_of_run(run)
    counts = confusion(records)
    fooled = int(counts.sum())
    used = np.flatnonzero(counts.any(0) | counts.any(1)).tolist()
    if 0 < len(names) <= MOST_IN_MATRIX:
        used = sorted({*used, *range(len(counts))})
    full = len(used) <= MOST_IN_MATRIX
    order = np.argsort(-counts, axis=None, kind="stable")[:20]
    pairs = [(int(i), int(j)) for i, j in zip(*np.unravel_index(order, counts.shape), strict=True)] if fooled else []
    return {
        "names": [name_class(names, label) for label in used] if full else [],
        "rows": _fill_rows(counts, used) if full else [],
        "pairs": [
            {"from": name_class(names, i), "to": name_class(names, j), "count": int(counts[i, j]),
             "share": float(counts[i, j] / counts[i].sum())}
            for i, j in pairs
            if counts[i, j]
        ],
        "fooled": fooled,
    }  # fmt: skip


def _fill_rows(counts: np.ndarray[Any, Any], used: Sequence[int]) -> list[list[dict[str, Any]]]:
    rows = []
    for i in used:
        total = int(counts[i].sum())
        rows.append(
            [
                {"count": int(counts[i, j]), "share": float(counts[i, j] / total) if total else 0.0, "same": i == j}
                for j in used
            ]
        )
    return rows


def count_statuses(records: Records) -> Mapping[str, int]:
    """How the searches ended."""
    return {status.name: int((records.status == status).sum()) for status in Status}


def _finite(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None
