"""Kill runs at random points and resume them: `python killing.py FOLDER COUNT`, run by test_records.py.

One process imports torch and then forks the children, so that a kill costs milliseconds.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import torch

from deepfool import evaluate
from tests import nets

SAMPLES, BATCH = 96, 8


def measure(out: Path) -> None:
    evaluate(nets.small(), nets.points(SAMPLES), out=out, batch_size=BATCH, save_perturbations=True)


def in_child(out: Path) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            measure(out)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return pid


def kill_when_written(pid: int, records: Path, size: int, whole: int, pause: float) -> bool:
    """SIGKILL once the file has that size, a moment later; says whether the run was in the middle of it then."""
    while (records.stat().st_size if records.exists() else 0) < size:
        if os.waitpid(pid, os.WNOHANG) != (0, 0):
            return False
    time.sleep(pause)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status) and records.stat().st_size < whole


def main(folder: Path, count: int) -> None:
    torch.set_num_threads(1)
    draw = random.Random(5)
    measure(folder / "whole")
    full = (folder / "whole" / "records.jsonl").stat().st_size
    kills = []
    for number in range(count):
        out = folder / str(number)
        records = out / "records.jsonl"
        # On a busy machine a run may end before its killer wakes up: that was no kill, so try again.
        while not kill_when_written(
            in_child(out), records, draw.randrange(1, int(full * 0.9)), full, draw.random() * 0.003
        ):  # fmt: skip
            shutil.rmtree(out)
        kills.append({"bytes": records.stat().st_size, "bytes_whole": full, "signal": signal.SIGKILL})
        _, status = os.waitpid(in_child(out), 0)
        assert status == 0, f"run {number} could not be resumed"
    print(json.dumps(kills))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
