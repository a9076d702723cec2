"""Robust accuracy read off our norms, beside attacks at fixed radii: `python -m benchmarks.accuracy --help`.

The norms of one attack of ours give the robust accuracy at every radius. Attacks that are made for one radius should
find no other: torchattacks' APGD-CE, targeted APGD, targeted FAB and Square, which are those of AutoAttack, run at five
radii per network and norm. As in AutoAttack, each gets the images that those before it have left. Run
`benchmarks.attacks` before, which stores the norms. Results are stored under --work, so that a run that was stopped can
be resumed, and kept in OUT/results/accuracy.json, in the repository.
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
from torch import Tensor, nn

from benchmarks import networks
from benchmarks.attacks import NORMS, add_options, result_file
from benchmarks.kept import FOLDER, pack, unpack
from benchmarks.peers import Attack, _import_torchattacks

QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Of the smallest norms known: there the radii are, rounded to as few digits as keep them apart."""

SLACK = 1e-5
"""How much larger than the radius a perturbation may be, as a share of it: rounding of single precision."""

ORDER = ("APGD-CE", "APGD-T", "FAB-T", "Square")
"""AutoAttack's: each gets the images that those before it have left."""

HEAD = """\
# Robust accuracy at fixed radii

Made by `python -m benchmarks.accuracy`. The norms of {ours} say how many images are still classified correctly at any
radius. Beside them are attacks that are made for a single radius, run anew at each: torchattacks' APGD with cross
entropy, targeted APGD (100 steps, nine classes), targeted FAB (100 steps, nine classes) and Square (5,000 queries). As
in AutoAttack, each of them gets the images that those above it have left. Each entry is the number of images that are
left after it. A difference above zero means that the four together broke more images than our norms say; below zero,
that our norms break more. The radii are quantiles of the norms, rounded.
"""


def radius_attacks(p: str, radius: float) -> dict[str, Attack]:
    """torchattacks' parts of AutoAttack, at one radius."""
    package, norm = _import_torchattacks(), {"l2": "L2", "linf": "Linf"}[p]
    at: dict[str, Any] = {"norm": norm, "eps": radius}
    return {
        "APGD-CE": lambda m, x, y: package.APGD(m, **at, steps=100, loss="ce")(x, y),
        "APGD-T": lambda m, x, y: package.APGDT(m, **at, steps=100, n_classes=10)(x, y),
        "FAB-T": lambda m, x, y: package.FAB(m, **at, steps=100, multi_targeted=True, n_classes=10)(x, y),
        "Square": lambda m, x, y: package.Square(m, **at, n_queries=5000)(x, y),
    }


def choose_radii(norms: list[float]) -> list[float]:
    """Five round numbers around the median norm.

    >>> choose_radii([0.011, 0.0234, 0.0311, 0.0398, 0.052])
    [0.016, 0.025, 0.031, 0.038, 0.047]
    """
    found = np.quantile(norms, QUANTILES)
    for digits in range(2, 6):
        rounded = sorted({float(f"{v:.{digits}g}") for v in found})
        if len(rounded) == len(QUANTILES):
            break
    return rounded


def find_broken(attack: Attack, model: nn.Module, x: Tensor, p: float, radius: float, batch: int) -> Tensor:
    """Which images an attack broke within the radius, judged by a forward pass of our own."""
    broken = [torch.zeros(0, dtype=torch.bool)]
    for part in x.split(batch) if len(x) else ():
        with torch.no_grad():
            label = model(part).argmax(1)
        y = torch.nan_to_num(attack(model, part, label).detach()).clamp(0, 1)
        size = (y - part).flatten(1).norm(p=p, dim=1)
        with torch.no_grad():
            broken.append((model(y).argmax(1) != label) & (size <= radius * (1 + SLACK)))
    return torch.cat(broken)


def run_network(name: str, options: argparse.Namespace) -> None:
    model, x = networks.load(name, options.images, options.networks_folder)
    for p in ("linf", "l2"):
        known = _read_known(options.norms_from / name / p)
        if not known:
            print(f"{name} {p}: no norms in {options.norms_from}")
            continue
        place = options.work / name / p
        place.mkdir(parents=True, exist_ok=True)
        if not (place / "radii.json").exists():
            (place / "radii.json").write_text(json.dumps(choose_radii(known)))
        for radius in json.loads((place / "radii.json").read_text()):
            broken = torch.zeros(len(x), dtype=torch.bool)
            attacks = radius_attacks(p, radius)
            for label in ORDER:
                file = place / f"{label}_{radius:g}.json"
                if not file.exists():
                    torch.manual_seed(0)
                    start = time.perf_counter()
                    broken[~broken] = find_broken(attacks[label], model, x[~broken], NORMS[p], radius, options.batch)
                    seconds = time.perf_counter() - start
                    result = {"attack": label, "radius": radius, "broken": broken.tolist(), "seconds": seconds}
                    file.write_text(json.dumps(result))
                    print(f"{name} {p} {radius:g} {label}: {int((~broken).sum())} left, {seconds:.0f} s", flush=True)
                broken = torch.tensor(json.loads(file.read_text())["broken"])


def _read_known(folder: Path) -> list[float]:
    """The smallest norm that any stored attack found, of each image that was fooled."""
    found = [json.loads(file.read_text())["norms"] for file in folder.glob("*.json")]
    best = (min((v for v in norms if v is not None), default=math.inf) for norms in zip(*found, strict=True))
    return [v for v in best if math.isfinite(v)]


def write_accuracy(work: Path, norms_from: Path, ours: str, out: Path) -> None:
    """One table per network and norm, and the largest difference of all."""
    tables: list[str] = []
    largest: list[tuple[int, str]] = []
    by_gradients: list[tuple[int, str]] = []
    for place in sorted(work.glob("*/*")):
        network, p = place.parent.name, place.name
        file = result_file(norms_from, network, p, ours)
        norms = [math.inf if v is None else v for v in json.loads(file.read_text())["norms"]] if file.exists() else None
        radii = json.loads((place / "radii.json").read_text())
        found = {radius: dict(_read_broken(place, radius)) for radius in radii}
        radii = [radius for radius in radii if found[radius]]
        if not radii:
            continue
        count = len(next(iter(found[radii[0]].values())))
        rows = {
            name: [count - sum(found[radius][name]) if name in found[radius] else "–" for radius in radii]
            for name in ORDER
        }
        together = [count - max(map(sum, found[radius].values())) for radius in radii]
        if norms:
            own = [sum(norm > radius for norm in norms) for radius in radii]
            differences = [mine - theirs for mine, theirs in zip(own, together, strict=True)]
            rows = {f"**{ours}**": list(own), **rows, "difference": [f"{d:+d}" if d else "0" for d in differences]}
            named = [f"{network}, {p}, at {r:g}" for r in radii]
            largest += zip(differences, named, strict=True)
            by_gradients += [
                (mine - count + sum(found[radius][ORDER[-2]]), name)
                for mine, radius, name in zip(own, radii, named, strict=True)
                if ORDER[-2] in found[radius]
            ]
        tables += [f"## {network}, {p}, {count} images", "",
                   "| | " + " | ".join(f"{r:g}" for r in radii) + " |", "|---|" + "---|" * len(radii)]  # fmt: skip
        tables += ["| " + " | ".join([name, *map(str, values)]) + " |" for name, values in rows.items()] + [""]
    out.mkdir(parents=True, exist_ok=True)
    said = [_say_largest("All four", largest), _say_largest("Without Square, by gradients alone", by_gradients)]
    lines = [HEAD.format(ours=f"`{ours}`"), *filter(None, said), "", *tables]
    (out / "accuracy.md").write_text("\n".join(lines).rstrip() + "\n")


def _read_broken(place: Path, radius: float) -> Iterator[tuple[str, list[bool]]]:
    for file in sorted(place.glob(f"*_{radius:g}.json")):
        result = json.loads(file.read_text())
        yield result["attack"], result["broken"]


def _say_largest(who: str, differences: list[tuple[int, str]]) -> str:
    if not differences:
        return ""
    worst, least = max(differences), min(differences)
    within, over = sum(abs(d) <= 1 for d, _ in differences), sum(d > 1 for d, _ in differences)
    return (
        f"- {who}: the largest difference is {worst[0]:+d} ({worst[1]}), the smallest {least[0]:+d} ({least[1]}). Of "
        f"{len(differences)} radii {within} agree within one image, and on {over} the difference is above one."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, images=50)
    parser.add_argument("--norms-from", type=Path, default=Path("benchmarks/results/attacks"), help="stored norms")
    parser.add_argument("--ours", default="smallest-1000", help="the attack whose stored norms are compared")
    parser.add_argument("--work", type=Path, default=Path("benchmarks/results/accuracy"), help="where results are kept")
    parser.add_argument("--tables", action="store_true", help="only write the tables of what is stored")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    kept = options.out / FOLDER
    unpack(kept / "attacks.json", options.norms_from)
    unpack(kept / "accuracy.json", options.work)
    for name in () if options.tables else options.networks or networks.names(options.networks_folder):
        run_network(name, options)
    write_accuracy(options.work, options.norms_from, options.ours, options.out)
    pack(options.work, kept / "accuracy.json")


if __name__ == "__main__":
    main()
