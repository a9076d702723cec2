"""Tables, paragraphs and marks as HTML. All text is escaped here, once; a `Markup` is HTML already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from markupsafe import Markup, escape

GOOD, BAD, DOUBTFUL = "#2a9458", "#d9483b", "#b7791f"
"""Green, red and amber with a contrast of at least 3.5 to white and to the darkest notebooks (#111)."""

_CELL = "padding:2px 12px 2px 0;text-align:{};vertical-align:middle;border:0;background:none"
_BOX = "font-family:inherit;line-height:1.45;margin:4px 0"
_TEXT = "margin:4px 0;max-width:46rem"


def make_table(
    head: Sequence[str],
    rows: Iterable[Sequence[str | Markup]],
    *,
    right: Sequence[int] = (),
    unbroken: Sequence[int] = (),
) -> Markup:
    """A table; `right` are the columns to align to the right, `unbroken` those that stay on one line.

    >>> make_table(["n", ""], [["1", "<b>"]])
    Markup('<table ...<th ...>n</th>...<td ...>1</td><td ...>&lt;b&gt;</td>...</table>')
    """
    styles = [
        _CELL.format("right" if i in right else "left") + ";white-space:nowrap" * (i in (*right, *unbroken))
        for i in range(len(head))
    ]
    line = "white-space:nowrap;border-bottom:1px solid rgba(128,128,128,.5)"
    top = Markup("").join(
        Markup('<th style="{};{}">{}</th>').format(style, line, cell) for style, cell in zip(styles, head, strict=True)
    )
    body = Markup("").join(
        Markup("<tr style='background:none'>{}</tr>").format(
            Markup("").join(
                Markup('<td style="{}">{}</td>').format(style, cell) for style, cell in zip(styles, row, strict=True)
            )
        )
        for row in rows
    )
    return Markup(
        '<table style="border-collapse:collapse;border:0;margin:6px 0;font-size:inherit;'
        'font-variant-numeric:tabular-nums">'
        "<thead><tr>{}</tr></thead><tbody>{}</tbody></table>"
    ).format(top, body)


def paragraph(text: str | Markup, *, strong: bool = False, faint: bool = False) -> Markup:
    """A paragraph.

    >>> paragraph("2 < 3")
    Markup('<p style="margin:4px 0;max-width:46rem">2 &lt; 3</p>')
    """
    style = _TEXT + (";font-weight:600" if strong else "") + (";opacity:.72" if faint else "")
    return Markup('<p style="{}">{}</p>').format(style, text)


def mark(text: str, colour: str) -> Markup:
    """A word in a colour.

    >>> mark("passed", GOOD)
    Markup('<span style="color:#2a9458;font-weight:600">passed</span>')
    """
    return Markup('<span style="color:{};font-weight:600">{}</span>').format(colour, text)


def caution(text: str | Markup) -> Markup:
    """A paragraph that must not be overlooked: an amber bar on its left.

    >>> "border-left" in caution("look at this")
    True
    """
    style = f"{_TEXT};padding-left:10px;border-left:3px solid {DOUBTFUL}"
    return Markup('<p style="{}">{}</p>').format(style, text)


def side_by_side(*parts: str | Markup) -> Markup:
    """Parts beside each other, or below each other where there is no room.

    >>> "flex" in side_by_side("a", "b")
    True
    """
    cells = Markup("").join(Markup("<div>{}</div>").format(part) for part in parts)
    return Markup('<div style="display:flex;flex-wrap:wrap;gap:4px 28px;align-items:center">{}</div>').format(cells)


def box(*parts: str | Markup) -> str:
    """Everything that one object shows.

    >>> box("a", Markup("<i>b</i>"))
    '<div style="...">a<i>b</i></div>'
    """
    return str(Markup('<div style="{}">{}</div>').format(_BOX, Markup("").join(escape(part) for part in parts)))
