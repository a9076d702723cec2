"""Vector figures for papers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from deepfool.attacks.shared.aims import find_goal
from deepfool.errors import InputError, RunError, require
from deepfool.metrics import accuracy_curve, describe_setup, rho_answered
from deepfool.metrics.measures import describe_measure
from deepfool.reporting.charts import find_end, make_classes, make_histogram
from deepfool.runs.records import Run

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ("-", "--", ":", "-.", (0, (5, 1)), (0, (3, 1, 1, 1)))
SUFFIXES = (".pdf", ".svg", ".eps", ".png")

_STYLE = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3,
    "pdf.fonttype": 42, "svg.fonttype": "none", "legend.frameon": False,
    # A $ in the name of a class or file must not start mathematics.
    "text.parse_math": False,
}  # fmt: skip


def draw_figure(runs: Sequence[Run], kind: str, out: str | Path) -> Path:
    """Draw `curve`, `histogram` or `classes` of some runs into a .pdf, .svg, .eps or .png.

    >>> draw_figure([], "pie", "x.pdf")
    Traceback (most recent call last):
    ...
    deepfool.errors.InputError: the figure must be one of curve, histogram, classes, got 'pie'.
    """
    path = Path(out)
    if kind not in KINDS:
        raise InputError(f"the figure must be one of {', '.join(KINDS)}, got {kind!r}.")
    if not runs:
        raise InputError("a figure needs at least one run.")
    if len({run.p for run in runs}) > 1:
        raise InputError(
            "the runs minimise different norms, which do not belong on one axis.", hint="draw one figure per norm."
        )
    for run in runs:
        if not run.count:
            raise RunError(
                f"{run.folder} has no rows to draw.", hint="resume it: `deepfool evaluate` with the same --out."
            )
    return save_figure(lambda figure: KINDS[kind](figure, runs), path)


def save_figure(draw: Callable[[Any], None], path: Path) -> Path:
    """Draw a figure in the style of this package and write it, in the format of the suffix."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"the file must end in {', '.join(SUFFIXES)}, got {path.name!r}.")
    matplotlib = import_plotting("matplotlib", "deepfool figure")
    figure_class = import_plotting("matplotlib.figure", "deepfool figure").Figure
    # Not pyplot: it would need a display and keep every figure in memory.
    with matplotlib.rc_context(_STYLE):
        figure = figure_class(figsize=(4.6, 3.0), layout="constrained")
        draw(figure)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # No date: the same run gives the same file.
            dated = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}, ".eps": {}, ".png": {}}
            figure.savefig(path, dpi=200, metadata=dated[path.suffix.lower()])
        except OSError as error:
            raise RunError(f"{path} cannot be written: {error.strerror or error}.") from error
    return path


def import_plotting(name: str, purpose: str) -> Any:
    """A module of matplotlib, or an error that says what to install."""
    return require(name, extra="figures", purpose=purpose)


def _norm(run: Run) -> str:
    symbol = r"$\ell_\infty$" if np.isinf(run.p) else rf"$\ell_{{{run.p:g}}}$"
    return f"{'weighted ' * run.weighted}{symbol}"


def _names(runs: Sequence[Run]) -> list[str]:
    names = [str(run.manifest["model"]["spec"]) for run in runs]
    setups = [describe_setup(run).search for run in runs]
    if len(set(setups)) > 1:  # what else differs belongs to the name
        names = [f"{name}, {setup}" for name, setup in zip(names, setups, strict=True)]
    if len(set(names)) < len(names):
        names = [run.folder.name for run in runs]
    return names


def _draw_curve(figure: Any, runs: Sequence[Run]) -> None:
    axes = figure.subplots()
    records = [run.records() for run in runs]
    end = find_end(records)
    if not end:
        raise RunError("no perturbation was found, so there is no curve.")
    for i, (each, name) in enumerate(zip(records, _names(runs), strict=True)):
        curve = accuracy_curve(each, np.linspace(0, end, 400))
        colour = PALETTE[i % len(PALETTE)]
        axes.plot(curve.eps, 100 * curve.accuracy, color=colour, linestyle=DASHES[i % len(DASHES)], label=name)
        low, high = curve.band
        axes.fill_between(curve.eps, 100 * low, 100 * high, color=colour, alpha=0.15, linewidth=0)
        if curve.certified is not None:
            low, high = curve.certified
            axes.fill_between(curve.eps, 100 * low, 100 * high, color=PALETTE[2], alpha=0.25, linewidth=0)
            axes.plot(curve.eps, 100 * low, color=PALETTE[2], linewidth=1, linestyle=DASHES[i % len(DASHES)])
        if (curve.low < curve.accuracy).any():  # searches without an answer
            axes.fill_between(curve.eps, 100 * curve.low, 100 * curve.accuracy, color=colour, alpha=0.2, linewidth=0)
    classes = all(find_goal(run.identity["attack"]["knobs"]).reads == "classes" for run in runs)
    what = "accuracy" if classes else "decisions that hold"
    axes.set(ylabel=f"{what} (%), at most", ylim=(0, 102), xlim=(0, end))
    size = describe_measure(runs[0]).name_size(_norm(runs[0]))
    axes.set_xlabel(f"largest {size}", parse_math=True)
    if len(runs) > 1:
        axes.legend()


def _draw_histogram(figure: Any, runs: Sequence[Run]) -> None:
    axes = figure.subplots()
    records = [run.records() for run in runs]
    found = make_histogram(records)
    if not found["edges"]:
        raise RunError("no perturbation was found, so there is no distribution.")
    for i, (shares, each, name) in enumerate(zip(found["shares"], records, _names(runs), strict=True)):
        colour = PALETTE[i % len(PALETTE)]
        values = 100 * np.array(shares)
        if len(runs) == 1:
            axes.stairs(values, found["edges"], fill=True, color=colour, label=name)
        else:
            axes.stairs(values, found["edges"], color=colour, linestyle=DASHES[i % len(DASHES)], label=name)
        mean = rho_answered(each, "p")
        axes.axvline(mean.value, color="black" if len(runs) == 1 else colour, linewidth=0.8, linestyle="--")
    whole = not any(each.censored.any() for each in records)
    whose = r"the mean, $\hat\rho_{\mathrm{adv}}$" if whole else "the mean of those with an answer"
    axes.set(ylabel="samples (%)", xlim=(0, found["edges"][-1]))
    counted = describe_measure(runs[0])
    what = counted.ratio if counted.unit else rf"$\|\hat r\| / \|x\|$ in {_norm(runs[0])}"
    axes.set_xlabel(f"{what} (dashed: {whose})", parse_math=True)
    if len(runs) > 1:
        axes.legend()


def _draw_classes(figure: Any, runs: Sequence[Run]) -> None:
    if len(runs) > 1:
        raise InputError("the classes figure takes one run.", hint="draw one figure per run.")
    found = make_classes(runs[0], runs[0].records())
    rows, apart = found["rows"], found["apart_total"]
    if not rows:
        raise RunError("there is no class in which every search had an answer, so there is nothing to draw.")
    figure.set_size_inches(4.6, max(1.6, 0.8 + 0.21 * len(rows)))
    axes = figure.subplots()
    spots = np.arange(len(rows))
    values = np.array([row["rho"] for row in rows])
    ends = np.array([[row["rho"] - _or(row["low"], row), _or(row["high"], row) - row["rho"]] for row in rows]).T
    axes.barh(spots, values, xerr=np.maximum(ends, 0), color=PALETTE[0], height=0.7, error_kw={"linewidth": 0.8})
    axes.set_yticks(spots, [row["name"] for row in rows])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(rf"$\hat\rho_{{\mathrm{{adv}}}}$ in {_norm(runs[0])}, by predicted class", parse_math=True)
    if apart:
        axes.set_title(f"without {apart} classes with a search that had no answer", fontsize=8, loc="left")


def _or(end: float | None, row: dict[str, Any]) -> float:
    """The end of an interval; of one that a few samples do not have, the value itself."""
    return float(row["rho"] if end is None else end)


KINDS: dict[str, Callable[[Any, Sequence[Run]], None]] = {
    "curve": _draw_curve, "histogram": _draw_histogram, "classes": _draw_classes,
}  # fmt: skip
