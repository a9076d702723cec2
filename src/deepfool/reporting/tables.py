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
from deepfool.metrics import Estimate, clean_accuracy, count_iterations, quantile, relative_distances, rho_adv
from deepfool.metrics.summary import count_evidence, count_open
from deepfool.reporting.wording import format_number
from deepfool.runs.records import Run

Cells = dict[str, str | float | int | None]
"""One row, by column name. An estimate takes three columns."""


def make_rows(runs: Sequence[Run]) -> list[Cells]:
    """One row per run in full precision; None if there is no number."""
    rows = []
    for run in runs:
        records = run.records()
        row: Cells = {
            "model": str(run.manifest["model"]["spec"]),
            "data": str(run.manifest["data"]["name"]),
            "attack": str(run.identity["attack"]["name"]),
            "p": f"{run.p:g}",
            "samples": len(records),
        }
        row |= _spread("accuracy", clean_accuracy(records))
        row |= {"censored": int(records.censored.sum())}
        row |= {"by_gradients": count_evidence(records).get("gradients"), "not_converged": count_open(run, records)}
        row |= _spread("rho_adv", rho_adv(records, "p"))
        row |= {"rho_adv_exact": str(not bool(records.censored.any())).lower()}
        row |= _spread("median", quantile(relative_distances(records, "p"), 0.5))
        row |= {"iterations": _finite(count_iterations(records)["mean"])}
        searched = max(1, int((records.status != 3).sum()))
        row |= {"seconds_per_sample": _finite(float(records.seconds[records.seconds >= 0].sum()) / searched)}
        rows.append(row)
    return rows


def _spread(name: str, estimate: Estimate) -> Cells:
    return {
        name: _finite(estimate.value), f"{name}_low": _finite(estimate.low), f"{name}_high": _finite(estimate.high)
    }  # fmt: skip


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def format_table(runs: Sequence[Run], style: str = "markdown") -> str:
    """A table with one row per run; `style` is markdown, csv (full precision) or latex.

    >>> format_table([], "html")
    Traceback (most recent call last):
    ...
    deepfool.errors.InputError: the format must be one of markdown, csv, latex, got 'html'.
    """
    if style not in STYLES:
        raise InputError(f"the format must be one of {', '.join(STYLES)}, got {style!r}.")
    return STYLES[style](make_rows(runs))


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


_HEADS = ("model", "data", "attack", "samples", "accuracy", "rho_adv", "95 % interval", "median", "iterations", "ms")


def _to_cells(row: Cells, infinity: str, bound: str) -> list[str]:
    number: Callable[[str], str] = lambda name: format_number(row[name], 3)  # type: ignore[arg-type]  # noqa: E731
    exact = row["rho_adv_exact"] == "true"
    seconds = row["seconds_per_sample"]
    high = number("rho_adv_high") if exact else infinity
    return [
        str(row["model"]), str(row["data"]), f"{row['attack']}, p = {row['p']}", str(row["samples"]),
        number("accuracy"), f"{'' if exact else bound}{number('rho_adv')}", f"{number('rho_adv_low')} .. {high}",
        number("median"), number("iterations"), "–" if seconds is None else format_number(1000 * float(seconds), 3),
    ]  # fmt: skip


def _to_markdown(rows: Sequence[Cells]) -> str:
    lines = [f"| {' | '.join(_HEADS)} |", f"|{'|'.join('---' if i < 3 else '---:' for i in range(len(_HEADS)))}|"]
    for row in rows:
        lines.append(f"| {' | '.join(_escape_markdown(cell) for cell in _to_cells(row, '∞', '≥ '))} |")
    return "\n".join(lines) + "\n"


def _escape_markdown(text: str) -> str:
    r"""Text without Markdown markup.

    >>> _escape_markdown("a|b <i>")
    'a\\|b \\<i\\>'
    """
    return re.sub(r"([\\`*_|<>\[\]])", r"\\\1", text).replace("\n", " ")


def _to_latex(rows: Sequence[Cells]) -> str:
    heads = [head.replace("rho_adv", r"$\hat\rho_{\mathrm{adv}}$").replace("%", r"\%") for head in _HEADS]
    lines = [rf"\begin{{tabular}}{{lll{'r' * (len(heads) - 3)}}}", r"\hline", " & ".join(heads) + r" \\", r"\hline"]
    for row in rows:
        cells = [_escape_latex(cell) for cell in _to_cells(row, "INFINITY", "BOUND")]
        line = " & ".join(cells).replace("INFINITY", r"$\infty$").replace("BOUND", r"$\geq$ ")
        lines.append(line.replace(" .. ", "--") + r" \\")
    return "\n".join([*lines, r"\hline", r"\end{tabular}"]) + "\n"


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "<": r"\textless{}", ">": r"\textgreater{}",
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
