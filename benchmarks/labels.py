"""Names beside points, without one name on top of another."""

from __future__ import annotations

from typing import Any

SIZE = 6.5
"""Of the letters, in points."""


def place_labels(axis: Any, points: list[tuple[float, float, str]]) -> None:
    """Write each name next to its point, at the nearest place that is still free; a thin line leads there if it is far.

    To be called when everything else is drawn: the limits of the axis must not change any more.
    """
    figure = axis.figure
    figure.canvas.draw()  # settles the layout, and with it where points are on the page
    scale = figure.dpi / 72
    height, letter = 1.15 * SIZE * scale, 0.56 * SIZE * scale
    frame = axis.get_window_extent()
    spots = [axis.transData.transform((x, y)) for x, y, _ in points]
    taken = [(x - 3 * scale, y - 3 * scale, x + 3 * scale, y + 3 * scale) for x, y in spots]
    for (x, y, name), (left, bottom) in sorted(zip(points, spots, strict=True), key=lambda item: tuple(item[1])):
        width = letter * len(name)
        tries = [
            (dx, dy * height)
            for dy in sorted((n / 2 for n in range(-24, 25)), key=abs)
            for dx in (5 * scale, -5 * scale - width, -width / 2)
            if dx != -width / 2 or abs(dy) >= 1
        ]
        for dx, dy in sorted(tries, key=lambda t: abs(t[1]) + (0 if t[0] > 0 else height / 2)):
            box = (left + dx, bottom + dy - height / 2, left + dx + width, bottom + dy + height / 2)
            inside = box[0] >= frame.x0 and box[2] <= frame.x1 and box[1] >= frame.y0 and box[3] <= frame.y1
            if inside and not any(_overlap(box, other) for other in taken):
                break
        else:
            dx, dy = 5 * scale, 0.0
            box = (left + dx, bottom - height / 2, left + dx + width, bottom + height / 2)
        taken.append(box)
        axis.annotate(
            name, (x, y), xytext=(dx / scale, dy / scale), textcoords="offset points", fontsize=SIZE, va="center",
            arrowprops={"arrowstyle": "-", "lw": 0.4, "color": "#888888", "shrinkA": 0, "shrinkB": 2}
            if abs(dy) > 1.2 * height else None,
        )  # fmt: skip


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    """Whether two boxes (left, bottom, right, top) share any area.

    >>> _overlap((0, 0, 2, 2), (1, 1, 3, 3)), _overlap((0, 0, 2, 2), (2, 0, 3, 2))
    (True, False)
    """
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
