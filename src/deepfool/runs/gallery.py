"""`gallery.safetensors`: the few images of a run that its report shows, kept in the run folder.

It is written when a run completes (runs/collecting.py), so that the report needs neither the model nor the data. It
holds the most fragile and the most robust samples, chosen by rank from the rows, as 8-bit pixels. Labels and norms are
in the rows.

    index          (n,)          which samples
    original       (n, c, h, w)  x, uint8
    perturbed      (n, c, h, w)  x + r, uint8
    perturbation   (n, c, h, w)  r, stretched to [-127, 127], int8
    factor         (n,)          how much r was stretched
    metadata       file names, and notes for the reader
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors
import safetensors.numpy
from safetensors import SafetensorError

from deepfool.errors import RunError
from deepfool.runs.records import Run
from deepfool.runs.rows import Floats, Ints, Records

if TYPE_CHECKING:
    from deepfool.display.pixels import Array, Pixels

GALLERY = "gallery.safetensors"
EACH_END = 12
"""How many of the most fragile samples, and of the most robust ones."""
IN_COMMON = 8
"""How many samples are kept that the data chose, not the results: other runs on this data keep them too."""
MOST_BYTES = 4_000_000
"""Of pixels in the file; half as many again for the samples in common."""


@dataclass(frozen=True)
class Stored:
    """What the file holds. Without images, `notes` say why."""

    index: Ints
    original: Pixels
    perturbed: Pixels
    perturbation: np.ndarray[Any, np.dtype[np.int8]]
    factor: Floats
    files: list[str | None] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def choose_samples(records: Records) -> Ints:
    """The positions of the samples to show: both ends of the run, the most fragile first.

    >>> rows = [{"index": i, "label": 0, "status": "FOOLED", "r_p": i + 1.0, "x_p": 1.0} for i in range(100)]
    >>> chosen = choose_samples(Records.of(rows, p=2))
    >>> len(chosen), chosen[:3].tolist(), chosen[-1].item()
    (24, [0, 1, 2], 99)
    """
    ratios = records.ratio("p")
    usable = np.flatnonzero(records.fooled & np.isfinite(ratios))
    order = usable[np.argsort(ratios[usable], kind="stable")]
    return order if len(order) <= 2 * EACH_END else np.concatenate([order[:EACH_END], order[-EACH_END:]])


def encode(stored: Stored) -> bytes:
    tensors = {name: np.ascontiguousarray(getattr(stored, name)) for name in _KINDS}
    # One entry, because the order of several is not fixed, and the same run must give the same file.
    return safetensors.numpy.save(tensors, {"about": json.dumps({"files": stored.files, "notes": stored.notes})})


_KINDS = {"index": np.int64, "original": np.uint8, "perturbed": np.uint8, "perturbation": np.int8, "factor": np.float64}


def read_gallery(run: Run) -> Stored | None:
    """The gallery of a run, checked to be well formed; None if there is none."""
    path = run.folder / GALLERY
    if not path.exists():
        return None
    try:
        if path.stat().st_size > 2 * MOST_BYTES:
            raise ValueError("it is too large")
        with safetensors.safe_open(path, framework="numpy") as file:
            tensors = {name: file.get_tensor(name) for name in _KINDS}
            about = json.loads((file.metadata() or {})["about"])
        if fault := _find_fault(tensors, about):
            raise ValueError(fault)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunError(
            f"{path} is damaged: {error}.", hint="delete it and give the same `deepfool evaluate` command again."
        ) from error
    return Stored(**tensors, files=about["files"], notes=about["notes"])


def _find_fault(tensors: dict[str, Array], about: Any) -> str:
    for name, kind in _KINDS.items():
        if tensors[name].dtype != kind:
            return f"{name} has type {tensors[name].dtype}"
    n, pixels = len(tensors["index"]), tensors["original"].shape
    if n > 2 * EACH_END + IN_COMMON or tensors["index"].shape != (n,) or tensors["factor"].shape != (n,):
        return "index and factor do not match"
    if len(pixels) != 4 or pixels[0] != n or pixels[1] not in (1, 3) or min(pixels[1:]) < 1:
        return f"the images have shape {pixels}"
    if tensors["perturbed"].shape != pixels or tensors["perturbation"].shape != pixels:
        return "the images have different shapes"
    if not np.isfinite(tensors["factor"]).all():
        return "a factor is not finite"
    files, notes = about["files"], about["notes"]
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        return "the notes are not text"
    if not isinstance(files, list) or len(files) != n or not all(isinstance(file, str | None) for file in files):
        return "the file names do not match"
    return ""
