"""Attacks that change few features, side by side: `make bench-sparse`, or `python -m benchmarks.sparse --help`.

Every attack gets the same images inside [0, 1], in the same batches. A feature counts as changed if it moved by more
than 1e-6, and a pixel if one of its channels did; what fools is judged by a forward pass of our own. Passes are forward
passes and gradient rows, counted inside the model, whichever library the attack comes from. `smallest` is run once with
each of several budgets, so that every other attack has one beside it that took no more passes.
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
BUDGETS = (30, 50, 100, 200, 500, 1000, 2000)


def our_attacks(channels: int) -> Iterator[tuple[str, Callable[..., df.Adversarial]]]:
    """Our attacks; those that count pixels only where a pixel has several channels."""
    for unit in ("feature", "pixel") if channels > 1 else ("feature",):
        box: dict[str, Any] = {"bounds": (0, 1), "unit": unit}
        end = "-pixels" if unit == "pixel" else ""
        yield f"sparsefool{end}", lambda m, x, box=box: df.sparsefool(m, x, **box)
        for budget in BUDGETS:
            yield f"smallest-{budget}{end}", lambda m, x, b=budget, box=box: df.smallest(m, x, p=0, budget=b, **box)
        for steps in (100, 1000):
            yield f"sigma-zero-{steps}{end}", lambda m, x, s=steps, box=box: df.sigma_zero(m, x, steps=s, **box)


def plan(channels: int) -> Iterator[tuple[str, Attack]]:
    for name, attack in our_attacks(channels):
        yield name, lambda m, x, y, a=attack: a(m, x).x
    yield from few_feature_attacks().items()


def measure(attack: Attack, model: nn.Module, x: Tensor, batch: int) -> dict[str, Any]:
    """Run one attack over all images, and count what it changed."""
    counter, features, pixels, seconds = Counter(model).eval(), [], [], 0.0
    for part in x.split(batch):
        with torch.no_grad():
            label = model(part).argmax(1)
        start = time.perf_counter()
        with counter.watching():
            y = attack(counter, part, label).detach()
        seconds += time.perf_counter() - start
        y = torch.nan_to_num(y).clamp(0, 1)
        with torch.no_grad():
            fooled = model(y).argmax(1) != label
        moved = (y - part).abs() > MOVED
        features += [n if hit else None for n, hit in zip(moved.flatten(1).sum(1).tolist(), fooled, strict=True)]
        pixels += [n if hit else None for n, hit in zip(moved.any(1).flatten(1).sum(1).tolist(), fooled, strict=True)]
    return {
        "features": features, "pixels": pixels, "forwards": counter.forwards / len(x),
        "backwards": counter.backwards / len(x), "seconds": seconds / len(x), "shape": list(x.shape[1:]),
    }  # fmt: skip


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
            result = measure(attack, model, x, options.batch)
        except Exception as error:  # other people's code: the rest of the comparison goes on
            print(f"{name} {label}: {type(error).__name__}: {error}", flush=True)
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(result | {"attack": label, "images": len(x)}))
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
