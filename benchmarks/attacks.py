"""Minimum-norm attacks side by side: `make bench-attacks`, or `python -m benchmarks.attacks --help`.

Every attack gets the same images inside [0, 1], in the same batches, one after the other in one process. For each
image the smallest perturbation that any of them found is the reference; an attack is judged by its ratio to that.
Results are stored per network, norm and attack under --work, so that a run that was stopped can be resumed.
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
from benchmarks.counting import Counter
from benchmarks.peers import Attack as PeerAttack
from benchmarks.peers import adv_lib_attacks, foolbox_attacks

NORMS = {"l2": 2.0, "linf": math.inf, "l1": 1.0}
NETWORKS = ("fc500-mnist", "lenet-mnist", "lenet-cifar10", "nin-cifar10", "efficientnet-lite0")


def our_attacks(p: float, many: bool) -> dict[str, Callable[..., df.Adversarial]]:
    """Our attacks, with settings that match those of the other libraries."""
    box = {"bounds": (0, 1), "p": p}
    found: dict[str, Callable[..., df.Adversarial]] = {
        "deepfool": lambda m, x: df.deepfool(m, x, **box, candidates=10 if many else None),
    }
    for budget in (50, 100, 300 if many else 1000):
        found[f"smallest-{budget}"] = lambda m, x, b=budget: df.smallest(m, x, **box, budget=b)
    for steps in (100, 1000):
        found[f"fmn-{steps}"] = lambda m, x, s=steps: df.fmn(m, x, **box, steps=s)
        if p == 2:
            found[f"ddn-{steps}"] = lambda m, x, s=steps: df.ddn(m, x, bounds=(0, 1), steps=s)
    found["fab-100"] = lambda m, x: df.fab(m, x, **box, steps=100)
    if p == 2:
        found["superdeepfool"] = lambda m, x: df.superdeepfool(m, x, bounds=(0, 1))
    return found


def plan(p: float, many_classes: bool) -> Iterator[tuple[str, PeerAttack]]:
    """Every attack for a norm, ours and theirs interleaved, so that other load on the machine affects both."""
    ours = {name: (lambda m, x, y, a=attack: a(m, x).x) for name, attack in our_attacks(p, many_classes).items()}
    theirs = {}
    for steps in (100, 1000):
        theirs |= adv_lib_attacks(p, steps) | foolbox_attacks(p, steps)
    if many_classes:  # a gradient for each of 1000 classes at every step
        theirs = {name: a for name, a in theirs.items() if "adv-lib deepfool" not in name and "fab" not in name}
        ours.pop("fab-100")
    queues = [list(ours.items()), list(theirs.items())]
    while any(queues):
        for queue in queues:
            if queue:
                yield queue.pop(0)


def measure(
    attack: Callable[[nn.Module, Tensor, Tensor], Tensor], model: nn.Module, x: Tensor, p: float, batch: int
) -> dict[str, Any]:
    """Run one attack over all images and judge its answers by a forward pass of our own."""
    counter, norms, seconds = Counter(model).eval(), [], 0.0
    for part in x.split(batch):
        label = model(part).argmax(1)
        start = time.perf_counter()
        with counter.watching():
            y = attack(counter, part, label).detach()
        seconds += time.perf_counter() - start
        y = torch.nan_to_num(y).clamp(0, 1)
        with torch.no_grad():
            fooled = model(y).argmax(1) != label
        size = (y - part).flatten(1).norm(p=p, dim=1)
        norms.append(torch.where(fooled, size, math.inf))
    found = torch.cat(norms)
    return {
        "norms": [v if math.isfinite(v) else None for v in found.tolist()],
        "forwards": counter.forwards / len(x), "backwards": counter.backwards / len(x), "seconds": seconds / len(x),
    }  # fmt: skip


def run_network(
    name: str, images: int, batch: int, work: Path, folder: str | None, norms: list[str], skip: str
) -> None:
    torch.manual_seed(0)
    model = df.models.load(name)
    many = name == "efficientnet-lite0"
    spec = f"folder:{folder}" if many else name.split("-")[1]
    data = df.datasets.load(spec, size=224 if many else None)
    x = data.batch(torch.arange(min(images, len(data))))
    for p in (each for each in model_norms(many) if each in norms):
        for label, attack in plan(NORMS[p], many):
            file = work / name / p / f"{label.replace(' ', '_')}.json"
            if file.exists() or (skip and re.search(skip, label)):
                continue
            torch.manual_seed(0)
            started = time.perf_counter()
            result = measure(attack, model, x, NORMS[p], batch)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(result | {"attack": label, "images": len(x)}))
            print(f"{name} {p} {label}: {time.perf_counter() - started:.0f} s", flush=True)


def model_norms(many: bool) -> tuple[str, ...]:
    return ("l2", "linf") if many else tuple(NORMS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=["fc500-mnist", "lenet-mnist", "lenet-cifar10", "nin-cifar10"])
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--folder", help="labelled ImageNet images, for efficientnet-lite0")
    parser.add_argument("--norms", nargs="*", choices=list(NORMS), default=list(NORMS))
    parser.add_argument("--skip", default="", help="leave out attacks whose name this regular expression finds")
    parser.add_argument("--work", type=Path, default=Path("benchmarks/results/attacks"), help="where results are kept")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"), help="where the table and the plot go")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for name in arguments.networks:
        run_network(
            name, arguments.images, arguments.batch, arguments.work, arguments.folder, arguments.norms, arguments.skip
        )
    from benchmarks.tables import write_attacks

    write_attacks(arguments.work, arguments.out)


if __name__ == "__main__":
    main()
