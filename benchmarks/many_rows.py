"""What reading a large run costs: time and memory of `show`, `report` and `compare` on a million rows.

    python -m benchmarks.many_rows

Two run folders are made from the rows of two real runs (lenet-mnist on mnist-sample: `deepfool`, and `deepfool` with a
larger overshoot as another model). Each simulated row is a real one with its own index, its norms of x and r changed at
random by a few percent. One row in a thousand is not fooled in the second pair, which `--unanswered` chooses. The
commands are whole processes; a first one reads the rows, the later ones what it kept beside them. Time is from start to
exit, memory the largest resident size of the process.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed import keep
from deepfool.runs.columns import COLUMNS
from deepfool.runs.records import MANIFEST, RECORDS
from deepfool.runs.rows import encode_row

BATCH = 1000
COMMANDS = {
    "show": ["show", "{a}"], "table": ["table", "{a}"], "check": ["check", "{a}", "--min-rho", "0.01"],
    "report": ["report", "{a}", "-o", "{work}/page.html"], "compare": ["compare", "{a}", "{b}"],
}  # fmt: skip


def make_run(source: Path, folder: Path, rows: int, *, scale: float, unanswered: float, model: str) -> None:
    """A run folder with so many rows, simulated from the rows of a real one."""
    manifest: dict[str, Any] = json.loads((source / MANIFEST).read_text())
    real = [json.loads(line) for line in (source / RECORDS).read_text().splitlines()]
    manifest["identity"]["data"]["samples"] = manifest["samples"] = rows
    manifest["identity"]["indices"] = f"0-{rows - 1}"
    manifest["identity"]["model"]["sha256"] = model * 64
    folder.mkdir(parents=True)
    (folder / MANIFEST).write_text(json.dumps(manifest))
    inputs, answers = np.random.default_rng(0), np.random.default_rng(ord(model))  # the same inputs in every run
    with (folder / RECORDS).open("wb") as stream:
        for start in range(0, rows, BATCH):
            count = min(BATCH, rows - start)
            which, sizes = inputs.integers(0, len(real), count), inputs.lognormal(0, 0.02, count)
            steps, lost = scale * answers.lognormal(0, 0.05, count), answers.random(count) < unanswered
            for i in range(count):
                row = dict(real[which[i]], index=start + i, batch=count)
                row |= {name: row[name] * sizes[i] for name in row if name.startswith("x_")}
                norms = [name for name in row if name.startswith("r_") and row[name] is not None]
                row |= {name: None if lost[i] else row[name] * sizes[i] * steps[i] for name in norms}
                if lost[i]:
                    row |= {"status": "EXHAUSTED", "adv_label": -1, "reason": "not fooled in 50 iterations"}
                    row = {name: value for name, value in row.items() if name not in ("evidence", "converged")}
                stream.write(encode_row(row))


def make_runs(work: Path, rows: int, unanswered: float) -> dict[str, Path]:
    """The real run and the simulated ones, if they are not there yet."""
    import deepfool as df

    source = work / "real"
    if not source.exists():
        df.evaluate("lenet-mnist", "mnist-sample", out=source, audit=False)
    folders = {name: work / f"{rows}-{unanswered:g}-{name}" for name in "ab"}
    for name, folder in folders.items():
        if not folder.exists():
            part = folder.with_name(f"{folder.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            make_run(source, part, rows, scale=1.0 if name == "a" else 1.02, unanswered=unanswered, model=name)
            part.rename(folder)
    return folders


def measure(command: list[str]) -> tuple[float, float]:
    """Seconds and megabytes of one command."""
    start = time.perf_counter()
    with subprocess.Popen([sys.executable, "-m", "deepfool", *command], stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - start
    if process.returncode not in (0, 1):  # `check` ends with 1 where a condition is not met
        raise SystemExit(f"deepfool {' '.join(command)} ended with {process.returncode}")
    return seconds, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--unanswered", type=float, default=0.0, help="the share of searches without an answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=list(COMMANDS), help="of: %(default)s")
    parser.add_argument("--work", type=Path, default=Path("benchmarks/results/many_rows"), help="for runs and results")
    arguments = parser.parse_args()
    folders = make_runs(arguments.work, arguments.rows, arguments.unanswered)
    places = {"work": str(arguments.work), **{name: str(folder) for name, folder in folders.items()}}
    found: dict[str, dict[str, list[float]]] = {}
    for name in arguments.only:
        command = [part.format(**places) for part in COMMANDS[name]]
        for folder in folders.values():
            (folder / COLUMNS).unlink(missing_ok=True)
        times = [measure(command) for _ in range(1 + arguments.rounds)]
        found[name] = {"seconds": [each[0] for each in times], "megabytes": [each[1] for each in times]}
        (first, largest), later = times[0], times[1:]
        again = sorted(seconds for seconds, _ in later)[len(later) // 2] if later else float("nan")
        print(
            f"{name:8} first {first:6.1f} s, {largest:5.0f} MB; again {again:6.1f} s, "
            f"{max((size for _, size in later), default=float('nan')):5.0f} MB",
            flush=True,
        )
    keep(arguments.work / f"{arguments.rows}-{arguments.unanswered:g}.json", found)


if __name__ == "__main__":
    main()
