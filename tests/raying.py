"""A run on a local Ray with two workers, one of which is killed: `python raying.py FOLDER`, run by test_engines.py."""

import json
import os
import signal
import sys
from pathlib import Path

from deepfool import evaluate
from deepfool.evaluation import Progress
from tests import nets


def main(out: Path) -> None:
    notes = Path(os.environ["NOTES"])
    killed: list[int] = []

    def kill(progress: Progress) -> None:
        if progress.done >= 24 and not killed:
            killed.append(int(next(notes.iterdir()).name.split()[0]))
            os.kill(killed[0], signal.SIGKILL)

    evaluate(
        "py:tests.nets:small", nets.points(80), nets.telling_deepfool, out=out, batch_size=8, engine="ray", workers=2,
        on_progress=kill,
    )  # fmt: skip
    print(json.dumps({"killed": killed[0], "notes": [note.name for note in notes.iterdir()]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
