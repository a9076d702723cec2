"""A curve as SVG that needs no script and no style sheet."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

WIDTH, HEIGHT = 460, 230
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 10, 40
LINE = "#2f7fd0"
"""A blue with a contrast of at least 4 to white and to the darkest notebooks (#111)."""


def draw_curve(
    x: Sequence[float],
    y: Sequence[float],
    *,
    low: Sequence[float] | None = None,
    high: Sequence[float] | None = None,
    x_name: str,
    y_name: str,
    title: str,
) -> Markup:
    """A curve from x = 0, with y from 0 to 1, and a band around it from `low` to `high` (by default the curve itself).

    `title` says in words what the curve shows, for screen readers.

    >>> drawn = draw_curve([0, 1, 2], [1, 0.5, 0], x_name="eps", y_name="accuracy", title="falls from 1 to 0")
    >>> str(drawn[:4]), drawn.count("<path")
    ('<svg', 1)
    """
    end = max(x[-1], 1e-12)
    across, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(u: float, v: float) -> str:
        return f"{LEFT + across * u / end:.1f},{TOP + down * (1 - v):.1f}"

    parts = [_draw_axes(end, across, down, x_name, y_name)]
    if low is not None or high is not None:
        upper, lower = y if high is None else high, y if low is None else low
        outline = [place(u, v) for u, v in zip(x, upper, strict=True)]
        outline += [place(u, v) for u, v in zip(reversed(x), reversed(lower), strict=True)]
        parts.append(Markup('<path d="M{}Z" fill="{}" fill-opacity=".22"/>').format("L".join(outline), LINE))
    points = "L".join(place(u, v) for u, v in zip(x, y, strict=True))
    parts.append(Markup('<path d="M{}" fill="none" stroke="{}" stroke-width="2"/>').format(points, LINE))
    return Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {w} {h}" width="{w}" height="{h}" '
        'style="max-width:100%;height:auto;display:block" fill="currentColor" font-size="12" '
        'font-family="inherit"><title>{title}</title>{parts}</svg>'
    ).format(w=WIDTH, h=HEIGHT, title=title, parts=Markup("").join(parts))


def _draw_axes(end: float, across: int, down: int, x_name: str, y_name: str) -> Markup:
    drawn = []
    for tick in (0, 0.25, 0.5, 0.75, 1):
        at = TOP + down * (1 - tick)
        drawn.append(
            Markup(
                '<line x1="{}" x2="{}" y1="{a:.1f}" y2="{a:.1f}" stroke="currentColor" stroke-opacity="{}"/>'
                '<text x="{}" y="{:.1f}" text-anchor="end">{:g} %</text>'
            ).format(LEFT, LEFT + across, 0.5 if tick == 0 else 0.15, LEFT - 6, at + 4, 100 * tick, a=at)
        )
    for tick in list_ticks(end):
        at = LEFT + across * tick / end
        drawn.append(
            Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{:g}</text>').format(at, TOP + down + 16, tick)
        )
    drawn.append(
        Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(LEFT + across / 2, HEIGHT - 6, x_name)
    )
    # Beside the axis there is no room for its name, so it stands in the corner that a falling curve leaves empty.
    drawn.append(
        Markup('<text x="{}" y="{}" text-anchor="end" opacity=".72">{}</text>').format(LEFT + across, TOP + 12, y_name)
    )
    return Markup("").join(drawn)


def list_ticks(end: float, most: int = 6) -> list[float]:
    """Round numbers from 0 to `end`.

    >>> list_ticks(2.3), list_ticks(0.047)
    ([0.0, 0.5, 1.0, 1.5, 2.0], [0.0, 0.01, 0.02, 0.03, 0.04])
    """
    size = 10.0 ** math.floor(math.log10(end / most))
    step = next(size * times for times in (1, 2, 5, 10) if size * times * most >= end)
    return [float(f"{step * i:.10g}") for i in range(int(end / step + 1e-9) + 1)]
