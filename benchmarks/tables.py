"""Turn the stored results into Markdown tables and a plot of norm against passes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.labels import place_labels
from benchmarks.optimality import find_optimality, mark, summarise_cells
from benchmarks.peers import is_peer

NORMS = ("l2", "linf", "l1")


HEAD = """\
# Minimum-norm attacks, side by side

Made by `make bench-attacks`. All attacks ran on the same images inside [0, 1], one after the other: the first ones that
the network classifies correctly. For each image, the ratio is the norm divided by the smallest norm that is known. If
an attack did not fool an image, its ratio counts as infinite in the quantiles, and the mean is not given. Passes are
forward passes plus backward rows per image. What is ours is bold.
"""


def write_attacks(work: Path, out: Path, known: Path | None = None) -> None:
    """One table per network and norm, what they say together, and one picture for all of them.

    The folder `known` has further results on the same images, which count only for what is the smallest norm.
    """
    out.mkdir(parents=True, exist_ok=True)
    cells = {}
    for folder in sorted(work.glob("*/*"), key=lambda f: (f.parent.name, NORMS.index(f.name))):
        others = _read(known / folder.parent.name / folder.name) if known else []
        if rows := summarise(_read(folder), others):
            cells[folder.parent.name, folder.name] = rows
    lines = [HEAD, *summarise_cells(cells)]
    for (network, p), rows in cells.items():
        lines += [f"## {network}, {p}, {rows[0]['images']} images", "",
                  "| attack | mean norm | ratio: mean | median | 95 % | worst | optimality | fooled | forwards "
                  "| backwards |", "|---|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
        for row in rows:
            lines.append(
                f"| {mark(row['attack'])} | {_number(row['norm'], 4)} | {_number(row['mean'], 4)} "
                f"| {_number(row['median'], 4)} | {_number(row['p95'], 3)} | {_number(row['worst'], 3)} "
                f"| {_number(row['optimality'], 3)} | {row['fooled']:.1%} | {row['forwards']:.0f} "
                f"| {row['backwards']:.0f} |"
            )
        lines.append("")
    lines += ["![norm against passes](attacks.svg)", ""]
    (out / "attacks.md").write_text("\n".join(lines))
    if cells:
        draw([(f"{network}, {p}", rows) for (network, p), rows in cells.items()], out / "attacks.svg")


def _read(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]


def summarise(results: list[dict[str, Any]], others: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
    """Judge every attack by the best norm known for each image; best mean ratio first."""
    if not results:
        return []
    norms, within = _table(results, "norms"), _table(results, "within")
    best = np.minimum(norms.min(0), within.min(0))
    if others:
        best = np.minimum(best, _table(others, "norms").min(0))
    known = np.isfinite(best) & (best > 0)
    rows = []
    for result, own, early in zip(results, norms, within, strict=True):
        ratio = own[known] / best[known]
        rows.append(
            result | {"norm": own.mean(), "mean": ratio.mean(), "median": np.median(ratio),
                      "p95": np.quantile(ratio, 0.95, method="higher"), "worst": ratio.max(),
                      "optimality": find_optimality(early[known], best[known]), "fooled": np.isfinite(own).mean()}
        )  # fmt: skip
    return sorted(rows, key=lambda row: (row["mean"], row["median"]))


def _table(results: list[dict[str, Any]], key: str) -> Any:
    return np.array([[math.inf if v is None else v for v in result[key]] for result in results])


README = ("smallest-100", "smallest-1000")


def print_summary(work: Path, known: Path | None = None) -> None:
    """Print the table of the README: by network and norm, our mean ratios and the best mean ratio of a peer."""
    head = [f"{norm}: {attack}" for norm in NORMS for attack in (*README, "best peer")]
    print("| network | " + " | ".join(head) + " |\n|---|" + "---|" * len(head))
    for network in sorted(work.iterdir()):
        cells = []
        for norm in NORMS:
            folder = network / norm
            others = _read(known / network.name / norm) if known else None
            rows = {row["attack"]: row for row in summarise(_read(folder), others)}
            cells += [f"{rows[attack]['mean']:.3f}" if attack in rows else "–" for attack in README]
            peers = [row for row in rows.values() if row["attack"].startswith(("adv-lib", "foolbox"))]
            best = min(peers, key=lambda row: row["mean"], default=None)
            cells.append(f"{best['mean']:.3f} {best['attack'].removeprefix('adv-lib ')}" if best else "–")
        print(f"| {network.name} | " + " | ".join(cells) + " |")


def draw(panels: list[tuple[str, list[dict[str, Any]]]], file: Path) -> None:
    """Median ratio to the best known against passes, both on logarithmic axes; ours in blue, peers in orange."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    columns = min(3, len(panels))
    figure, axes = plt.subplots(
        math.ceil(len(panels) / columns), columns, squeeze=False, layout="constrained",
        figsize=(6 * columns, 4.6 * math.ceil(len(panels) / columns)),
    )  # fmt: skip
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    named: list[tuple[Any, tuple[float, float, str]]] = []
    for axis, (title, rows) in zip(axes.flat, panels, strict=False):
        for row in rows:
            if not math.isfinite(row["median"]):
                continue
            peer = is_peer(row["attack"])
            where = (row["forwards"] + row["backwards"], max(row["median"] - 1, 1e-5))
            axis.scatter(*where, color="#d55e00" if peer else "#0072b2", marker="x" if peer else "o", s=28)
            named.append((axis, (*where, row["attack"])))
        axis.set(
            xscale="log", yscale="log", title=title, xlabel="passes per image", ylabel="median excess over the best"
        )
        axis.margins(0.12)
        axis.grid(alpha=0.3)
    for axis in axes.flat:
        place_labels(axis, [point for of, point in named if of is axis])
    figure.savefig(file, metadata={"Date": None})


def _number(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else "-"


if __name__ == "__main__":
    print_summary(Path("benchmarks/results/attacks"))
