"""Where the marks of a bracket stand on its scale, in percent of the width."""

from __future__ import annotations

import math
from dataclasses import dataclass

from deepfool.metrics import Bracket
from deepfool.metrics.formatting import format_interval, format_number, format_percent

ROOM = 1.08
"""The scale is so much longer than what it shows."""


@dataclass(frozen=True)
class Scale:
    """rho_adv from both sides, drawn as a bar: what is proved, what is open, and what was found."""

    proved: float
    """Where the part ends in which nothing is enough on average."""
    found: float | None
    """Where the perturbations that were found stand; None if that is not known."""
    whiskers: list[tuple[float, float]]
    """From where to where the 95 % intervals of the ends go."""
    at_least: str
    at_most: str
    ends: str
    """The outer ends of the intervals, as text."""
    exact: str

    @property
    def sentence(self) -> str:
        """For readers who do not see the bar."""
        upper = f"found: {self.at_most}" if self.found is not None else "nothing is known above that"
        return (
            f"Mean relative distance. Proved: at least {self.at_least}; {upper}. {self.exact} of the samples are exact."
        )


def draw_bracket(found: Bracket | None) -> Scale | None:
    """The bar of a bracket; None if nothing was proved.

    >>> from deepfool.metrics import Estimate
    >>> low, high, half = Estimate(0.5, 0.4, 0.6, 30), Estimate(1, 0.9, 1.1, 30), Estimate(0.5, 0.3, 0.7, 30)
    >>> scale = draw_bracket(Bracket(low, high, half, 30, 30, 0, 0, 0))
    >>> round(scale.found / scale.proved, 3), len(scale.whiskers), scale.ends
    (2.0, 2, '0.400 – 1.10')
    """
    if found is None or not found.lower.value > 0:
        return None
    ends = [found.lower, found.upper] if found.known else [found.lower]
    values = [value for end in ends for value in (end.value, end.high) if not math.isnan(value)]
    length = ROOM * max(values) * (1 if found.known else 1.6)

    def place(value: float) -> float:
        return round(100 * value / length, 3)

    whiskers = [(place(end.low), place(end.high)) for end in ends if not math.isnan(end.low) and end.high > end.low]
    return Scale(
        proved=place(found.lower.value), found=place(found.upper.value) if found.known else None, whiskers=whiskers,
        at_least=format_number(found.lower.value), at_most=format_number(found.upper.value) if found.known else "",
        ends=format_interval(found.lower.low, found.upper.high, between=" – ") if found.known else "",
        exact=format_percent(found.exact.value),
    )  # fmt: skip
