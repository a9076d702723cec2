"""The table of other networks: these runs among the known values, like with like, the others greyed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from deepfool.reporting import wording
from deepfool.reporting.references import DATA_NAMES, Reference, family_of, find_references, why_incomparable

if TYPE_CHECKING:
    from deepfool.reporting.page import Part


def place_references(parts: Sequence[Part]) -> list[dict[str, Any]]:
    """One table per norm, sorted. What was measured in another way or on other data is at the end and greyed.

    Runs whose number is not known, or not to be trusted, have no place among the others.
    """
    tables = []
    for norm in dict.fromkeys(part.norm for part in parts):
        own = [part for part in parts if part.norm == norm and part.headline.comparable]
        specs = [part.run.manifest["model"]["spec"] for part in own]
        known = find_references(own[0].run.p, but=specs) if own else []
        if not known:
            continue
        rows = [_row_of_part(part, parts.index(part), len(parts)) for part in own]
        rows += [_row_of_reference(each, own) for each in known]
        largest = max(row["rho"] for row in rows)
        for row in rows:
            row["width"] = round(100 * row["rho"] / largest, 2)
        rows.sort(key=lambda row: (not row["near"], -row["rho"]))
        alike = any(row["near"] and not row["own"] for row in rows)
        tables.append({"norm": norm, "rows": rows, "alike": alike})
    return tables


def _row_of_part(part: Part, place: int, count: int) -> dict[str, Any]:
    family = family_of(part.run)
    return {
        "name": part.name if count > 1 else part.run.manifest["model"]["spec"], "place": place % 6,
        "data": part.run.manifest["data"]["name"] or DATA_NAMES.get(family or "", ""),
        "rho": part.rho.value, "text": wording.format_bound(part.rho),
        "source": f"this run: {part.setup.search}", "own": True, "near": True,
    }  # fmt: skip


def _row_of_reference(each: Reference, own: Sequence[Part]) -> dict[str, Any]:
    """A known value, and what sets it apart from the runs; near only if it was measured as one of them was."""
    same_data = [part for part in own if family_of(part.run) == each.data]
    apart = [why_incomparable(part.run, part.records, each) for part in same_data or own]
    near = bool(same_data) and not all(apart)
    why = "" if not all(apart) else apart[0] if len(set(apart)) == 1 else f"by {each.attack}, no bounds, default knobs"
    return {
        "name": each.name, "place": None, "data": DATA_NAMES[each.data], "rho": each.rho,
        "text": wording.format_number(each.rho, 2), "source": f"{each.source}{f': {why}' if why else ''}", "own": False,
        "near": near,
    }  # fmt: skip
