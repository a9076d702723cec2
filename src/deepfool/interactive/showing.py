"""What a notebook shows of a run: the verdict, the most important figures, and the curve.

The sentences and the figures come from `deepfool.metrics.summarize`, as those of the page and the terminal do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from deepfool.display.curves import draw_curve
from deepfool.display.tables import BAD, DOUBTFUL, GOOD, box, caution, make_table, mark, paragraph, side_by_side
from deepfool.errors import DeepFoolError
from deepfool.metrics import Estimate, summarize
from deepfool.metrics.gates import Verdict
from deepfool.metrics.measures import Measure
from deepfool.reporting.wording import format_bound, format_estimate, format_percent, name_norm
from deepfool.runs.records import Run

Part = str | Markup


def show_run(run: Run) -> str:
    """A run as HTML. A damaged one shows what is wrong with it: an object must not fail because it is looked at.

    >>> import tempfile, torch
    >>> from deepfool import evaluate
    >>> with tempfile.TemporaryDirectory() as here:
    ...     run = evaluate(torch.nn.Linear(4, 3), (torch.rand(8, 4), torch.zeros(8, dtype=torch.long)), out=here)
    ...     html = show_run(run)
    >>> "≤" in html, "<svg" in html
    (True, True)
    """
    try:
        summary = summarize(run)
    except DeepFoolError as error:
        return box(caution(Markup("{} {}").format(mark("damaged", BAD), error)))
    curve = list(_draw(summary))
    return box(
        *_tell_verdict(summary),
        side_by_side(_tabulate(summary), *curve),
        *_explain(summary, curve),
        *_tell_rest(summary),
    )


def show_summary(summary: Mapping[str, Any]) -> str:
    """The figures that matter most, as a table."""
    return box(paragraph(_name(summary), strong=True), _tabulate(summary), *_tell_rest(summary))


def write_summary(summary: Mapping[str, Any]) -> str:
    """The same as text."""
    rows = [[name, value, interval] for name, value, interval in _list_figures(summary)]
    return "\n".join([_name(summary), *_align(rows), *(f"warning: {each}" for each in summary["warnings"])])


def _tell_verdict(summary: Mapping[str, Any]) -> Iterator[Part]:
    yield paragraph(_name(summary), faint=True)
    verdict, level = summary["verdict"], summary["headline"]["level"]
    lead = paragraph(verdict["lead"], strong=True)
    yield lead if level == "good" else caution(Markup("<strong>{}</strong>").format(verdict["lead"]))
    for line in (*verdict["failures"], *verdict["lines"]):
        yield paragraph(line)


def _tabulate(summary: Mapping[str, Any]) -> Markup:
    return make_table(["", "", "95 % interval"], list(_list_figures(summary)), right=(1, 2))


def _list_figures(summary: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Name, value and interval of the most important figures."""
    norm = name_norm(_read_number(summary["p"]), weighted=summary["weighted"])
    yield "samples", f"{summary['samples']:,} of {summary['expected']:,}", ""
    if summary["classes_decide"]:
        yield "accuracy", *_write_share(summary["accuracy"])
    rho = read_estimate(summary["rho_adv"])
    yield f"rho_adv, {norm}", *_split(format_bound(rho))
    if (bracket := summary["bracket"]) is not None:
        yield "proved", *_split(format_estimate(read_estimate(bracket["lower"])), "≥ ")
        yield "exact samples", *_write_share(bracket["exact"])
    if not rho.exact:
        answered = read_estimate(summary["rho_answered"])
        if not math.isnan(answered.value):
            yield f"among the {answered.count:,} with an answer", *_split(format_bound(answered))
    for each in summary["robust_accuracy"]:
        value, interval = _write_share(each["accuracy"])
        kept = "accuracy" if summary["classes_decide"] else "decisions that hold"
        yield f"{kept} within {norm} {each['text']}", f"≤ {value}" if value != "–" else value, interval


def _write_share(found: Mapping[str, Any]) -> tuple[str, str]:
    share = read_estimate(found)
    if math.isnan(share.value):
        return "–", ""
    return format_percent(share.value), f"{format_percent(share.low)} to {format_percent(share.high)}"


def _split(text: str, sign: str = "") -> tuple[str, str]:
    """A value and its interval, written as `value [low, high]`."""
    value, _, interval = text.partition(" [")
    return f"{sign}{value}", interval.rstrip("]").replace(", ", " to ")


def _draw(summary: Mapping[str, Any]) -> Iterator[Part]:
    """The curve; none where no search had an answer, because a flat line would look like robustness."""
    curve = summary["curve"]
    if curve is None or not summary["status"]["FOOLED"]:
        return
    low, high = curve["band"]
    norm = name_norm(_read_number(summary["p"]), weighted=summary["weighted"])
    ends = (curve["accuracy"][0], curve["accuracy"][-1])
    size = Measure(summary["unit"]).name_size(norm)
    what = "accuracy" if curve["labelled"] else "decisions that hold"
    yield draw_curve(
        curve["eps"], curve["accuracy"], low=low, high=high, x_name=size, y_name=what,
        title=f"{what} against the size of the perturbation: from {format_percent(ends[0])} at 0 to "
        f"{format_percent(ends[1])} at {curve['eps'][-1]:.3g}",
    )  # fmt: skip


def _explain(summary: Mapping[str, Any], curve: Sequence[Part]) -> Iterator[Part]:
    """How to read the curve, if there is one."""
    if curve:
        also = "; its lower edge counts searches without an answer as fooled" if _is_open(summary) else ""
        yield paragraph(
            f"The curve is what the attack found: the true one lies on it or below. The band is the 95 % interval for "
            f"the choice of the samples{also}.",
            faint=True,
        )


def _is_open(summary: Mapping[str, Any]) -> bool:
    return bool(summary["headline"]["unanswered"])


def _tell_rest(summary: Mapping[str, Any]) -> Iterator[Part]:
    for warning in summary["warnings"]:
        yield caution(warning)
    if summary["audit"] is not None:
        colour = {"pass": GOOD, "caution": DOUBTFUL}.get(summary["audit"]["verdict"], BAD)
        checks = len(summary["audit"]["checks"])
        yield paragraph(Markup("audit: {} in {} checks").format(mark(summary["audit"]["verdict"], colour), checks))
    yield paragraph(summary["run"], faint=True)


def _name(summary: Mapping[str, Any]) -> str:
    return f"{summary['model']} on {summary['data']} by {summary['setup']}"


def show_verdicts(verdicts: Sequence[Verdict]) -> str:
    """Conditions and whether they are met, as a table."""
    colours = {"met": GOOD, "not met": BAD, "not known": DOUBTFUL}
    rows = [
        [mark(verdict.outcome, colours[verdict.outcome]), verdict.name, verdict.required, verdict.why]
        for verdict in verdicts
    ]
    return box(make_table(["", "condition", "required", "found"], rows, unbroken=(0, 1)))


def write_verdicts(verdicts: Sequence[Verdict]) -> str:
    """The same as text."""
    return "\n".join(_align([[verdict.outcome, verdict.name, verdict.sentence] for verdict in verdicts]))


def _align(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows of text in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def read_estimate(found: Mapping[str, Any]) -> Estimate:
    """An estimate from what a summary says of it, in the types of JSON.

    >>> read_estimate({"value": 0.1, "low": None, "high": "inf", "count": 3, "exact": True})
    Estimate(value=0.1, low=nan, high=inf, count=3, exact=True)
    """
    numbers = {name: _read_number(found[name]) for name in ("value", "low", "high")}
    return Estimate(**numbers, count=found["count"], exact=found["exact"])


def _read_number(value: Any) -> float:
    return math.nan if value is None else float(value)
