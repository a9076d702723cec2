"""Minimum-norm attacks side by side: `make bench-attacks`, or `python -m benchmarks.attacks --help`.

Every attack gets the same images inside [0, 1], in the same batches, one after the other in one process. For each
image the smallest perturbation that any of them found is the reference; an attack is judged by its ratio to that, and
by AttackBench's optimality, which looks only at what it had found after 2,000 passes.
Results are stored per network, norm and attack under --work, so that a run that was stopped can be resumed. All of them
are kept in OUT/results/attacks.json, in the repository: they are not measured again unless --anew names them.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import deepfool as df
from benchmarks import networks
from benchmarks.counting import Counter
from benchmarks.kept import FOLDER, pack, unpack
from benchmarks.peers import Attack, peer_attacks

NORMS = {"l2": 2.0, "linf": math.inf, "l1": 1.0}
BUDGET = 2000
"""Passes after which AttackBench looks at what an attack has found."""


def our_attacks(p: float, many: bool) -> dict[str, Callable[..., df.Adversarial]]:
    """Our attacks, with settings that match those of the other libraries."""
    box = {"bounds": (0, 1), "p": p}
    found: dict[str, Callable[..., df.Adversarial]] = {
        "deepfool": lambda m, x: df.deepfool(m, x, **box, candidates=10 if many else None),
    }
    for budget in (50, 100, 300) if many else (50, 100, 1000, 2000):
        found[f"smallest-{budget}"] = lambda m, x, b=budget: df.smallest(m, x, **box, budget=b)
    for steps in (100, 1000):
        found[f"fmn-{steps}"] = lambda m, x, s=steps: df.fmn(m, x, **box, steps=s)
        if p == 2:
            found[f"ddn-{steps}"] = lambda m, x, s=steps: df.ddn(m, x, bounds=(0, 1), steps=s)
    found["fab-100"] = lambda m, x: df.fab(m, x, **box, steps=100)
    if p == 2:
        found["superdeepfool"] = lambda m, x: df.superdeepfool(m, x, bounds=(0, 1))
    return found


def plan(p: float, many_classes: bool) -> Iterator[tuple[str, Attack]]:
    """Every attack for a norm, ours and theirs interleaved, so that other load on the machine affects both."""
    ours = {name: (lambda m, x, y, a=attack: a(m, x).x) for name, attack in our_attacks(p, many_classes).items()}
    if many_classes:  # a gradient for each of 1000 classes at every step
        ours.pop("fab-100")
    queues = [list(ours.items()), list(peer_attacks(p, many_classes).items())]
    while any(queues):
        for queue in queues:
            if queue:
                yield queue.pop(0)


def measure(attack: Attack, model: nn.Module, x: Tensor, p: float, batch: int) -> dict[str, Any]:
    """Run one attack over all images and judge its answers by a forward pass of our own."""
    counter, norms, within, seconds = Counter(model).eval(), [], [], 0.0
    for part in x.split(batch):
        with torch.no_grad():
            label = model(part).argmax(1)
        counter.watch(part, label, p, BUDGET)
        start = time.perf_counter()
        with counter.watching():
            y = attack(counter, part, label).detach()
        seconds += time.perf_counter() - start
        y = torch.nan_to_num(y).clamp(0, 1)
        with torch.no_grad():
            fooled = model(y).argmax(1) != label
        size = torch.where(fooled, (y - part).flatten(1).norm(p=p, dim=1), math.inf)
        norms.append(size)
        within.append(torch.where(counter.passes <= BUDGET, torch.minimum(size, counter.within), counter.within))
    return {
        "norms": _listed(torch.cat(norms)), "within": _listed(torch.cat(within)), "forwards": counter.forwards / len(x),
        "backwards": counter.backwards / len(x), "seconds": (seconds - counter.overhead) / len(x),
    }  # fmt: skip


def _listed(norms: Tensor) -> list[float | None]:
    return [v if math.isfinite(v) else None for v in norms.tolist()]


def run_network(name: str, norms: list[str], only: str, skip: str, options: argparse.Namespace) -> None:
    """Measure what is not stored yet. An attack that raises is reported and left out; the next run tries it again."""
    many = name == networks.MANY_CLASSES
    model, x = networks.load(name, options.images, options.networks_folder, options.folder)
    for p in (each for each in norms if each in model_norms(many)):
        for label, attack in plan(NORMS[p], many):
            file = result_file(options.work, name, p, label)
            if file.exists() or not re.search(only, label) or (skip and re.search(skip, label)):
                continue
            torch.manual_seed(0)
            started = time.perf_counter()
            try:
                result = measure(attack, model, x, NORMS[p], options.batch)
            except Exception as error:  # other people's code: the rest of the comparison goes on
                print(f"{name} {p} {label}: {type(error).__name__}: {error}", flush=True)
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(result | {"attack": label, "images": len(x)}))
            print(f"{name} {p} {label}: {time.perf_counter() - started:.0f} s", flush=True)


def result_file(work: Path, network: str, p: str, attack: str) -> Path:
    return work / network / p / f"{attack.replace(' ', '_')}.json"


def model_norms(many: bool) -> tuple[str, ...]:
    return ("l2", "linf") if many else tuple(NORMS)


def add_options(parser: argparse.ArgumentParser, images: int) -> None:
    """What every comparison on the networks asks for."""
    parser.add_argument("networks", nargs="*", help="without any: the zoo, and all of --networks-folder")
    parser.add_argument("--networks-folder", type=Path, help="other people's networks: see benchmarks/networks.py")
    parser.add_argument("--images", type=int, default=images, help="the first that the network classifies correctly")
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"), help="where tables and plots go")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, images=50)
    parser.add_argument("--folder", help="labelled ImageNet images, for efficientnet-lite0")
    parser.add_argument("--norms", nargs="*", choices=list(NORMS), default=list(NORMS))
    parser.add_argument("--only", default="", help="run only attacks whose name this regular expression finds")
    parser.add_argument("--skip", default="", help="leave out attacks whose name this regular expression finds")
    parser.add_argument("--work", type=Path, default=Path("benchmarks/results/attacks"), help="where results are kept")
    parser.add_argument("--known", type=Path, help="further results, only for the smallest norm known of each image")
    parser.add_argument("--tables", action="store_true", help="only write the tables of what is stored")
    parser.add_argument("--anew", help="measure attacks again whose name this regular expression finds")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    kept = options.out / FOLDER / "attacks.json"
    unpack(kept, options.work, lambda result: bool(options.anew and re.search(options.anew, result["attack"])))
    for name in () if options.tables else options.networks or networks.names(options.networks_folder):
        run_network(name, options.norms, options.only, options.skip, options)
    from benchmarks.tables import write_attacks

    write_attacks(options.work, options.out, options.known)
    pack(options.work, kept)


if __name__ == "__main__":
    main()
