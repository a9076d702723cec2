"""Attacks that change few features, side by side: `make bench-sparse`, or `python -m benchmarks.sparse --help`.

Every attack gets the same images inside [0, 1], in the same batches. A feature counts as changed if it moved by more
than 1e-6, and a pixel if one of its channels did; what fools is judged by a forward pass of our own. Passes are forward
passes and gradient rows, counted inside the model, whichever library the attack comes from. `smallest` is run once, and
the model remembers what it had found after so many passes: a larger budget continues a smaller one.
Results are stored per network and attack under --work, so that a run that was stopped can be resumed.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import deepfool as df
from benchmarks import networks
from benchmarks.attacks import add_options
from benchmarks.counting import Counter
from benchmarks.peers import Attack, few_feature_attacks

MOVED = 1e-6
"""What counts as a change of a feature: less is rounding of `x + (y - x)`."""
BUDGETS = (20, 50, 80, 100, 150, 200, 250, 300, 500, 1000)
"""Passes after which `smallest` is looked at, besides its whole budget."""
WHOLE = 2000


class Milestones(Counter):
    """A model that remembers the fewest features and pixels, of points that fool, after so many passes of a sample."""

    def begin(self, x: Tensor, labels: Tensor) -> None:
        self.watch(x, labels, 0, WHOLE)
        self.clean, self.labels = x, labels
        self.fewest = {(b, unit): torch.full((len(x),), torch.inf) for b in BUDGETS for unit in ("features", "pixels")}

    @torch.no_grad()
    def _remember(self, x: Tensor, scores: Tensor) -> None:
        if self.rows is None:
            return
        hit = scores.argmax(1) != self.labels[self.rows]
        i = self.rows[hit]
        counts = count_moved(x.detach()[hit], self.clean[i])
        for (budget, unit), fewest in self.fewest.items():
            soon = self.passes[i] <= budget
            fewest.scatter_reduce_(0, i[soon], counts[unit][soon].float(), "amin")


def count_moved(y: Tensor, x: Tensor) -> dict[str, Tensor]:
    """How many features and pixels of each sample differ."""
    moved = (y - x).abs() > MOVED
    return {"features": moved.flatten(1).sum(1), "pixels": moved.any(1).flatten(1).sum(1)}


def our_attacks(channels: int) -> Iterator[tuple[str, Callable[..., df.Adversarial]]]:
    """Our attacks; those that count pixels only where a pixel has several channels."""
    for unit in ("feature", "pixel") if channels > 1 else ("feature",):
        box: dict[str, Any] = {"bounds": (0, 1), "unit": unit}
        end = "-pixels" if unit == "pixel" else ""
        yield f"sparsefool{end}", lambda m, x, box=box: df.sparsefool(m, x, **box)
        yield f"smallest-{WHOLE}{end}", lambda m, x, box=box: df.smallest(m, x, p=0, budget=WHOLE, **box)
        for steps in (100, 1000):
            yield f"sigma-zero-{steps}{end}", lambda m, x, s=steps, box=box: df.sigma_zero(m, x, steps=s, **box)


def plan(channels: int) -> Iterator[tuple[str, Attack]]:
    for name, attack in our_attacks(channels):
        yield name, lambda m, x, y, a=attack: a(m, x).x
    yield from few_feature_attacks().items()


def measure(attack: Attack, model: nn.Module, x: Tensor, batch: int) -> tuple[dict[str, Any], dict[int, Any]]:
    """Run one attack over all images, and count what it changed: in the end, and at the milestones."""
    counter, seconds = Milestones(model).eval(), 0.0
    counts: dict[str, list[Tensor]] = {"features": [], "pixels": []}
    early: dict[tuple[int, str], list[Tensor]] = {}
    for part in x.split(batch):
        with torch.no_grad():
            label = model(part).argmax(1)
        counter.begin(part, label)
        start = time.perf_counter()
        with counter.watching():
            y = attack(counter, part, label).detach()
        seconds += time.perf_counter() - start
        y = torch.nan_to_num(y).clamp(0, 1)
        with torch.no_grad():
            fooled = model(y).argmax(1) != label
        for unit, found in count_moved(y, part).items():
            counts[unit].append(torch.where(fooled, found.float(), torch.inf))
        for key, fewest in counter.fewest.items():
            early.setdefault(key, []).append(fewest)
    passes = {"forwards": counter.forwards / len(x), "backwards": counter.backwards / len(x)}
    about = {"seconds": (seconds - counter.overhead) / len(x), "shape": list(x.shape[1:]), "images": len(x)}
    whole = {unit: _listed(torch.cat(found)) for unit, found in counts.items()}
    at = {b: {unit: _listed(torch.cat(early[b, unit])) for unit in counts} | {"passes": b} for b in BUDGETS}
    return whole | passes | about, {b: found | {"shape": about["shape"], "images": len(x)} for b, found in at.items()}


def _listed(counts: Tensor) -> list[int | None]:
    return [int(v) if v < torch.inf else None for v in counts.tolist()]


def run_network(name: str, options: argparse.Namespace) -> None:
    """Measure what is not stored yet. An attack that raises is reported and left out; the next run tries it again."""
    model, x = networks.load(name, options.images, options.networks_folder)
    for label, attack in plan(x.shape[1]):
        file = options.work / name / f"{label.replace(' ', '_')}.json"
        if file.exists() or not re.search(options.only, label) or (options.skip and re.search(options.skip, label)):
            continue
        torch.manual_seed(0)
        started = time.perf_counter()
        try:
            result, early = measure(attack, model, x, options.batch)
        except Exception as error:  # other people's code: the rest of the comparison goes on
            print(f"{name} {label}: {type(error).__name__}: {error}", flush=True)
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(result | {"attack": label}))
        for budget, found in early.items() if label.startswith("smallest") else ():
            name_then = label.replace(str(WHOLE), str(budget))
            (file.parent / f"{name_then}.json").write_text(json.dumps(found | {"attack": name_then}))
        print(f"{name} {label}: {time.perf_counter() - started:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, images=100)
    parser.add_argument("--only", default="", help="run only attacks whose name this regular expression finds")
    parser.add_argument("--skip", default="", help="leave out attacks whose name this regular expression finds")
    parser.add_argument("--work", type=Path, default=Path("benchmarks/results/sparse"), help="where results are kept")
    parser.add_argument("--tables", action="store_true", help="only write the tables of what is stored")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name in () if options.tables else options.networks or networks.names(options.networks_folder):
        run_network(name, options)
    from benchmarks.sparse_page import write

    write(options.work, options.out / "sparse.md")


if __name__ == "__main__":
    main()
