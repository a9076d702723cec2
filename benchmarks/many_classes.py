"""A thousand classes: is the first step that of all classes, and what does it cost? `--help` lists the options.

    python -m benchmarks.many_classes FOLDER_OF_IMAGENET_IMAGES

`deepfool` estimates the slopes of all classes at the last hidden layer (`deepfool.classifier.last_hidden_layer`) and
computes gradients only for the classes that can be nearest. This script compares, image by image, its first step with
that of the full Jacobian, and the time of a whole run with that of a run on the ten top-scoring classes, in turns.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import deepfool as df
from benchmarks.speed import keep


def first_step(model: nn.Module, x: Tensor, candidates: str) -> Tensor:
    return df.deepfool(model, x, candidates=candidates, max_iter=1, overshoot=0.0).r.flatten(1)


def compare_steps(model: nn.Module, x: Tensor, file: Path) -> list[bool]:
    """Whether the first steps agree; stored in `file`, so that a run that was stopped can be resumed."""
    same: list[bool] = json.loads(file.read_text()) if file.exists() else []
    for i in range(len(same), len(x)):
        ours, full = (first_step(model, x[i : i + 1], candidates) for candidates in ("auto", "all"))
        same.append(bool((ours - full).norm() <= 1e-3 * full.norm()))
        keep(file, same)
        print(f"{sum(same)} of {len(same)} first steps are those of all classes", flush=True)
    return same


def time_runs(model: nn.Module, x: Tensor, rounds: int) -> float:
    """How many times as long all classes take as the ten top-scoring ones; the median over the rounds."""
    ratios = []
    for _ in range(rounds):
        seconds = []
        for candidates in (10, "auto"):
            start = time.perf_counter()
            df.deepfool(model, x, candidates=candidates)
            seconds.append(time.perf_counter() - start)
        ratios.append(seconds[1] / seconds[0])
    return statistics.median(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="ImageNet images")
    parser.add_argument("--images", type=int, default=30)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path("benchmarks/results/speed/many-classes"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = df.models.load("efficientnet-lite0")
    data = df.datasets.load(f"folder:{arguments.folder}", size=224)
    x = data.batch(torch.linspace(0, len(data) - 1, arguments.images).long())
    if arguments.rounds:
        df.deepfool(model, x[: arguments.batch])  # alone, so that the peak memory is its own
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        ratio = time_runs(model, x[: arguments.batch], arguments.rounds)
        print(f"all classes in {ratio:.2f} times the time of ten; peak memory {peak:.2f} GB at batch {arguments.batch}")
        keep(arguments.work / "timing.json", {"ratio": ratio, "peak": peak, "batch": arguments.batch,
                                              "rounds": arguments.rounds, "threads": arguments.threads})  # fmt: skip
    compare_steps(model, x, arguments.work / "first-steps.json")


if __name__ == "__main__":
    main()
