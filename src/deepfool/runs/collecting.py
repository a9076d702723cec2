"""The pictures for the gallery of a run, collected when the run completes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from torch import nn

from deepfool import cache
from deepfool.datasets import Data
from deepfool.display.pixels import Array, is_image, stretch, to_levels
from deepfool.errors import DataError, DeepFoolError, RunError
from deepfool.outcomes import Status
from deepfool.runs.gallery import GALLERY, IN_COMMON, MOST_BYTES, Stored, choose_samples, encode
from deepfool.runs.records import Run, read_shard
from deepfool.runs.rows import Ints, Records, Row
from deepfool.runs.worker import Batch, Job, Worker

LEAST = 8
"""Images are reduced in size until this many fit."""
CLOSE = 1e-3
"""The largest relative difference between the norm of a perturbation computed again and the norm in its row."""


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
        cache.write(path, encode(stored))
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
