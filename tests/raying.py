"""A run on a local Ray with two workers, one of which is killed: `python raying.py FOLDER`, run by test_engines.py."""

import json
import os
import signal
import sys
import time
from pathlib import Path

from deepfool import evaluate
from deepfool.evaluation import Progress
from tests import nets


def just_begun(notes: Path) -> int | None:
    """The worker that began a batch less than 0.1 s ago; a batch takes more than three times that."""
    deadline = time.time() + 2
    while time.time() < deadline:
        newest = max(notes.iterdir(), key=lambda note: note.stat().st_mtime)
        if time.time() - newest.stat().st_mtime < 0.1:
            return int(newest.name.split()[0])
    return None


def main(out: Path) -> None:
    notes = Path(os.environ["NOTES"])
    killed: list[int] = []

    def kill(progress: Progress) -> None:
        if progress.done >= 24 and not killed and (victim := just_begun(notes)) is not None:
            killed.append(victim)
            os.kill(victim, signal.SIGKILL)

    evaluate(
        "py:tests.nets:small", nets.points(80), nets.telling_deepfool, out=out, batch_size=8, engine="ray", workers=2,
        on_progress=kill,
    )  # fmt: skip
    print(json.dumps({"killed": killed[0], "notes": [note.name for note in notes.iterdir()]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
