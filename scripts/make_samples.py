"""Make the samples that ship in src/deepfool/datasets/samples from the full data sets.

    python scripts/make_samples.py

Prints the hash of each, which goes into src/deepfool/datasets/bundled.py.
"""

from __future__ import annotations

import io
import json

from PIL import Image

from deepfool import cache
from deepfool.datasets import load
from deepfool.datasets.arrays import Arrays
from deepfool.datasets.bundled import FOLDER, SAMPLES, draw_sheet


def main() -> None:
    for sample in SAMPLES.values():
        full = load(sample.origin, split="test")
        rows = list(sample.rows)
        part = Arrays(sample.name, full.images()[rows], full.labels[rows])
        stream = io.BytesIO()
        Image.fromarray(draw_sheet(part.images(), sample.columns)).save(stream, "PNG", optimize=True)
        cache.write(FOLDER / f"{sample.name}.png", stream.getvalue())
        rows_text = f"{sample.rows.start}:{sample.rows.stop}:{sample.rows.step}"
        note = {"origin": f"{sample.origin}, test split, rows {rows_text}", "labels": part.labels.tolist()}
        cache.write(FOLDER / f"{sample.name}.json", (json.dumps(note) + "\n").encode())
        print(f"{sample.name}: {len(stream.getvalue())} bytes, {part.fingerprint()}")


if __name__ == "__main__":
    main()
