"""Times as people read them, and how far a run is."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from deepfool.metrics.formatting import format_number

if TYPE_CHECKING:
    from deepfool.runs.evaluation import Progress


def format_duration(seconds: float | None) -> str:
    """How long something took.

    >>> [format_duration(each) for each in (0.0312, 0.706, 12.89, 75, 3725.3, 200_000)]
    ['31 ms', '0.7 s', '13 s', '1 min 15 s', '1 h 2 min', '2 days 8 h']
    >>> format_duration(0), format_duration(None), format_duration(3599.9), format_duration(59.7)
    ('0 s', '–', '1 h', '1 min')
    """
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return "–"
    if seconds < 9.95:
        return "0 s" if seconds < 5e-4 else f"{1000 * seconds:.0f} ms" if seconds < 0.0995 else f"{seconds:.1f} s"
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    if round(seconds) < 3600:
        return _join(divmod(round(seconds), 60), "min", "s")
    if round(seconds / 60) < 24 * 60:
        return _join(divmod(round(seconds / 60), 60), "h", "min")
    days, hours = divmod(round(seconds / 3600), 24)
    return _join((days, hours), "day" if days == 1 else "days", "h")


def _join(parts: tuple[int, int], large: str, small: str) -> str:
    return f"{parts[0]} {large}" + (f" {parts[1]} {small}" if parts[1] else "")


def tell_progress(progress: Progress) -> str:
    """The rate of a run, the time left, and the mean so far.

    >>> from types import SimpleNamespace as Some
    >>> tell_progress(Some(rho=0.1659, censored=3, fooled=97, rate=421.02, seconds_left=75.2))
    '421/s, 1 min 15 s left, mean of the 97 fooled 0.166, 3 not fooled'
    """
    rho = f"rho_adv <= {format_number(progress.rho)}"
    if progress.censored:
        rho = f"mean of the {progress.fooled} fooled {format_number(progress.rho)}, {progress.censored} not fooled"
    return f"{format_number(progress.rate)}/s, {format_duration(progress.seconds_left)} left, {rho}"


def format_moment(text: object) -> str:
    """A date and time of a manifest.

    >>> format_moment("2026-11-07T21:05:39+00:00"), format_moment("2026-11-07T23:05:39+02:00"), format_moment("soon")
    ('7 November 2026, 21:05 UTC', '7 November 2026, 21:05 UTC', 'soon')
    """
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return str(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    moment = moment.astimezone(timezone.utc)
    return f"{moment.day} {_MONTHS[moment.month - 1]} {moment.year}, {moment:%H:%M} UTC"


# Not strftime's %B, which follows the locale of whoever writes the report.
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
