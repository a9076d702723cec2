"""Several runs on one page, compared: each with the first one in words, and the same samples side by side."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from deepfool.display.pixels import colour, lay_out, to_data_uri
from deepfool.errors import DeepFoolError
from deepfool.metrics import Estimate
from deepfool.metrics.pairing import Pairing, pair
from deepfool.outcomes import Status
from deepfool.reporting.naming import name_class, names_of_run
from deepfool.reporting.wording import format_number, format_percent, name_norm
from deepfool.runs.gallery import Stored, read_gallery
from deepfool.runs.records import Run
from deepfool.runs.rows import Records

LETTERS = string.ascii_uppercase
"""The runs of a page, in their order."""
MOST = 12
"""So many samples are shown side by side."""


@dataclass(frozen=True)
class Pair:
    """Two runs compared sample by sample, or the reason why they cannot be compared."""

    a: str
    b: str
    found: Pairing | None
    why: str = ""


def compare_with_first(runs: Sequence[Run], names: Sequence[str]) -> list[Pair]:
    """Each run compared with the first one."""
    pairs = []
    for i, (run, name) in enumerate(zip(runs[1:], names[1:], strict=True), 1):
        try:
            pairs.append(Pair(names[0], name, pair(runs[0], run, letters=(LETTERS[0], LETTERS[i % len(LETTERS)]))))
        except DeepFoolError as error:
            pairs.append(Pair(names[0], name, None, str(error).partition(" Hint:")[0]))
    return pairs


def format_difference(mean: Estimate) -> str:
    """A difference with its interval.

    >>> format_difference(Estimate(-0.0452, -0.0507, -0.0402, 200))
    '-0.0452 [-0.0507, -0.0402]'
    """
    value, low, high = (format_number(each) for each in (mean.value, mean.low, mean.high))
    return f"{value} [{low}, {high}]"


@dataclass(frozen=True)
class View:
    """What one run found for a sample."""

    place: int
    """Which run, counted from 0."""
    before: str
    after: str
    facts: str
    perturbed: str = ""
    perturbation: str = ""


@dataclass(frozen=True)
class Shown:
    """A sample, seen by several runs."""

    index: int
    true_name: str | None
    original: str
    views: list[View]
    factor: str
    sharp: bool


@dataclass(frozen=True)
class SideBySide:
    """The samples that several runs kept pictures of."""

    samples: list[Shown] = field(default_factory=list)
    note: str = ""
    grey: bool = False


@dataclass(frozen=True)
class _Member:
    """A run with its rows and pictures, by sample."""

    place: int
    run: Run
    records: Records
    stored: Stored | None
    rows: dict[int, int]
    pictures: dict[int, int]


def show_side_by_side(runs: Sequence[Run], records: Sequence[Records]) -> SideBySide:
    """The same samples, as each run on the data of the first one perturbs them.

    Runs keep pictures of a few samples that the data chose (see `deepfool.runs.gallery`), so that those of two runs are
    the same; and of the most fragile and the most robust ones, which are the same only by chance.
    """
    data = runs[0].identity["data"]["sha256"]
    members = [
        _gather(i, run, rows)
        for i, (run, rows) in enumerate(zip(runs, records, strict=True))
        if run.identity["data"]["sha256"] == data
    ]
    if len(members) < 2:
        return SideBySide(note="The runs are on different data, so no sample is in two of them.")
    kept = [set(member.pictures) for member in members]
    count = {index: sum(index in each for each in kept) for index in sorted(set().union(*kept))}
    chosen = sorted((index for index in count if count[index] >= 2), key=lambda index: (-count[index], index))[:MOST]
    if not chosen:
        return SideBySide(
            note="The runs kept pictures of different samples, or of none. Runs on images that are measured with this "
            "version of deepfool keep some in common."
        )
    shown = [_show(members, index) for index in sorted(chosen)]
    grey = next(member.stored.original.shape[1] == 1 for member in members if member.stored and member.pictures)
    return SideBySide(shown, grey=grey)


def _gather(place: int, run: Run, records: Records) -> _Member:
    try:
        stored = read_gallery(run)
    except DeepFoolError:  # the gallery of that run says why
        stored = None
    pictures = {} if stored is None else {index: i for i, index in enumerate(stored.index.tolist())}
    rows = {index: i for i, index in enumerate(records.index.tolist())}
    return _Member(place, run, records, stored, rows, {index: i for index, i in pictures.items() if index in rows})


def _show(members: Sequence[_Member], index: int) -> Shown:
    factors = [
        float(member.stored.factor[member.pictures[index]])
        for member in members
        if member.stored is not None and index in member.pictures
    ]
    factor = min((each for each in factors if each > 0), default=0.0)  # the same for all, so that sizes can be compared
    first = next(member for member in members if member.stored is not None and index in member.pictures)
    assert first.stored is not None
    pixels = first.stored.original[first.pictures[index]]
    true = int(first.records.true_label[first.rows[index]])
    return Shown(
        index=index, true_name=name_class(names_of_run(first.run), true) if true >= 0 else None,
        original=to_data_uri(lay_out(pixels)), views=[_view(member, index, factor) for member in members],
        factor=format_number(factor, 2), sharp=pixels.shape[-1] <= 96,
    )  # fmt: skip


def _view(member: _Member, index: int, factor: float) -> View:
    if index not in member.rows:
        return View(member.place, "", "", "not in this run")
    i, records, names = member.rows[index], member.records, names_of_run(member.run)
    before = name_class(names, int(records.label[i]))
    if records.status[i] != Status.FOOLED:
        skipped = records.status[i] == Status.MISCLASSIFIED
        return View(member.place, before, "", "skipped: misclassified" if skipped else "no answer")
    run = member.run
    facts = f"{format_percent(float(records.ratio('p')[i]))} · {name_norm(run.p, run.unit, run.weighted)} "
    facts += format_number(float(records.r["p"][i]))
    perturbed = perturbation = ""
    if member.stored is not None and index in member.pictures:
        j = member.pictures[index]
        own = float(member.stored.factor[j])
        stretched = np.clip(member.stored.perturbation[j] / 127 * (factor / own if own else 0.0), -1, 1)
        perturbed = to_data_uri(lay_out(member.stored.perturbed[j]))
        perturbation = to_data_uri(colour(stretched))
    after = name_class(names, int(records.adv_label[i]))
    return View(member.place, before, after, facts, perturbed, perturbation)
