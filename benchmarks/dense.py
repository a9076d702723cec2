"""Dense and small networks, where little of the time is passes: CPU milliseconds of one thread, all in turns.

`smallest` with 100 passes, per image, beside as many bare passes; `deepfool` with all rows and with classes left out,
per batch; several gradient rows in one backward pass and one after another, per batch.

python -m benchmarks.dense
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

import deepfool as df
from benchmarks.speed import load_images
from deepfool.attacks.shared import pruning
from deepfool.classifier import jacobian
from deepfool.classifier.jacobian import Tangent

ROWS = {
    "fc500-mnist": (1, 20, 200), "lenet-mnist": (1, 20, 50, 200), "lenet-cifar10": (1, 10, 50),
    "nin-cifar10": (1, 4, 16),
}  # fmt: skip
BATCHES = {"fc500-mnist": (1, 5, 20, 50, 100), "lenet-mnist": (1, 5, 8, 10, 20), "lenet-cifar10": (1, 2, 5)}


def in_turns(rounds: int, **ways: Callable[[], Any]) -> dict[str, float]:
    """The least milliseconds of each."""
    least = dict.fromkeys(ways, math.inf)
    for turn in range(rounds + 1):  # the first one warms up
        for name, way in ways.items():
            start = time.process_time()
            way()
            least[name] = min(least[name], 1000 * (time.process_time() - start) if turn else math.inf)
    return least


def make_passes(model: nn.Module, x: Tensor, count: int) -> None:
    """So many forward passes and backward rows."""
    with df.Classifier(model).frozen():
        for _ in range(count):
            y = x.detach().requires_grad_(True)
            z = model(y)
            torch.autograd.grad(z, y, torch.ones_like(z))


def measure_smallest(network: str, batch: int, rounds: int) -> dict[str, float]:
    model, x = load_images(network, batch, None)
    ways: dict[str, Callable[[], Any]] = {
        f"l{p:g}": lambda p=p: df.smallest(model, x, p=p, bounds=(0, 1)) for p in (2, math.inf, 1)
    }
    return {k: v / batch for k, v in in_turns(rounds, **ways, bare=lambda: make_passes(model, x, 50)).items()}


def measure_candidates(network: str, batch: int, bounds: tuple[int, int] | None, rounds: int) -> dict[str, float]:
    model, x = load_images(network, batch, None)

    def attack(candidates: str, crowd: int = pruning.CROWD) -> None:
        with patch.object(pruning, "CROWD", crowd):
            df.deepfool(model, x, bounds=bounds, candidates=candidates)

    # "fewer": classes are left out as they would be in a large batch.
    return in_turns(
        rounds, all=lambda: attack("all"), fewer=lambda: attack("auto", crowd=0), auto=lambda: attack("auto")
    )


def measure_rows(network: str, batch: int, count: int, rounds: int) -> dict[str, float]:
    """So many rows of each image; and how many megabytes one of them has, by which `jacobian.ALONE` decides."""
    model, x = load_images(network, batch, None)
    f = df.Classifier(model)
    with f.frozen():
        tangent = Tangent(f, x)
        classes = torch.arange(count).expand(batch, -1)
        seeds = tangent._seeds(classes, tangent.scores.argmax(1))

        def take(alone: int) -> None:
            with patch.object(jacobian, "ALONE", alone):
                tangent._pull_back(seeds, keep=True)

        found = in_turns(rounds, together=lambda: take(2**62), alone=lambda: take(0))
        return found | {"megabytes": (f.row_bytes or 0) * batch / 2**20}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["smallest", "candidates", "rows"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for batch in (50, 200) if arguments.only in (None, "smallest") else ():
        found = measure_smallest("fc500-mnist", batch, arguments.rounds)
        print(f"smallest, fc500-mnist, {batch}: {_list(found)}", flush=True)
    for network, batches in BATCHES.items() if arguments.only in (None, "candidates") else ():
        for batch in batches:
            for bounds in (None, (0, 1)):
                found = measure_candidates(network, batch, bounds, arguments.rounds)
                where = "in [0, 1]" if bounds else "free"
                print(f"deepfool, {network}, {batch}, {where}: {_list(found)}", flush=True)
    for network, batches in ROWS.items() if arguments.only in (None, "rows") else ():
        for batch in batches:
            for count in (3, 9):
                found = measure_rows(network, batch, count, arguments.rounds)
                print(f"{count} rows, {network}, {batch}: {_list(found)}", flush=True)


def _list(times: dict[str, float]) -> str:
    return ", ".join(f"{name} {ms:.1f}" for name, ms in times.items())


if __name__ == "__main__":
    main()
