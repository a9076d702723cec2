"""Summaries over all networks: AttackBench's optimality, who found the smallest norms, and where a peer is better."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np

from benchmarks.peers import is_peer

Rows = list[dict[str, Any]]
"""The attacks on one network in one norm, as `tables.summarise` judges them."""

OURS = {"norm": ("smallest-1000", "smallest-300"), "optimality": ("smallest-2000", "smallest-1000", "smallest-300")}
"""What the peers are compared with: by the mean norm, and after 2,000 passes (the first of these that was measured)."""


EXPLAINED = """\
## Optimality after 2,000 passes

AttackBench's local optimality: 1 - (area - best area) / (largest distance - best area). The area is that under the
curve of accuracy against distance, the best area is that of the smallest norms known, and the largest distance is the
largest of these. So 1 is the best known and 0 an attack that never succeeds. Only points that an attack asked the
network about within its first 2,000 passes for that image count, whatever it would have found later.
"""


def find_optimality(within: Any, best: Any) -> float:
    """AttackBench's local optimality: 1 for the best known perturbation of each sample, 0 for an attack that fails.

    The area under the curve of accuracy against distance, up to the largest of the best known norms, is the mean of
    the norms cut off there. All samples were classified correctly, so that an attack that fails has the whole area.

    >>> find_optimality([1.0, 2.0], [1.0, 2.0]), find_optimality([1.5, 9.0], [1.0, 2.0])
    (1.0, 0.5)
    >>> find_optimality([math.inf, math.inf], [1.0, 2.0])
    0.0
    """
    best = np.asarray(best)
    largest = best.max()
    area, smallest = np.minimum(within, largest).mean(), best.mean()
    return float(1 - (area - smallest) / (largest - smallest)) if largest > smallest else float(area == smallest)


def summarise_cells(cells: dict[tuple[str, str], Rows]) -> list[str]:
    """The part of the page that is about all networks; cells are keyed by network and norm."""
    if not cells:
        return []
    lines = [EXPLAINED]
    for p in ("l2", "linf", "l1"):
        lines += _tabulate(p, {network: rows for (network, q), rows in cells.items() if q == p})
    return lines + _count_wins(cells) + _say_where_behind(cells)


def _tabulate(p: str, networks: dict[str, Rows]) -> list[str]:
    if not networks:
        return []
    found = {name: {row["attack"]: row["optimality"] for row in rows} for name, rows in networks.items()}
    attacks = {attack for values in found.values() for attack in values}
    mean = {
        a: float(np.mean([v[a] for v in found.values() if a in v and math.isfinite(v[a])] or [-1])) for a in attacks
    }
    top = {name: max(values.values()) for name, values in found.items()}
    lines = [f"### {p}", "", "| attack | " + " | ".join(found) + " | mean |", "|---|" + "---|" * (len(found) + 1)]
    for attack in sorted(attacks, key=lambda a: -mean[a]):
        cells = [_cell(values.get(attack, math.nan), top[name]) for name, values in found.items()]
        complete = all(attack in values for values in found.values())
        lines.append(
            f"| {mark(attack)} | " + " | ".join(cells) + (f" | {mean[attack]:.3f} |" if complete else " | – |")
        )
    return [*lines, ""]


def _cell(value: float, top: float) -> str:
    if math.isnan(value):
        return "–"
    return f"**{value:.3f}**" if value == top else f"{value:.3f}"


def _count_wins(cells: dict[tuple[str, str], Rows]) -> list[str]:
    """How often each attack has the smallest mean norm, over all its passes."""
    wins: Counter[str] = Counter()
    for rows in cells.values():
        smallest = min(row["norm"] for row in rows)
        wins.update(row["attack"] for row in rows if row["norm"] == smallest and math.isfinite(smallest))
    lines = [f"## Who finds the smallest norms, {len(cells)} pairs of network and norm", "",
             "In how many of them an attack has the smallest mean norm of all, at any number of passes.", "",
             "| attack | pairs |", "|---|---|"]  # fmt: skip
    return [*lines, *(f"| {mark(attack)} | {count} |" for attack, count in wins.most_common()), ""]


def _say_where_behind(cells: dict[tuple[str, str], Rows]) -> list[str]:
    """Every pair in which a peer is ahead of ours, with how far."""
    lines = ["## Where a peer is better", ""]
    for key, what, sign in (("norm", "mean norm", 1), ("optimality", "optimality after 2,000 passes", -1)):
        compared, behind = 0, []
        for (network, p), rows in cells.items():
            names = {row["attack"]: row for row in rows}
            ours = next((names[name] for name in OURS[key] if name in names), None)
            if ours is None:
                continue
            compared += 1
            peers = sorted((row for row in rows if is_peer(row["attack"])), key=lambda row: sign * row[key])
            ahead = [row for row in peers if sign * row[key] < sign * ours[key]]
            if ahead:
                listed = ", ".join(f"{row['attack']} {row[key]:.4g}" for row in ahead)
                behind.append(f"- {network}, {p}: {ours['attack']} {ours[key]:.4g}, behind {listed}")
        if compared:
            asked = f"By {what}, a peer is better in {len(behind)} of {compared} pairs of network and norm"
            lines += [asked + (":" if behind else "."), "", *behind] + ([""] if behind else [])
    return lines if len(lines) > 2 else []


def mark(attack: str) -> str:
    """Ours are bold."""
    return attack if is_peer(attack) else f"**{attack}**"
