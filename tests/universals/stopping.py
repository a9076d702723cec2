"""Kill a search and resume it: `python -m tests.universals.stopping FOLDER METHOD`, run by test_resuming.py.

One process imports torch and then forks the children, so that a kill costs milliseconds. A child kills itself, with the
signal that nothing can catch, after a given number of batches. Only every third state is stored, so that some of what
was done is lost.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch

from deepfool import universal
from deepfool.universals import searching
from tests import nets

EPOCHS = 8


def find(out: Path, method: str, stop_after: int | None = None) -> None:
    write, calls, batches = searching.write_state, 0, 0

    def store_some(file, state):
        nonlocal calls
        calls += 1
        if calls % 3 == 0 or state["done"]:
            write(file, state)

    def stop(_):
        nonlocal batches
        batches += 1
        if batches == stop_after:
            os.kill(os.getpid(), signal.SIGKILL)

    searching.SAVE_EVERY, searching.write_state = -1.0, store_some
    try:
        universal(
            nets.small(), nets.points(80), p=2, xi=0.4, method=method, epochs=EPOCHS, batch_size=4, out=out,
            counts=(10,), on_progress=stop,
        )  # fmt: skip
    finally:
        searching.write_state = write


def in_child(out: Path, method: str, stop_after: int | None) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            find(out, method, stop_after)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def main(folder: Path, method: str) -> None:
    torch.set_num_threads(1)
    find(folder / "whole", method)
    kills = []
    for after in (2, 8, 31):
        status = in_child(folder / "stopped", method, after)
        file = next(iter((folder / "stopped" / "searches").glob("*40-images.pt")), None)
        state = None if file is None else torch.load(file, weights_only=True)
        at = 0 if state is None else 10 * state["epoch"] + state["batch"]
        kills.append({"batches": at, "killed": os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL})
    assert in_child(folder / "stopped", method, None) == 0, "it could not be resumed"
    print(json.dumps(kills))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
