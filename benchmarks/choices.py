"""Measure other ways to make it faster: threads, memory layout, torch.compile, malloc."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import deepfool as df
from deepfool.runs.execution import compile_model, keep_freed_memory


def measure_choices(network: str, work: Path, rounds: int, folder: str | None, threads: int) -> None:
    """Medians over rounds in turns, as a ratio to the plain run with the given number of threads."""
    from benchmarks.speed import keep, load_images

    file = work / "choices" / f"{network}.json"
    if file.exists():
        return
    torch.set_num_threads(threads)
    model, x = load_images(network, 16 if network.startswith("efficientnet") else 64, folder)
    last = x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x
    compiled = compile_model(model)
    ways: dict[str, tuple[nn.Module | Callable[[Tensor], Tensor], Tensor, int]] = {
        "plain": (model, x, threads), "channels_last": (model, last, threads), "torch.compile": (compiled, x, threads),
    }  # fmt: skip
    if threads > 1:
        ways["one thread"] = (model, x, 1)
    ways["kept memory"] = (model, x, threads)  # last: it cannot be undone
    times: dict[str, list[float]] = {way: [] for way in ways}
    failed: dict[str, str] = {}
    for turn in range(2 * rounds + 2):
        if turn == rounds + 1:
            keep_freed_memory()
        for way, (f, inputs, count) in ways.items():
            if way in failed or (way == "kept memory") != (turn > rounds):
                continue
            torch.set_num_threads(count)
            start = time.perf_counter()
            try:
                df.deepfool(f, inputs, candidates=10 if network.startswith("efficientnet") else "auto")
            except Exception as error:  # the page says that it failed, the file says why
                failed[way] = f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
                continue
            if turn not in (0, rounds + 1):  # the first ones warm up
                times[way].append(time.perf_counter() - start)
    torch.set_num_threads(threads)
    plain = statistics.median(times["plain"])
    keep(file, {"network": network, "threads": threads, "batch": len(x), "failed": failed,
                "ratios": {way: statistics.median(t) / plain for way, t in times.items() if t}})  # fmt: skip
