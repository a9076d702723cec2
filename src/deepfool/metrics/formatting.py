"""Numbers as people write them: few digits, no exponents of a computer, an interval only where it tells something."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deepfool.metrics.estimates import Estimate

NOT_KNOWN = "not known"
NOTHING = 1e-12
"""Smaller numbers are what rounding leaves of a zero: distances are measured in float32 or float64."""
MOST_DIGITS = 6
"""How many digits the ends of an interval get, at most, to tell them apart."""

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def format_number(value: float | None, digits: int = 3) -> str:
    """A number with the given significant digits.

    >>> format_number(0.16804), format_number(0.00191), format_number(12345.6), format_number(math.inf)
    ('0.168', '0.00191', '12,346', '∞')
    >>> format_number(None), format_number(0.0000012), format_number(6.939e-18)
    ('–', '1.20 × 10⁻⁶', '0')
    """
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if abs(value) < NOTHING:
        return "0"
    number, _, power = f"{value:.{digits - 1}e}".partition("e")  # rounded first: 0.9999 is 1.00, not 1.000
    if abs(value) < 1e-4:
        return f"{number} × 10{str(int(power)).translate(_RAISED)}"
    return f"{value:,.{max(0, digits - 1 - int(power))}f}"


def format_percent(value: float | None, digits: int = 3) -> str:
    """A share as a percentage.

    >>> format_percent(0.16804), format_percent(1.0), format_percent(0.00191), format_percent(0.99999)
    ('16.8 %', '100 %', '0.191 %', '>99.9 %')
    """
    if value is None or math.isnan(value):
        return "–"
    if value in (0.0, 1.0):
        return f"{value * 100:.0f} %"
    text = format_number(value * 100, digits)
    return f"{'>99.9' if text == format_number(100, digits) else text} %"


def format_interval(low: float | None, high: float | None, digits: int = 3, between: str = " .. ") -> str:
    """The two ends of an interval; empty if there is none, or if it tells nothing.

    >>> format_interval(0.154, 0.181), format_interval(0.16001, 0.16004), format_interval(0.1, math.inf)
    ('0.154 .. 0.181', '0.16001 .. 0.16004', '0.100 .. ∞')
    >>> format_interval(math.nan, math.nan), format_interval(0.5, 0.5), format_interval(0.0, math.inf)
    ('', '', '')
    """
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return ""
    if high - low < NOTHING or (low <= 0 and math.isinf(high)) or math.isinf(low):
        return ""
    for more in range(digits, MOST_DIGITS + 1):
        ends = format_number(low, more), format_number(high, more)
        if ends[0] != ends[1]:
            return between.join(ends)
    return ""


def format_value(estimate: Estimate, digits: int = 3) -> str:
    """The number alone; "not known" where searches without an answer leave it open.

    >>> from deepfool.metrics.estimates import Estimate
    >>> format_value(Estimate(0.168, 0.154, 0.181, 9)), format_value(Estimate(math.inf, 0.1, math.inf, 9, exact=False))
    ('0.168', 'not known')
    """
    if not estimate.exact:
        return NOT_KNOWN
    return format_number(estimate.value, digits)


def format_estimate(estimate: Estimate, digits: int = 3) -> str:
    """A number with its interval.

    >>> from deepfool.metrics.estimates import Estimate
    >>> format_estimate(Estimate(0.168, 0.154, 0.181, 100)), format_estimate(Estimate(0.3, math.nan, math.nan, 2))
    ('0.168 [0.154, 0.181]', '0.300')
    """
    interval = format_interval(estimate.low, estimate.high, digits, ", ") if estimate.exact else ""
    return format_value(estimate, digits) + (f" [{interval}]" if interval else "")
