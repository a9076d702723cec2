"""Tables of text that compare results with the published values, for HTML and Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deepfool.experiments.claims import change, compare_lbfgs, last_error
from deepfool.experiments.paper import CLASSIFIERS

DASH = "–"
FACTOR = 1.5
"""rho_adv within this factor of the published one counts as reproduced."""


@dataclass(frozen=True)
class Line:
    """One row; `missing` says why it is empty."""

    name: str
    cells: Sequence[str] = ()
    missing: str = ""


@dataclass(frozen=True)
class Table:
    """A table of text."""

    title: str
    headers: Sequence[str]
    lines: Sequence[Line]
    note: str = ""


def number(value: float | None, digits: int = 2) -> str:
    """A number with this many significant digits, never in exponential notation.

    >>> number(0.02345), number(0.1999), number(None), number(0.00191), number(12.3)
    ('0.023', '0.20', '–', '0.0019', '12')
    """
    if value is None:
        return DASH
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits}g}")
    places = digits - 1 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:.{max(0, places)}f}"


def percent(value: float | None, places: int = 1) -> str:
    """A share in percent.

    >>> percent(0.0105), percent(None)
    ('1.1 %', '–')
    """
    return DASH if value is None else f"{100 * value:.{places}f} %"


def ratio(here: float | None, paper: float | None) -> str:
    """The measured value divided by the published one.

    >>> ratio(0.18, 0.2), ratio(None, 0.2)
    ('0.90', '–')
    """
    return DASH if here is None or not paper else f"{here / paper:.2f}"


def milliseconds(value: float | None, at_least: bool = False) -> str:
    """A time per sample.

    >>> milliseconds(0.83), milliseconds(4000, True), milliseconds(None)
    ('0.83 ms', '> 4.0 s', '–')
    """
    if value is None:
        return DASH
    text = f"{value / 1000:.1f} s" if value >= 1000 else f"{number(value)} ms"
    return f"> {text}" if at_least else text


def rho(found: Mapping[str, Any]) -> str:
    """rho_adv with its interval; not known if some samples were not fooled.

    >>> rho({"rho": 0.12, "low": 0.11, "high": 0.13, "exact": True})
    '0.120 (0.110 to 0.130)'
    >>> rho({"rho": 0.12, "low": 0.11, "high": 0.13, "exact": False, "n": 95})
    'not known (0.120 for the 95 that were fooled)'
    """
    value = number(found["rho"], 3)
    if not found["exact"]:
        return f"not known ({value} for the {found['n']:,} that were fooled)"
    if found["low"] is None or found["high"] is None:
        return value
    return f"{value} ({number(found['low'], 3)} to {number(found['high'], 3)})"


def _measured(result: Mapping[str, Any], lines: list[Line]) -> Iterator[Mapping[str, Any]]:
    """Yield the rows that were measured; for each other row, add a line that says why not."""
    for row in result["rows"]:
        if row["missing"]:
            lines.append(Line(row["name"], missing=row["missing"]))
        else:
            yield row


def tabulate_robustness(result: Mapping[str, Any]) -> Table:
    """Table 1: error and rho_adv by DeepFool."""
    lines: list[Line] = []
    for row in _measured(result, lines):
        paper = CLASSIFIERS.get(row["network"])
        found, error, published = row["deepfool"], row["test_error"], paper.deepfool if paper else None
        lines.append(Line(row["name"], (
            percent(paper.test_error if paper else None), f"{percent(error['error'])} of {error['n']:,}",
            number(published), rho(found), ratio(found["rho"], published),
            number(row["deepfool_pixels"]["rho"], 3), f"{found['iterations']['mean']:.2f}", f"{found['n']:,}",
        )))  # fmt: skip
    return Table(
        "ρ by DeepFool",
        ("network", "test error, paper", "here", "ρ, paper", "ρ here (95 % interval)", "here / paper", "ρ in [0, 1]",
         "iterations", "n"),
        lines,
        "ρ is measured in the network's own space, where the paper seems to have measured (it does not say); “ρ in "
        "[0, 1]” is the same for the pixels before any normalisation, as `deepfool evaluate` measures it.",
    )  # fmt: skip


def tabulate_methods(result: Mapping[str, Any]) -> Table:
    """Table 1: the other two methods."""
    lines: list[Line] = []
    for row in _measured(result, lines):
        paper = CLASSIFIERS.get(row["network"])
        fgsm, same, thorough = row["fgsm"], compare_lbfgs(row, "lbfgs"), compare_lbfgs(row, "thorough")
        lines.append(Line(row["name"], (
            number(paper.fgsm if paper else None),
            number(fgsm["rho"], 3) if fgsm["reached"] else f"never 90 % (at most {percent(fgsm['share'], 0)})",
            ratio(fgsm["rho"], paper.fgsm if paper else None), f"{fgsm['n']:,}",
            number(paper.lbfgs if paper else None),
            number(same[0], 3) if same else DASH, ratio(same[0] if same else None, paper.lbfgs if paper else None),
            f"{number(same[1], 3)} (n = {same[2]})" if same else DASH,
            f"{number(thorough[0], 3)} against {number(thorough[1], 3)} (n = {thorough[2]})" if thorough else DASH,
            _describe_order(row),
        )))  # fmt: skip
    return Table(
        "ρ by FGSM and by L-BFGS",
        ("network", "FGSM, paper", "here", "here / paper", "n", "L-BFGS, paper", "here", "here / paper",
         "DeepFool on the same", "L-BFGS, thorough, against DeepFool", "order of the three"),
        lines,
        "FGSM at the smallest ε that misclassifies 90 %. L-BFGS is slow, so it is run on few samples, and DeepFool's ρ "
        "on the same samples is beside it. The paper does not give its L-BFGS settings, and the order of L-BFGS and "
        "DeepFool depends on them, so there are two: one with one target class and a coarse search for the penalty, "
        "and one, “thorough”, with three targets and a fine search; the paper's took a time between the two. They were "
        "chosen after trials of four settings on 12 images per network: the coarser ones found larger perturbations "
        "than DeepFool, the finer ones smaller. Both keep x + r inside the range of pixels, as in Szegedy's problem; "
        "without that, ρ by L-BFGS was 12 to 15 % lower on the MNIST networks in these trials. DeepFool and FGSM have "
        "no bounds.",
    )  # fmt: skip


def _describe_order(row: Mapping[str, Any]) -> str:
    """The order for each setting of L-BFGS."""
    usual = compare_order(row)
    if compare_lbfgs(row, "thorough") is None or (other := compare_order(row, "thorough")) == usual:
        return usual
    return f"{usual}; thorough: {other}"


def compare_order(row: Mapping[str, Any], kind: str = "lbfgs") -> str:
    """Whether the order of the three methods is the paper's, in which DeepFool's perturbation is the smallest.

    >>> row = {"network": "lenet-mnist", "deepfool": {"rho": 0.2, "ratios": [0.2]}, "fgsm": {"rho": 0.9},
    ...        "lbfgs": {"ratios": [0.3]}}
    >>> compare_order(row)
    'as in the paper'
    """
    paper = CLASSIFIERS.get(row["network"])
    same = compare_lbfgs(row, kind)
    if paper is None:
        return DASH
    fgsm = float("inf") if row["fgsm"]["rho"] is None else row["fgsm"]["rho"] / row["deepfool"]["rho"]
    here = {"DeepFool": 1.0, "FGSM": fgsm}
    there = {"DeepFool": paper.deepfool, "FGSM": paper.fgsm}
    if same and paper.lbfgs is not None:
        here["L-BFGS"], there["L-BFGS"] = same[0] / same[1], paper.lbfgs
    order = sorted(here, key=here.__getitem__)
    return "as in the paper" if order == sorted(there, key=there.__getitem__) else " < ".join(order)


def tabulate_times(result: Mapping[str, Any]) -> Table:
    """Table 1: time per sample."""
    lines: list[Line] = []
    for row in _measured(result, lines):
        paper = CLASSIFIERS.get(row["network"])
        cells, times = [], row["times"]
        for i, method in enumerate(("deepfool", "fgsm", "lbfgs")):
            published = paper.ms[i] if paper else None
            cells.append(
                milliseconds(published, method == "lbfgs") + ("*" if paper and paper.gpu and published else "")
            )
            cells.append(milliseconds(times[method]["ms"] if times[method] else None))
        slower = times["lbfgs"]["ms"] / times["deepfool"]["ms"] if times["lbfgs"] else None
        lines.append(Line(row["name"], (*cells, number(slower) if slower else DASH, str(times["deepfool"]["n"]))))
    return Table(
        "time per sample",
        ("network", "DeepFool, paper", "here", "FGSM, paper", "here", "L-BFGS, paper", "here",
         "L-BFGS / DeepFool here", "n"),
        lines,
        "Here: on this machine, one sample at a time, the median of n (of at most 5 for L-BFGS). Paper: a 2015 laptop, "
        "or, with an asterisk, a GTX 750 Ti. The machines differ, so only the ratios within a row can be compared.",
    )  # fmt: skip


def tabulate_linf(result: Mapping[str, Any]) -> Table:
    """Table 2."""
    lines: list[Line] = []
    for row in _measured(result, lines):
        paper = CLASSIFIERS[row["network"]]
        found, fgsm = row["deepfool"], row["fgsm"]
        lines.append(Line(row["name"], (
            number(paper.linf_deepfool), rho(found), ratio(found["rho"], paper.linf_deepfool),
            number(row["deepfool_pixels"]["rho"], 3), f"{found['n']:,}", number(paper.linf_fgsm),
            number(fgsm["rho_linf"], 3) if fgsm["reached"] else "never 90 %",
            ratio(fgsm["rho_linf"], paper.linf_fgsm), f"{fgsm['n']:,}",
        )))  # fmt: skip
    return Table(
        "ρ in the ℓ∞ norm",
        ("network", "DeepFool, paper", "here (95 % interval)", "here / paper", "in [0, 1]", "n", "FGSM, paper", "here",
         "here / paper", "n"),
        lines,
    )  # fmt: skip


def tabulate_errors(result: Mapping[str, Any]) -> Table:
    """Table 3, from the last epochs of Figure 6."""
    lines: list[Line] = []
    for row in _measured(result, lines):
        paper = CLASSIFIERS[row["network"]]
        published = {"deepfool": paper.tuned_deepfool, "fgsm": paper.tuned_fgsm, "clean": paper.tuned_clean}
        seeds = len(row["curves"]["clean"])
        cells = [percent(row["curves"]["clean"][0]["epochs"][0]["error"], 2)]
        for name, there in published.items():
            here, low, high = last_error(row["curves"][name])
            spread = f" ({100 * low:.2f} to {100 * high:.2f})" if seeds > 1 else ""
            cells += [percent(there), percent(here, 2) + spread]
        lines.append(Line(row["name"], (*cells, f"{row['retested']:,}, {row['train']:,}", str(seeds))))
    return Table(
        "test error after fine-tuning",
        ("network", "before", "DeepFool, paper", "here (over the seeds)", "FGSM, paper", "here (over the seeds)",
         "clean, paper", "here (over the seeds)", "n tested, trained on", "seeds"),
        lines,
    )  # fmt: skip


def tabulate_gains(result: Mapping[str, Any], experiment: str) -> Table:
    """The numbers behind Figures 6, 7 and 9: rho_adv before and after each epoch, the mean over the seeds."""
    lines: list[Line] = []
    epochs = 0
    for row in _measured(result, lines):
        for name, curve in row["curves"].items():
            for judge in curve[0]["epochs"][0]["rho"]:
                epochs = len(curve[0]["epochs"])
                means = [_mean([one["epochs"][i]["rho"][judge] for one in curve]) for i in range(epochs)]
                spread = _spread([one["epochs"][-1]["rho"][judge] for one in curve])
                grown = DASH if not means[0] or means[-1] is None else f"{change(means[-1] / means[0] - 1)} %"
                title = f"{row['name']}, {_CURVES.get(name, f'α = {name}')}"
                title += f", judged by {_CURVES[judge]}" if experiment == "figure9" else ""
                counts = f"{row['judged']:,}, {row['train']:,}, {len(curve)}"
                lines.append(Line(title, (*(number(each, 3) for each in means), spread, grown, counts)))
    return Table(
        "ρ after each extra epoch, mean over the seeds",
        ("", *(f"epoch {i}" for i in range(epochs)), "last, over the seeds", "change", "n judged, trained on, seeds"),
        lines,
        _describe_rates(result) + _name_other_scales(result),
    )


def _describe_rates(result: Mapping[str, Any]) -> str:
    """The learning rates, and the batch sizes that differ from the recipe's."""
    listed = []
    for row in result["rows"]:
        if not row["missing"]:
            rate = next(iter(row["curves"].values()))[0]["learning_rate"]
            batch = f" in batches of {row['batch']}" if row.get("batch") else ""
            listed.append(f"{row['name']} {number(rate)}{batch}")
    return f"Learning rates: {', '.join(listed)}." if listed else ""


def _name_other_scales(result: Mapping[str, Any]) -> str:
    """Rows that were taken over from another scale say so themselves; others are of the result's own."""
    others = [f"{row['name']} is from the scale {row['scale']}." for row in result["rows"] if "scale" in row]
    return "".join(f" {each}" for each in others)


_CURVES = {"deepfool": "DeepFool", "fgsm": "FGSM", "clean": "clean"}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def _spread(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{number(min(known), 3)} to {number(max(known), 3)}" if len(known) == len(values) else DASH


def list_runs(results: Mapping[str, Mapping[str, Any]]) -> Table:
    """Where the numbers of Tables 1 and 2 come from."""
    lines = []
    for name, title in (("table1", "Table 1"), ("table2", "Table 2")):
        for row in results.get(name, {}).get("rows", []):
            if row["missing"]:
                continue
            for key, method in _METHODS.items():
                found = row.get(key)
                same = key == "deepfool_pixels" and found == row["deepfool"]
                if found is not None and not same and "run" in found:
                    about = f"{title}: {row['name']}, {method}"
                    lines.append(Line(about, (f"{found['n']:,}", str(found["seed"]), found["run"])))
    return Table("the run folders", ("number", "n", "seed", "run folder"), lines)


_METHODS = {
    "deepfool": "DeepFool", "deepfool_pixels": "DeepFool in [0, 1]", "lbfgs": "L-BFGS", "thorough": "L-BFGS, thorough",
}  # fmt: skip


def count_reproduced(result: Mapping[str, Any]) -> tuple[int, int]:
    """How many measured rows of Table 1 have a rho_adv within a factor of 1.5 of the paper's, and of how many."""
    rows = [row for row in result["rows"] if not row["missing"] and row["network"] in CLASSIFIERS]
    good = 0
    for row in rows:
        times = row["deepfool"]["rho"] / CLASSIFIERS[row["network"]].deepfool
        good += 1 / FACTOR <= times <= FACTOR
    return good, len(rows)
