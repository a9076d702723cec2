"""Turn the stored results of `benchmarks.sparse` into the page docs/benchmarks/sparse.md."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.optimality import mark
from benchmarks.peers import is_peer

HEAD = """\
# Few features, side by side

Made by `make bench-sparse`. All attacks ran on the same images inside [0, 1]: the first ones that the network
classifies correctly; the heading of each table says how many there were. Counted is how many features an attack changed
(a pixel of three channels has three), and how many pixels. The mean is over the images that it fooled. An image that it
did not fool counts as infinite in the median. Passes are forward passes plus backward rows per image. `smallest` was
run once, and looked at after so many passes. What is ours is bold. An attack that is missing from a table was not
run on that network, or raised an error: foolbox's FMN raised an `IndexError` ("index 784 is out of bounds") on
mnist-net_256x6, wong_kolter_mnist, wong_kolter_cifar_8px, conv-mnist-linf and conv-mnist-certified.
"""

COMPARED = """\
Each attack beside `smallest` with no more passes: mean and median of features, and the share fooled. Both means are
over the images that the attack fooled; medians are over all images.
"""

PUBLISHED = """\
SparseFool's paper (CVPR 2019) gives medians of 1.7 % of the pixels on MNIST and of 1.1 to 1.3 % on CIFAR-10, on other
networks than these.
"""


def write(work: Path, page: Path) -> None:
    """One table per network, after a table of what stands beside what."""
    tables = {folder.name: _read(folder) for folder in sorted(work.iterdir()) if folder.is_dir()}
    lines = [HEAD, "## In one table", "", *_compare(tables), "", "## Share of pixels", "", PUBLISHED, *_share(tables)]
    for network, found in tables.items():
        lines += ["", f"## {network}, {_images(found)} images", ""]
        lines += ["| attack | features: mean | median | pixels: mean | median | fooled | passes |"]
        lines += ["|---|---|---|---|---|---|---|"]
        for each in sorted(found, key=lambda each: (_median(each, "features"), _mean(each, "features"))):
            lines.append(
                f"| {mark(each['attack'])} | {_mean(each, 'features'):.2f} | {_number(_median(each, 'features'))} "
                f"| {_mean(each, 'pixels'):.2f} | {_number(_median(each, 'pixels'))} | {_fooled(each):.0%} "
                f"| {_passes(each):.0f} |"
            )
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join(lines) + "\n")


def _read(folder: Path) -> list[dict[str, Any]]:
    """The results on a network, cut to the images that all attacks had."""
    found = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    least = min(each["images"] for each in found)
    return [each | {unit: each[unit][:least] for unit in ("features", "pixels")} for each in found]


def _compare(tables: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Every other attack beside the `smallest` that took no more passes."""
    lines = [COMPARED]
    lines += ["| network | attack | passes | attack: mean / median, fooled | smallest | mean / median, fooled |"]
    lines += ["|---|---|---|---|---|---|"]
    for network, found in tables.items():
        ours = [each for each in found if each["attack"].startswith("smallest") and "pixels" not in each["attack"]]
        for each in found:
            other = is_peer(each["attack"]) or each["attack"] in ("sparsefool", "sigma-zero-1000")
            beside = [own for own in ours if _passes(own) <= _passes(each) + 1]
            if not other or not beside:
                continue
            own = max(beside, key=_passes)
            lines.append(
                f"| {network} ({_images(found)}) | {mark(each['attack'])} | {_passes(each):.0f} | {_told(each)} "
                f"| {own['attack']} | {_told(own, each)} |"
            )
    return lines


def _share(tables: dict[str, list[dict[str, Any]]]) -> list[str]:
    """The median share of pixels, where SparseFool's paper has one."""
    lines = ["| network | attack | median share of pixels |", "|---|---|---|"]
    for network in ("lenet-mnist", "lenet-cifar10"):
        for each in tables.get(network, ()):
            pixels = each["shape"][-1] * each["shape"][-2]
            wanted = each["attack"].startswith(("smallest-1000", "smallest-2000")) or "sparsefool" in each["attack"]
            if wanted and math.isfinite(_median(each, "pixels")):
                share = _median(each, "pixels") / pixels
                lines.append(f"| {network} ({len(each['pixels'])}) | {mark(each['attack'])} | {100 * share:.2f} % |")
    return lines


def _told(each: dict[str, Any], other: dict[str, Any] | None = None) -> str:
    """The mean over the images that the `other` attack fooled too; median and share over all."""
    both = [a if b is not None else None for a, b in zip(each["features"], (other or each)["features"], strict=True)]
    mean = _mean({"features": both}, "features")
    return f"{mean:.2f} / {_number(_median(each, 'features'))}, {_fooled(each):.0%}"


def _images(found: list[dict[str, Any]]) -> int:
    return min(len(each["features"]) for each in found)


def _passes(each: dict[str, Any]) -> float:
    return float(each["passes"]) if "passes" in each else float(each["forwards"] + each["backwards"])


def _mean(each: dict[str, Any], unit: str) -> float:
    known = [count for count in each[unit] if count is not None]
    return float(np.mean(known)) if known else math.inf


def _median(each: dict[str, Any], unit: str) -> float:
    return float(np.median([math.inf if count is None else count for count in each[unit]]))


def _fooled(each: dict[str, Any]) -> float:
    return float(np.mean([count is not None for count in each["features"]]))


def _number(value: float) -> str:
    return f"{value:g}" if math.isfinite(value) else "not known"
