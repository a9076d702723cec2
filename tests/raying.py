"""A run on a local Ray with two workers, one of which is killed: `python raying.py FOLDER`, run by test_engines.py."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from deepfool import evaluate
from tests import nets


def main(out: Path) -> None:
    notes = Path(os.environ["NOTES"])
    killed: list[int] = []

    def kill() -> None:
        while not (waiting := list(notes.glob("waiting *"))):
            time.sleep(0.01)
        killed.append(int(waiting[0].name.split()[1]))
        os.kill(killed[0], signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    evaluate(
        "py:tests.nets:small", nets.points(80), nets.telling_deepfool, out=out, batch_size=8, engine="ray", workers=2
    )
    told = [note.name for note in notes.iterdir() if not note.name.startswith("waiting")]
    print(json.dumps({"killed": killed[0], "notes": told}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
