"""The numbers of runs as a table: Markdown, CSV or LaTeX.

Written by hand rather than with tabulate, which would replace about ten lines, does not escape `|` in Markdown, and has
no LaTeX table that escapes names but not formulas. CSV comes from the standard library.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Sequence

from deepfool.errors import InputError
from deepfool.metrics import (
    Estimate,
    accuracy_at_radii,
    choose_headline,
    clean_accuracy,
    count_iterations,
    describe_setup,
    quantile,
    relative_distances,
    rho_adv,
)
from deepfool.metrics.formatting import format_interval, format_number, format_percent
from deepfool.metrics.summary import count_evidence, count_open
from deepfool.runs.audit.checklist import read_audit
from deepfool.runs.records import Run

Cells = dict[str, str | float | int | None]
"""One row, by column name. An estimate takes three columns."""


def make_rows(runs: Sequence[Run], eps: Sequence[str] = ()) -> list[Cells]:
    """One row per run in full precision; None if there is no number. `eps` are radii for the robust accuracy."""
    rows = []
    for run in runs:
        records, setup = run.records(), describe_setup(run)
        head = choose_headline(run, records, read_audit(run, len(records)))
        row: Cells = {
            "model": str(run.manifest["model"]["spec"]),
            "data": str(run.manifest["data"]["name"]),
            "attack": str(run.identity["attack"]["name"]),
            "p": f"{run.p:g}",
            "bounds": setup.in_bounds.removeprefix("in "),
            "knobs": setup.in_knobs,
            "setup": str(setup),
            "samples": len(records),
        }
        row |= _spread("accuracy", clean_accuracy(records))
        row |= {"censored": int(records.censored.sum())}
        row |= {"by_gradients": count_evidence(records).get("gradients"), "not_converged": count_open(run, records)}
        row |= _spread("rho_adv", rho_adv(records, "p"))
        row |= {"rho_adv_exact": str(not bool(records.censored.any())).lower()}
        row |= _spread("rho_answered", head.answered) | {"answered": head.searched - head.unanswered}
        row |= {"standing": str(head.standing)}
        row |= _spread("median", quantile(relative_distances(records, "p"), 0.5))
        row |= {"iterations": _finite(count_iterations(records)["mean"])}
        searched = max(1, int((records.status != 3).sum()))
        row |= {"seconds_per_sample": _finite(float(records.seconds[records.seconds >= 0].sum()) / searched)}
        bracket = head.bracket
        row |= _spread("certified_rho", _NONE if bracket is None else bracket.lower)
        row |= {"exact_share": None if bracket is None else _finite(bracket.exact.value)}
        for each in accuracy_at_radii(run, records, eps):
            row |= _spread(f"accuracy@{each.text}", each.accuracy)
            row |= _spread(f"certified_accuracy@{each.text}", each.certified or _NONE)
        rows.append(row)
    return rows


_NONE = Estimate(math.nan, math.nan, math.nan, 0)


def _spread(name: str, estimate: Estimate) -> Cells:
    return {
        name: _finite(estimate.value), f"{name}_low": _finite(estimate.low), f"{name}_high": _finite(estimate.high)
    }  # fmt: skip


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def format_table(runs: Sequence[Run], style: str = "markdown", *, eps: Sequence[str] = ()) -> str:
    """A table with one row per run; `style` is markdown, csv (full precision) or latex.

    `eps` are radii, such as "0.5" or "8/255": each gets a column with the accuracy within it, in the attack's norm.

    >>> format_table([], "html")
    Traceback (most recent call last):
    ...
    deepfool.errors.InputError: the format must be one of markdown, csv, latex, got 'html'.
    """
    if style not in STYLES:
        raise InputError(f"the format must be one of {', '.join(STYLES)}, got {style!r}.")
    return STYLES[style](make_rows(runs, eps))


def _to_csv(rows: Sequence[Cells]) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    # A spreadsheet would run text that begins like a formula.
    guarded = [
        {key: f"'{value}" if isinstance(value, str) and value[:1] in "=+-@\t\r" and value else value
         for key, value in row.items()}
        for row in rows
    ]  # fmt: skip
    writer.writerows(guarded)
    return stream.getvalue()


_HEADS = ("model", "data", "measured by", "samples", "accuracy", "rho_adv", "95 % interval", "median", "no answer",
          "iterations", "ms")  # fmt: skip
_TEXT = 3
"""How many of them are text."""


def _radii(rows: Sequence[Cells]) -> list[str]:
    """The radii that the rows have an accuracy at."""
    keys = rows[0] if rows else ()
    return [key.partition("@")[2] for key in keys if key.startswith("accuracy@") and not key.endswith(_ENDS)]


_ENDS = ("_low", "_high")


def _heads(rows: Sequence[Cells]) -> list[str]:
    certified = _CERTIFIED if _is_certified(rows) else ()
    return [*_HEADS, *certified, *(f"accuracy within {each}" for each in _radii(rows))]


_CERTIFIED = ("certified rho_adv", "exact")
"""Columns that are there if a run was certified."""


def _is_certified(rows: Sequence[Cells]) -> bool:
    return any(row["certified_rho"] is not None for row in rows)


def _to_cells(row: Cells, radii: Sequence[str], certified: bool) -> list[str]:
    number: Callable[[str], str] = lambda name: format_number(row[name], 3)  # type: ignore[arg-type]  # noqa: E731
    bound: Callable[[str], str] = lambda name: "–" if row[name] is None else f"≤ {number(name)}"  # noqa: E731
    rho, interval = bound("rho_adv"), format_interval(row["rho_adv_low"], row["rho_adv_high"])  # type: ignore[arg-type]
    lost, seconds = int(row["censored"] or 0), row["seconds_per_sample"]
    if lost:
        rho = "not known" + ("" if row["rho_answered"] is None else f" ({number('rho_answered')} of {row['answered']})")
    proved = []
    if certified:
        proved = ["–"] * len(_CERTIFIED)
        if row["certified_rho"] is not None:
            proved = [f"≥ {number('certified_rho')}", format_percent(row["exact_share"])]  # type: ignore[arg-type]
    return [
        str(row["model"]), str(row["data"]), _mark(row), str(row["samples"]), number("accuracy"), rho, interval or "–",
        "not known" if lost and row["median"] is None else bound("median"), str(lost),
        number("iterations"), "–" if seconds is None else format_number(1000 * float(seconds), 3),
        *proved, *(_enclose(bound(f"accuracy@{each}"), row[f"certified_accuracy@{each}"]) for each in radii),
    ]  # fmt: skip


def _enclose(text: str, at_least: str | float | int | None) -> str:
    """An upper bound as text, with the certified lower one before it, if there is one."""
    return text if not isinstance(at_least, float) else f"{format_number(at_least, 3)} – {text.removeprefix('≤ ')}"


def _mark(row: Cells) -> str:
    """What was asked of the attack, and what the audit says of the answer, if it is not good."""
    said = {"failed": " (audit: failed)", "masked": " (caution: masked)", "loose": " (caution: not tight)"}
    return f"{row['setup']}{said.get(str(row['standing']), '')}"


def _to_markdown(rows: Sequence[Cells]) -> str:
    heads, radii, certified = _heads(rows), _radii(rows), _is_certified(rows)
    lines = [f"| {' | '.join(heads)} |", f"|{'|'.join('---' if i < _TEXT else '---:' for i in range(len(heads)))}|"]
    for row in rows:
        lines.append(f"| {' | '.join(_escape_markdown(cell) for cell in _to_cells(row, radii, certified))} |")
    return "\n".join(lines) + "\n"


def _escape_markdown(text: str) -> str:
    r"""Text without Markdown markup.

    >>> _escape_markdown("a|b <i>")
    'a\\|b \\<i\\>'
    """
    return re.sub(r"([\\`*_|<>\[\]])", r"\\\1", text).replace("\n", " ")


def _to_latex(rows: Sequence[Cells]) -> str:
    names, radii, certified = _heads(rows), _radii(rows), _is_certified(rows)
    heads = [_escape_latex(head).replace(r"rho\_adv", r"$\hat\rho_{\mathrm{adv}}$") for head in names]
    columns = "l" * _TEXT + "r" * (len(heads) - _TEXT)
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\hline", " & ".join(heads) + r" \\", r"\hline"]
    for row in rows:
        cells = [_escape_latex(cell).replace(" .. ", "--") for cell in _to_cells(row, radii, certified)]
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\hline", r"\end{tabular}"]) + "\n"


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "<": r"\textless{}", ">": r"\textgreater{}",
    "≤": r"$\leq$", "≥": r"$\geq$", "×": r"$\times$", "∞": r"$\infty$",
    **{raised: f"$^{{{plain}}}$" for raised, plain in zip("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789", strict=True)},
}  # fmt: skip


def _escape_latex(text: str) -> str:
    r"""Text that LaTeX prints literally.

    >>> _escape_latex("50 % of a_b")
    '50 \\% of a\\_b'
    """
    return "".join(_LATEX.get(letter, letter) for letter in text).replace("\n", " ")


STYLES: dict[str, Callable[[Sequence[Cells]], str]] = {
    "markdown": _to_markdown, "csv": _to_csv, "latex": _to_latex,
}  # fmt: skip
