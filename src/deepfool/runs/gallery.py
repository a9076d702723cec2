"""`gallery.safetensors`: the few images of a run that its report shows, kept in the run folder.

It is written when a run completes, so that the report needs neither the model nor the data. It holds the most fragile
and the most robust samples, chosen by rank from the rows, as 8-bit pixels. Labels and norms are in the rows.

    index          (n,)          which samples
    original       (n, c, h, w)  x, uint8
    perturbed      (n, c, h, w)  x + r, uint8
    perturbation   (n, c, h, w)  r, stretched to [-127, 127], int8
    factor         (n,)          how much r was stretched
    metadata       file names, and notes for the reader
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from safetensors import SafetensorError
from torch import nn

from deepfool import cache
from deepfool.attacks.shared.adversarial import Status
from deepfool.datasets import Data
from deepfool.display.pixels import Array, Pixels, is_image, stretch, to_levels
from deepfool.errors import DataError, DeepFoolError, RunError
from deepfool.runs.records import Run, read_shard
from deepfool.runs.rows import Floats, Ints, Records, Row
from deepfool.runs.worker import Batch, Job, Worker

GALLERY = "gallery.safetensors"
EACH_END = 12
"""How many of the most fragile samples, and of the most robust ones."""
IN_COMMON = 8
"""How many samples are kept that the data chose, not the results: other runs on this data keep them too."""
MOST_BYTES = 4_000_000
"""Of pixels in the file; half as many again for the samples in common."""
LEAST = 8
"""Images are reduced in size until this many fit."""
CLOSE = 1e-3
"""The largest relative difference between the norm of a perturbation computed again and the norm in its row."""


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


def choose_common(index: Ints, labels: Ints) -> list[int]:
    """Which of these samples every run keeps, so that two runs can show the same ones: the first of each true class,
    then the first ones. A run on more samples of the same data mostly keeps the same.

    >>> choose_common(np.arange(20), np.array([0] * 9 + [1] * 8 + [-1] * 3))
    [0, 1, 2, 3, 4, 5, 9, 17]
    """
    index = np.sort(index)
    _, firsts = np.unique(labels[index], return_index=True)
    order = [*np.sort(firsts).tolist(), *(i for i in range(len(index)) if i not in set(firsts.tolist()))]
    return sorted(int(index[i]) for i in order[:IN_COMMON])


def keep_gallery(run: Run, samples: Data, job: Job, module: nn.Module, *, batch_size: int, renew: bool) -> None:
    """Write the gallery of a complete run. An existing one is kept unless `renew`.

    Perturbations come from the run if it kept them. Otherwise these few samples are attacked again.
    """
    path = run.folder / GALLERY
    if path.exists() and not renew:
        return
    try:
        stored = _collect(run, samples, job, module, batch_size)
    except DeepFoolError as error:  # the measurement stands without its pictures
        stored = _nothing(f"There are no pictures: {error}")
    try:
        cache.write(path, _encode(stored))
    except DataError as error:
        why = getattr(error.__cause__, "strerror", None) or error
        raise RunError(
            f"{path} cannot be written: {why}.",
            hint="all samples were measured; make room and give the same command again to add the gallery.",
        ) from error


def _collect(run: Run, samples: Data, job: Job, module: nn.Module, batch_size: int) -> Stored:
    records = run.records()
    chosen = records.pick(choose_samples(records))
    shape = tuple(samples.batch(run.selection[:1].tolist()).shape[1:])
    if not is_image(shape):
        return _nothing(f"The samples are not images (their shape is {shape}), so they are listed by number.")
    if not len(chosen):
        return _nothing()
    count, shrink = _fit(shape, len(chosen))
    ends = chosen.pick(np.sort(_order_inwards(len(chosen))[:count]))
    common = set(choose_common(run.selection, np.asarray(samples.labels))) - set(ends.index.tolist())
    also = np.flatnonzero(np.isin(records.index, list(common)) & records.fooled)
    also = also[: MOST_BYTES // 2 // _count_bytes(shape, shrink)]
    place = {index: i for i, index in enumerate(records.index.tolist())}
    shown = records.pick(np.array([*(place[index] for index in ends.index.tolist()), *also.tolist()], np.int64))
    found = dict(
        _read_stored(run, shown)
        if run.identity["perturbations"]
        else _attack_again(shown, samples, job, module, batch_size)
    )
    notes = []
    if (kept_of_chosen := int(np.isin(chosen.index, shown.index).sum())) < len(chosen):
        notes.append(f"Pictures of {kept_of_chosen} samples are kept, so that the run folder stays small.")
    if shrink > 1:
        notes.append(f"The pictures are reduced to 1/{shrink} of their width and height.")
    if missing := sum(index not in found for index in ends.index.tolist()):
        notes.append(
            f"{missing} samples are not shown: when attacked again, they gave another perturbation than in the run. "
            f"With --save-perturbations, the run's own are kept and shown."
        )
    kept = [index for index in shown.index.tolist() if index in found]
    return _draw(samples, kept, [found[index] for index in kept], shrink, notes) if kept else _nothing(*notes)


def _fit(shape: Sequence[int], wanted: int) -> tuple[int, int]:
    """How many images fit into the file, and by which whole factor to reduce their width and height.

    >>> _fit((1, 28, 28), 24), _fit((3, 224, 224), 24), _fit((3, 512, 512), 24), _fit((3, 224, 224), 3)
    ((24, 1), (8, 1), (15, 3), (3, 1))
    """
    shrink = 1
    while (fitting := MOST_BYTES // _count_bytes(shape, shrink)) < min(LEAST, wanted):
        shrink += 1
    return min(wanted, fitting), shrink


def _count_bytes(shape: Sequence[int], shrink: int) -> int:
    channels, height, width = shape
    return 3 * channels * math.ceil(height / shrink) * math.ceil(width / shrink)


def _order_inwards(n: int) -> Ints:
    """Positions from both ends towards the middle.

    >>> _order_inwards(5).tolist()
    [0, 4, 1, 3, 2]
    """
    return np.array([i // 2 if i % 2 == 0 else n - 1 - i // 2 for i in range(n)], np.int64)


def _read_stored(run: Run, shown: Records) -> Iterator[tuple[int, Array]]:
    """(index, r), from the perturbations that the run kept."""
    wanted = set(shown.index.tolist())
    for group in run.groups():
        here = [i for i, row in enumerate(group) if row["index"] in wanted]
        if here:
            r = read_shard(run.folder, group)
            yield from ((group[i]["index"], r[i]) for i in here)


def _attack_again(
    shown: Records, samples: Data, job: Job, module: nn.Module, batch_size: int
) -> Iterator[tuple[int, Array]]:
    """(index, r) of the samples that come out as their rows say."""
    # Compiling takes a minute, too long for a few samples.
    worker = Worker(replace(job, keep_perturbations=True, may_halve=True, compile=False), module)
    index = shown.index.tolist()
    for start in range(0, len(index), batch_size):
        part = index[start : start + batch_size]
        batch = Batch(part, np.asarray(samples.batch(part)), samples.labels[part].tolist())
        for group in worker.run(batch):
            for i, row in enumerate(group.rows):
                if group.r is not None and _is_same(row, shown, index.index(row["index"])):
                    yield row["index"], group.r[i]


def _is_same(row: Row, shown: Records, at: int) -> bool:
    then = float(shown.r["p"][at])
    return bool(
        row["status"] == Status.FOOLED.name
        and row["adv_label"] == int(shown.adv_label[at])
        and abs(row["r_p"] - then) <= CLOSE * then
    )


def _draw(samples: Data, index: list[int], found: Sequence[Array], shrink: int, notes: list[str]) -> Stored:
    original, perturbed, perturbation, factors = [], [], [], []
    for each, r in zip(index, found, strict=True):
        x = np.asarray(samples.batch([each])[0])
        original.append(to_levels(_reduce(x, shrink)))
        perturbed.append(to_levels(_reduce(x + r, shrink)))
        stretched, factor = stretch(_reduce(r, shrink))
        perturbation.append(np.rint(127 * stretched).astype(np.int8))
        factors.append(factor)
    return Stored(
        np.array(index, np.int64), np.stack(original), np.stack(perturbed), np.stack(perturbation), np.array(factors),
        files=[samples.file(each) for each in index], notes=notes,
    )  # fmt: skip


def _nothing(*notes: str) -> Stored:
    pixels = np.zeros((0, 1, 1, 1), np.uint8)
    return Stored(np.zeros(0, np.int64), pixels, pixels, pixels.astype(np.int8), np.zeros(0), notes=list(notes))


def _reduce(x: Array, shrink: int) -> Array:
    """(c, h, w) with width and height divided by `shrink`: the mean of each block, of part of one at the edges.

    >>> _reduce(np.arange(6.0).reshape(1, 2, 3), 2).tolist()
    [[[2.0, 3.5]]]
    """
    if shrink == 1:
        return x
    padding = [(0, 0), *((0, -side % shrink) for side in x.shape[1:])]
    padded = np.pad(np.asarray(x, np.float64), padding, constant_values=np.nan)
    channels, height, width = padded.shape
    blocks = padded.reshape(channels, height // shrink, shrink, width // shrink, shrink)
    return np.asarray(np.nanmean(blocks, axis=(2, 4)))


def _encode(stored: Stored) -> bytes:
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
