"""Does the cost grow only with the samples, and how much do more workers gain? `--help` lists the options.

    python -m benchmarks.scaling --ray

Whole runs of `deepfool evaluate`, including writing the rows to disk, each in a process of its own. Sizes and workers
take turns, and times are medians over the rounds. Each worker has one thread, so two workers show what a second core
gains. Samples are training images, over again where there are not enough. `--ray` also measures what Ray adds to a
batch of the default size, with one worker: from the first answer to the last, the time beyond what the rows took.
Ray's start, which takes seconds and never the same number, comes before that.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import deepfool as df
from benchmarks.speed import keep
from deepfool.datasets.data import Data

SIZES = (1000, 10_000, 100_000)
CREWED = 10_000
"""Samples with which workers are compared, at most."""


class Repeated(Data):
    """The samples of a data set over and over, up to a number."""

    def __init__(self, data: Data, count: int) -> None:
        super().__init__(data.name, data.labels[torch.arange(count) % len(data)], data.classes)
        self._data = data

    def batch(self, indices: Sequence[int] | Tensor) -> Tensor:
        return self._data.batch(torch.as_tensor(indices) % len(self._data))

    def _compute_fingerprint(self) -> str:
        return f"{len(self)} of {self._data.fingerprint()}"


def run(
    network: str, samples: int, workers: int | None = None, engine: str = "local", batch: int | str = 200
) -> dict[str, float]:
    """Seconds for a run over so many training images, seconds from its first batch written to its last, seconds that
    the rows after the first batch took, and the peak memory in MB."""
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):  # use two cores even if there are more: one thread for each of two workers
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    data = Repeated(df.datasets.load(network.split("-")[1], split="train"), samples)
    answers: list[tuple[float, int]] = []
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        done = df.evaluate(
            network, data, out=Path(folder) / "run", batch_size=batch, workers=workers, engine=engine, audit=False,
            on_progress=lambda so_far: answers.append((time.perf_counter(), so_far.done)),
        )  # fmt: skip
        seconds = time.perf_counter() - start
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
        rows = sum(row["seconds"] for row in list(done.rows())[answers[0][1] :])
    return {"seconds": seconds, "between": answers[-1][0] - answers[0][0], "rows": rows, "memory": memory}


def alone(*arguments: Any) -> dict[str, float]:
    """`run` in a process of its own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(run, *arguments).result()


def measure(network: str, rounds: int, sizes: tuple[int, ...], *, with_ray: bool) -> dict[str, object]:
    alone(network, 200)  # data and model are read once before timing starts
    crewed = min(CREWED, sizes[-1])
    ways: dict[str, tuple[Any, ...]] = {f"{size} samples": (size,) for size in sizes}
    ways["one process"] = (crewed,)
    ways["2 workers"] = (crewed, 2)
    if with_ray:
        ways["2 Ray actors"] = (crewed, 2, "ray")
        ways["Ray"] = (crewed, 1, "ray", "auto")
    found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, arguments in ways.items():
            found[way].append(alone(network, *arguments))
            print(f"{network}, {way}: {found[way][-1]}", flush=True)
    seconds = {way: statistics.median(one["seconds"] for one in each) for way, each in found.items()}
    per_sample = {size: seconds[f"{size} samples"] / size for size in sizes}
    result: dict[str, object] = {
        "network": network, "rounds": rounds, "sizes": list(sizes),
        "per_sample": [per_sample[size] / per_sample[sizes[0]] for size in sizes],
        "memory": [statistics.median(one["memory"] for one in found[f"{size} samples"]) for size in sizes],
        "milliseconds": 1000 * per_sample[sizes[-1]],
        "speedup": {way: seconds["one process"] / seconds[way] for way in ("2 workers", "2 Ray actors") if way in ways},
    }  # fmt: skip
    if with_ray:
        result["ray"] = statistics.median((one["between"] - one["rows"]) / one["rows"] for one in found["Ray"])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="lenet-mnist")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--ray", action="store_true", help="Ray too")
    parser.add_argument("--work", type=Path, default=Path("benchmarks/results/speed"), help="where results are kept")
    arguments = parser.parse_args()
    found = measure(arguments.network, arguments.rounds, tuple(arguments.sizes), with_ray=arguments.ray)
    keep(arguments.work / "scaling" / f"{arguments.network}.json", found)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
