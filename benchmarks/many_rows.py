"""What reading a large run costs: time and memory of `show`, `report` and `compare` on a million rows.

    python -m benchmarks.many_rows

Two run folders are made from the rows of a real run (`deepfool`, lenet-mnist on mnist-sample). Each simulated row is a
real one with its own index, its norms of x and r changed at random by a few percent; those of r are 2 % larger in the
second folder, which stands for another model. `--unanswered` is the share of rows that are not fooled. The commands are
whole processes; a first one decodes the rows, the later ones read what it kept beside them. Time is from start to exit,
memory the largest resident size of the process.
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
from deepfool.runs.kept import COLUMNS
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


def measure(command: list[str]) -> tuple[float, float, float]:
    """Seconds on the clock, seconds of computing, and megabytes of one command."""
    start = time.perf_counter()
    with subprocess.Popen([sys.executable, "-m", "deepfool", *command], stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - start
    if process.returncode != 0 and (command[0], process.returncode) != ("check", 1):  # a condition that is not met
        raise SystemExit(f"deepfool {' '.join(command)} ended with {process.returncode}")
    megabytes = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6
    return seconds, usage.ru_utime + usage.ru_stime, megabytes


def tell(times: list[tuple[float, float, float]]) -> str:
    """The median times, and the largest size."""
    if not times:
        return "-"
    seconds, cpu, megabytes = (sorted(each) for each in zip(*times, strict=True))
    middle = len(times) // 2
    return f"{seconds[middle]:5.1f} s ({cpu[middle]:.1f} s of computing), {megabytes[-1]:4.0f} MB"


def write_page(found: dict[str, dict[str, list[float]]], rows: int, file: float, columns: float) -> str:
    lines = [
        "# Large runs", "",
        f"What reading a run of {rows:,} rows costs. `python -m benchmarks.many_rows` makes two run folders from the",
        "rows of a real run (`deepfool` on lenet-mnist), each row with its own index and norms, and runs the commands",
        "as whole processes. The first one decodes the rows and keeps them as columns beside the records",
        f"(`columns.safetensors`, {columns:.0f} MB for {file:.0f} MB of rows); later ones read those. Times are those",
        "on the clock and, in brackets, of the processor, start-up included, on two idle cores. Memory is the largest",
        "resident size.", "",
        "| command | first: time | memory | later: time | memory |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for name, each in found.items():
        cells = []
        for part in (slice(0, 1), slice(1, None)):
            clock, cpu = (sorted(each[time][part])[len(each[time][part]) // 2] for time in ("seconds", "cpu"))
            cells += [f"{clock:.1f} s ({cpu:.1f})", f"{max(each['megabytes'][part]):.0f} MB"]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *NOTES, ""])


NOTES = [
    "## What makes it fast", "",
    "- Rows are decoded and checked in blocks, as columns; the metrics never see a row. A file that is unusual in any",
    "  way is read row by row, which says what is wrong.",
    "- `columns.safetensors` is used only if the SHA-256 of the records is still the one they were read with. Rows",
    "  that were appended are added; anything else is read anew. Runs of fewer than 20,000 rows keep none.",
    "- Files of 64 MB or more are decoded by two processes where there are two cores. Both halves are computed, so the",
    "  time of the processor is the same, and a little more; on a busy machine there is nothing to gain.",
    "- Intervals of more than 10,000 samples are bootstrapped by bins: how many draws fall into each of 768 bins is",
    "  multinomial, and the ends are drawn sample by sample. Tests compare them with drawing every sample.",
    "- `show`, `table`, `compare` and `check` import neither torch nor scipy.",
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--unanswered", type=float, default=0.0, help="the share of searches without an answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=list(COMMANDS), help="of: %(default)s")
    parser.add_argument("--work", type=Path, default=Path("benchmarks/results/many_rows"), help="for runs and results")
    parser.add_argument("--page", type=Path, help="write the results here, as docs/benchmarks/rows.md")
    arguments = parser.parse_args()
    folders = make_runs(arguments.work, arguments.rows, arguments.unanswered)
    places = {"work": str(arguments.work), **{name: str(folder) for name, folder in folders.items()}}
    found: dict[str, dict[str, list[float]]] = {}
    for name in arguments.only:
        command = [part.format(**places) for part in COMMANDS[name]]
        for folder in folders.values():
            (folder / COLUMNS).unlink(missing_ok=True)
        times = [measure(command) for _ in range(1 + arguments.rounds)]
        found[name] = dict(zip(("seconds", "cpu", "megabytes"), map(list, zip(*times, strict=True)), strict=True))
        print(f"{name:8} first {tell(times[:1])}; again {tell(times[1:])}", flush=True)
    keep(arguments.work / f"{arguments.rows}-{arguments.unanswered:g}.json", found)
    if arguments.page is not None:
        sizes = [(folder / name).stat().st_size / 1e6 for folder in (folders["a"],) for name in (RECORDS, COLUMNS)]
        arguments.page.write_text(write_page(found, arguments.rows, *sizes))


if __name__ == "__main__":
    main()
