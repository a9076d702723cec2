"""Does the cost grow only with the samples, and how much do more workers gain? `--help` lists the options.

    python -m benchmarks.scaling

Whole runs of `deepfool evaluate`, including writing the rows to disk. Sizes and workers take turns, and times are
medians over the rounds. Each worker has one thread, so two workers show what a second core gains.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch

import deepfool as df
from benchmarks.speed import keep

SIZES = (1000, 4000, 16000)


def run(network: str, samples: int, workers: int | None = None, engine: str = "local") -> float:
    """Seconds for a run over the first `samples` training images."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        df.evaluate(
            network, network.split("-")[1], split="train", limit=samples, out=Path(folder) / "run", batch_size=200,
            workers=workers, engine=engine, audit=False,
        )  # fmt: skip
        return time.perf_counter() - start


def measure(network: str, rounds: int, sizes: tuple[int, ...], *, with_ray: bool) -> dict[str, object]:
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):  # use two cores even if there are more: one thread for each of two workers
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    run(network, 200)  # data and model are read once before timing starts
    ways: dict[str, tuple[int, int | None, str]] = {f"{size} samples": (size, None, "local") for size in sizes}
    ways["2 workers"] = (sizes[-1], 2, "local")
    if with_ray:
        ways["2 Ray actors"] = (sizes[-1], 2, "ray")
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, (samples, workers, engine) in ways.items():
            times[way].append(run(network, samples, workers, engine))
            print(f"{network}, {way}: {times[way][-1]:.1f} s", flush=True)
    seconds = {way: statistics.median(values) for way, values in times.items()}
    per_sample = {size: seconds[f"{size} samples"] / size for size in sizes}
    whole = seconds[f"{sizes[-1]} samples"]
    return {
        "network": network, "rounds": rounds, "sizes": list(sizes),
        "per_sample": [per_sample[size] / per_sample[sizes[0]] for size in sizes],
        "milliseconds": 1000 * per_sample[sizes[-1]],
        "speedup": {way: whole / seconds[way] for way in ways if not way.endswith("samples")},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="lenet-mnist")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--ray", action="store_true", help="two Ray actors too")
    parser.add_argument("--work", type=Path, default=Path("benchmarks/results/speed"), help="where results are kept")
    arguments = parser.parse_args()
    found = measure(arguments.network, arguments.rounds, tuple(arguments.sizes), with_ray=arguments.ray)
    keep(arguments.work / "scaling" / f"{arguments.network}.json", found)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
