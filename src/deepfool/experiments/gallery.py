"""All tables and figures in one look: each beside what the paper shows in its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deepfool.experiments.tabulation import Table

SHOWN: Mapping[str, str] = {
    "figure1": "A whale that becomes a turtle: DeepFool's perturbation can hardly be seen, FGSM's can.",
    "figure2": "A line, a point, and the projection of the point onto the line.",
    "figure3": "A curved graph and its tangent plane: where the plane is zero lies the next iterate.",
    "figure4": "A polyhedron around the point; the nearest of its faces gives the perturbation.",
    "figure5": "Curved boundaries, and the polyhedron of their linearisations (dashed).",
    "figure6": "DeepFool's examples raise the robustness with every extra epoch; FGSM's do not, or lower it.",
    "figure7": "The larger α, the lower the robustness after fine-tuning.",
    "figure8": "A 1 that looks more and more like a 7 as α grows.",
    "figure9": "Judged by FGSM the network gains; judged by DeepFool it does not.",
    "table1": "Test error, robustness by three methods, and their times, for six networks.",
    "table2": "The same in the ℓ∞ norm, for four networks.",
    "table3": "Test errors after five extra epochs.",
}
"""What the paper shows in each place."""

_COLUMNS: Mapping[str, tuple[int, int]] = {"table1": (2, 3), "table2": (0, 1), "table3": (1, 2)}
"""Which cells of a line hold the published value and the one found here."""


@dataclass(frozen=True)
class Card:
    """One table or figure, small."""

    key: str
    name: str
    """Such as "Figure 4"."""
    about: str
    shown: str
    """What the paper shows."""
    pictures: Sequence[str]
    lines: Sequence[tuple[str, str, str]]
    """Of a table: the network, the published value, the value here."""


def make_card(key: str, title: str, pictures: Sequence[str], tables: Sequence[Table]) -> Card:
    """The card of a section.

    >>> make_card("figure4", "Figure 4: an affine classifier", ["figure4.svg"], []).about
    'an affine classifier'
    """
    name, _, about = title.partition(": ")
    return Card(key, name, about, SHOWN[key], pictures, _digest(key, tables))


def _digest(key: str, tables: Sequence[Table]) -> list[tuple[str, str, str]]:
    """The published value and the one here, without its interval, for each network that was measured."""
    if key not in _COLUMNS or not tables:
        return []
    there, here = _COLUMNS[key]
    lines = [line for line in tables[0].lines if not line.missing and line.cells[there] != "–"]
    return [(line.name, line.cells[there], line.cells[here].partition(" (")[0]) for line in lines]
