"""Certified lower bounds beside the perturbations found: `make bench-certify`.

For each network and norm, `certify` on the first images that the network classifies correctly, inside [0, 1]. Results
are stored per image under --work, so that a run that was stopped can be resumed; --tables only writes the page.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.milp import train_digits
from torch import Tensor, nn

import deepfool as df
from benchmarks import networks
from benchmarks.attacks import result_file
from deepfool.certificates import timing

DIGITS = "digits 64-16-16-10"
BUDGET = 1000
"""Passes of `smallest` for the upper bound."""
NORMS = {"l2": 2.0, "linf": math.inf, "l1": 1.0}
ASKED = {
    DIGITS: ((2.0,), "exact on ≥ 95 %", "exact on ≥ 95 %"),
    "mlp-mnist-small": ((2.0,), "exact on ≥ 95 %", "exact on ≥ 95 %"),
    "fc500-mnist": ((1.0, 10.0), ".62 / .70", ".62 / .70"),
    "conv-mnist-certified": ((3.0,), "≥ .30", "≥ .85"),
    "conv-mnist-linf": ((10.0,), "–", "≥ .5"),
    "lenet-mnist": ((10.0,), "≥ .10", "≥ .20"),
    "lenet-cifar10": ((30.0,), "–", "–"),
}
"""Seconds an image, and what was aimed at in l2 and linf: a median ratio, or a share that is exact."""

HEAD = """\
# Certified lower bounds

Made by `make bench-certify`. On each network `certify` gets the first images that are classified correctly, inside
[0, 1], and an upper bound by `smallest` with 1000 passes. The ratio is the certified lower bound over the upper bound,
after branch and bound: 1 means that the smallest perturbation is known. Seconds are CPU seconds of one thread for each
image, without the attack; a pass that has begun is finished, so a row can take longer than it was given. The digits
network is trained on the spot, on scikit-learn's digits. A full run has 50 images in each row, and 20 where an image
takes 10 s or more; a row with fewer says so. Other load on the machine slows CPU seconds down too.
"""


def load(name: str, images: int) -> tuple[nn.Module, Tensor]:
    if name == DIGITS:
        return train_digits(16, images)
    return networks.load(name, images)


def run_cell(name: str, norm: str, seconds: float, images: int, work: Path) -> None:
    """Measure the images of a network in a norm that are not stored yet."""
    model, x = load(name, images)
    files = [result_file(work, name, f"{norm}-{seconds:g}s", str(i)) for i in range(len(x))]
    missing = torch.tensor([i for i, file in enumerate(files) if not file.exists()], dtype=torch.long)
    attacked = df.smallest(model, x[missing], p=NORMS[norm], bounds=(0, 1), budget=BUDGET)
    for at, i in enumerate(missing.tolist()):
        file, found = files[i], attacked.rows(torch.tensor([at]))
        answer = df.certify(model, x[i : i + 1], p=NORMS[norm], bounds=(0, 1), upper=found, seconds=seconds)
        file.parent.mkdir(parents=True, exist_ok=True)
        row = {"lower": float(answer.lower), "upper": float(answer.upper), "found": float(found.norm),
               "exact": bool(answer.exact), "seconds": float(answer.seconds), "reason": answer.reason[0]}  # fmt: skip
        file.write_text(json.dumps(row))
        print(name, norm, seconds, i, row, flush=True)


def read(work: Path) -> dict[tuple[str, str, float], list[dict[str, Any]]]:
    """What is stored, by network, norm and seconds, in the order of the table."""
    cells = {}
    for name, (times, *_) in ASKED.items():
        for norm in NORMS:
            for seconds in times:
                folder = result_file(work, name, f"{norm}-{seconds:g}s", "0").parent
                rows = [
                    json.loads(file.read_text()) for file in sorted(folder.glob("*.json"), key=lambda f: int(f.stem))
                ]
                if rows:
                    cells[name, norm, seconds] = rows
    return cells


def ratios(rows: list[dict[str, Any]]) -> np.ndarray:
    return np.array([1.0 if row["lower"] == row["upper"] else row["lower"] / row["upper"] for row in rows])


def tabulate(cells: dict[tuple[str, str, float], list[dict[str, Any]]]) -> Iterator[str]:
    yield "| network | norm | seconds given | images | ratio: q25 | median | q75 | exact | seconds: median | aim |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for (name, norm, seconds), rows in cells.items():
        ratio = ratios(rows)
        low, middle, high = np.quantile(ratio, [0.25, 0.5, 0.75])
        aim = {"l2": ASKED[name][1], "linf": ASKED[name][2]}.get(norm, "–")
        exact, spent = np.mean([row["exact"] for row in rows]), np.median([row["seconds"] for row in rows])
        yield (
            f"| {name} | {norm} | {seconds:g} | {len(rows)} | {low:.3f} | {middle:.3f} | {high:.3f} "
            f"| {exact:.0%} | {spent:.2f} | {aim} |"
        )


def tabulate_attack(cells: dict[tuple[str, str, float], list[dict[str, Any]]]) -> Iterator[str]:
    """`smallest` against the minimum, where that is known."""
    yield "| network | norm | images with a known minimum | `smallest`, 1000 passes: mean | p95 | worst |"
    yield "|---|---|---|---|---|---|"
    for (name, norm, _), rows in cells.items():
        exact = [row for row in rows if row["exact"] and math.isfinite(row["upper"])]
        if len(exact) >= 5:
            ratio = np.array([row["found"] / row["upper"] for row in exact])
            p95 = np.quantile(ratio, 0.95, method="higher")
            yield f"| {name} | {norm} | {len(exact)} | {ratio.mean():.4f} | {p95:.3f} | {ratio.max():.3f} |"


def write_page(work: Path, out: Path) -> None:
    cells = read(work)
    tried = Path(__file__).with_name("certify_tried.md").read_text()
    page = "\n".join([
        HEAD, *tabulate(cells), "", "![brackets](certify.svg)", "",
        "Each line is an image: from its certified lower bound to the smallest perturbation known, as shares of it.",
        "", "## The attack beside the minimum", "", *tabulate_attack(cells), "", tried,
    ])  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    (out / "certify.md").write_text(page)
    if cells:
        draw(cells, out / "certify.svg")
    print(page)


def draw(cells: dict[tuple[str, str, float], list[dict[str, Any]]], file: Path) -> None:
    """The brackets: one panel per cell, images in the order of their lower bounds."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "deepfool"
    import matplotlib.pyplot as plt

    columns = min(4, len(cells))
    lines = math.ceil(len(cells) / columns)
    figure, axes = plt.subplots(
        lines, columns, squeeze=False, layout="constrained", figsize=(3.2 * columns, 2.2 * lines)
    )
    for axis in axes.flat[len(cells) :]:
        axis.axis("off")
    for axis, ((name, norm, seconds), rows) in zip(axes.flat, cells.items(), strict=False):
        ratio = np.sort(ratios(rows))
        place = np.arange(len(ratio))
        axis.vlines(place, ratio, 1, color="#9aa5b1", linewidth=1)
        axis.plot(place, ratio, "o", color="#2457a6", markersize=2.5)
        axis.axhline(1, color="#c2571a", linewidth=1)
        axis.set(title=f"{name}, {norm}, {seconds:g} s", ylim=(0, 1.05), xticks=[])
        axis.title.set_fontsize(8)
        axis.tick_params(labelsize=7)
    figure.supylabel("distance / smallest perturbation known", fontsize=8)
    figure.savefig(file, metadata={"Date": None}, facecolor="white")
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", help=f"of {', '.join(ASKED)}; without any: all")
    parser.add_argument("--norms", nargs="*", default=["l2", "linf"], choices=list(NORMS))
    parser.add_argument("--images", type=int, help="without it: 50, and 20 where an image takes 10 s or more")
    parser.add_argument("--seconds", type=float, nargs="*", help="only these of the times of a network")
    parser.add_argument("--work", type=Path, default=Path("benchmarks/results/certify"), help="where results are kept")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"), help="where the page goes")
    parser.add_argument("--tables", action="store_true", help="only write the page of what is stored")
    options = parser.parse_args()
    torch.set_num_threads(1)
    timing.now = time.process_time  # others may be using this machine
    for name in () if options.tables else options.networks or ASKED:
        for seconds in options.seconds or ASKED[name][0]:
            for norm in options.norms:
                run_cell(name, norm, seconds, options.images or (20 if seconds >= 10 else 50), options.work)
    write_page(options.work, options.out)


if __name__ == "__main__":
    main()
