"""DeepFool compared with other libraries', in time and norm: `make bench`, or `python -m benchmarks.speed --help`.

All implementations get the same images in the same process, in turns. Times are medians over the rounds, and only
their ratios are meaningful. Results are stored per case under --work, so that a run that was stopped can be resumed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import deepfool as df
from benchmarks.deepfools import PEERS
from benchmarks.floor import record, replay

Attack = Callable[[nn.Module, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    network: str
    batch: int
    boxed: bool = False
    candidates: int | None = None
    targets: tuple[tuple[str, float], ...] = ()
    """How many times faster than each peer we want to be."""

    @property
    def name(self) -> str:
        few = f", {self.candidates} candidates" if self.candidates else ""
        return f"{self.network}, batch {self.batch}, {'bounds (0, 1)' if self.boxed else 'free'}{few}"


CASES = (
    Case("fc500-mnist", 200, targets=(("adv-lib", 10), ("foolbox", 25), ("ART", 100))),
    Case("fc500-mnist", 200, boxed=True, targets=(("adv-lib", 5),)),
    Case("lenet-mnist", 200, targets=(("adv-lib", 8), ("foolbox", 20), ("ART", 70))),
    Case("nin-cifar10", 64, targets=(("adv-lib", 6), ("foolbox", 12), ("ART", 40))),
    Case("lenet-mnist", 200, boxed=True, targets=(("adv-lib", 4), ("foolbox", 10), ("ART", 40))),
    Case("efficientnet-lite0", 16, candidates=10, targets=(("foolbox", 4),)),
)
PRICED = ("fc500-mnist", "lenet-mnist", "lenet-cifar10", "nin-cifar10")
"""Networks on which "auto" is compared with "all"."""
FEW = {"ART": 20, "torchattacks": 2}
"""Libraries that take minutes for a batch get fewer images; their time is compared per image."""


def load_images(network: str, count: int, folder: str | None) -> tuple[nn.Module, Tensor]:
    large = network.startswith("efficientnet")
    model = df.models.load(network).eval()
    data = df.datasets.load(f"folder:{folder}" if large else network.split("-")[1], size=224 if large else None)
    return model, data.batch(torch.arange(min(count, len(data))))


def contenders(case: Case) -> dict[str, Attack]:
    """Ours in three settings, and every library that can run the case."""
    bounds = (0, 1) if case.boxed else None
    first = case.candidates or "auto"
    own: dict[str, dict[str, Any]] = {
        "deepfool": {"candidates": first}, "deepfool, tighten": {"candidates": first, "tighten": True},
        "deepfool, all": {"candidates": "auto" if case.candidates else "all"},
    }  # fmt: skip
    found: dict[str, Attack] = {
        name: (lambda m, x, y, k=knobs: df.deepfool(m, x, bounds=bounds, **k).x) for name, knobs in own.items()
    }
    only_boxed, only_free = {"torchattacks"}, {"adv-lib, freed"}
    for name, attack in PEERS.items():
        if (case.candidates and name != "foolbox") or name in (only_free if case.boxed else only_boxed):
            continue
        found[name] = lambda m, x, y, a=attack: a(m, x, y, boxed=case.boxed, candidates=case.candidates)
    return found


def measure(case: Case, rounds: int, patience: float, folder: str | None) -> dict[str, Any]:
    model, x = load_images(case.network, case.batch, folder)
    with torch.no_grad():
        label = model(x).argmax(1)
    attacks = contenders(case)
    times: dict[str, list[float]] = {name: [] for name in attacks}
    norms: dict[str, list[float | None]] = {}
    bare: list[float] = []
    events = record(lambda m: attacks["deepfool"](m, x, label), model)
    batched = df.Classifier(model).batched_rows
    for turn in range(rounds + 1):  # the first one warms up and yields the norms
        for name, attack in attacks.items():
            if turn and times[name] and times[name][0] * FEW.get(name, len(x)) > patience:
                continue
            some = slice(0, FEW.get(name, len(x)))
            start = time.perf_counter()
            y = attack(model, x[some], label[some]).detach()
            seconds = (time.perf_counter() - start) / len(y)
            if turn == 0:
                norms[name] = judge(model, x[some], y, label[some], case.boxed)
                if seconds * len(y) > patience:  # no second round for those that take this long
                    times[name].append(seconds)
            else:
                times[name].append(seconds)
        if turn:
            bare.append(replay(events, model, batched) / len(x))
    return {
        "case": case.name, "network": case.network, "targets": dict(case.targets), "threads": torch.get_num_threads(),
        "rounds": rounds, "seconds": {name: statistics.median(t) for name, t in times.items()}, "norms": norms,
        "floor": statistics.median(times["deepfool"]) / statistics.median(bare),
    }  # fmt: skip


def judge(model: nn.Module, x: Tensor, y: Tensor, label: Tensor, boxed: bool) -> list[float | None]:
    """The l2 norms by a forward pass of our own; None where the label did not change."""
    y = y.clamp(0, 1) if boxed else y
    with torch.no_grad():
        fooled = (model(y).argmax(1) != label).tolist()
    sizes = (y - x).flatten(1).double().norm(dim=1).tolist()
    return [size if ok else None for size, ok in zip(sizes, fooled, strict=True)]


def keep(file: Path, result: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_suffix(".part")
    beside.write_text(json.dumps(result))
    os.replace(beside, file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = list(dict.fromkeys([*(case.network for case in CASES), *PRICED]))
    parser.add_argument("--networks", nargs="*", default=default, help="of: %(default)s")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--patience", type=float, default=8.0, help="seconds after which a contender runs only once")
    parser.add_argument("--folder", default="../shared/data/imagenet-100", help="images for efficientnet-lite0")
    parser.add_argument("--work", type=Path, default=Path("benchmarks/results/speed"), help="where results are kept")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"), help="where the page and the plot go")
    parser.add_argument("--price", type=int, default=1000, help="images per network for the price of auto; 0: skip")
    parser.add_argument("--choices", action="store_true", help="also measure threads, channels_last and torch.compile")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for case in CASES:
        file = arguments.work / f"{case.name.replace(' ', '_').replace(',', '')}.json"
        if case.network not in arguments.networks or file.exists():
            continue
        if case.network.startswith("efficientnet") and not Path(arguments.folder).is_dir():
            print(f"{case.name}: no folder of images, left out")
            continue
        start = time.perf_counter()
        keep(file, measure(case, arguments.rounds, arguments.patience, arguments.folder))
        print(f"{case.name}: {time.perf_counter() - start:.0f} s", flush=True)
    from benchmarks.price import measure_price
    from benchmarks.speed_page import write_page

    for network in PRICED if arguments.price else ():
        if network in arguments.networks:
            measure_price(network, min(arguments.price, 200) if network == "nin-cifar10" else arguments.price,
                          arguments.work)  # fmt: skip
    if arguments.choices:
        from benchmarks.choices import measure_choices

        for network in dict.fromkeys(arguments.networks):
            with ProcessPoolExecutor(1, get_context("spawn")) as alone:  # kept memory cannot be undone
                settings = network, arguments.work, arguments.rounds, arguments.folder, arguments.threads
                alone.submit(measure_choices, *settings).result()
    write_page(arguments.work, arguments.out)


if __name__ == "__main__":
    main()
