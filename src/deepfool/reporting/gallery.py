"""The most fragile and the most robust samples, to look at.

Perturbations come from the run where it kept them. Where it did not, those few samples are attacked again, if model
and data can be found and have the hashes of the manifest; a row that does not come out as the run says is not shown.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from deepfool.attacks.shared.adversarial import Status
from deepfool.datasets import Data
from deepfool.errors import DeepFoolError, RunError
from deepfool.models.sources import Source
from deepfool.reporting.images import Array, is_picture, show_perturbation, to_data_uri, to_pixels
from deepfool.reporting.naming import name_class, names_of_run
from deepfool.reporting.wording import format_number, format_percent
from deepfool.runs.records import Run, read_shard, refuse_code
from deepfool.runs.rows import Ints, Records, Row
from deepfool.runs.verification import find_subjects
from deepfool.runs.worker import Batch, Job, Worker

EACH_END = 12
"""How many of the most fragile, and of the most robust."""
PER_CLASS = 2
"""And of each predicted class, so that the filter finds some."""
MOST = 72
BUDGET = 3_000_000
"""Characters of pictures that a gallery may take."""
PATIENCE = 60.0
"""Seconds of attack that may be spent on pictures, going by the time that the rows took."""
CLOSE = 1e-3
"""By how much, relatively, a norm may differ when a sample is attacked again."""


@dataclass(frozen=True)
class Card:
    """One sample."""

    index: int
    label: int
    name: str
    adv_name: str
    true_name: str | None
    """None where it is not known."""
    wrong: bool
    """Wrong to begin with."""
    end: str
    """"fragile" or "robust": on which end of the run it lies."""
    ratio: float
    norm: float
    file: str | None = None
    original: str = ""
    perturbed: str = ""
    perturbation: str = ""
    factor: float = 0.0
    width: int = 0

    @property
    def told(self) -> str:
        """What the pictures show, for those who do not see them."""
        return (
            f"sample {self.index}: {self.name} becomes {self.adv_name} with a perturbation of "
            f"{format_percent(self.ratio)} of its size"
        )

    @property
    def ratio_text(self) -> str:
        return format_percent(self.ratio)

    @property
    def norm_text(self) -> str:
        return format_number(self.norm)

    @property
    def factor_text(self) -> str:
        return format_number(self.factor, 2)


@dataclass(frozen=True)
class Gallery:
    """The cards, and what has to be said about them."""

    cards: list[Card] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    pictures: bool = False

    @property
    def labels(self) -> list[tuple[int, str]]:
        """The classes to filter by."""
        return sorted({(card.label, card.name) for card in self.cards})


def choose_samples(records: Records) -> Ints:
    """Positions of the samples to show: both ends, and both ends of each class.

    >>> rows = [{"index": i, "label": i % 2, "status": "FOOLED", "r_p": i + 1.0, "x_p": 1.0} for i in range(100)]
    >>> chosen = choose_samples(Records.of(rows, p=2))
    >>> len(chosen), chosen[:3].tolist(), chosen[-1].item()
    (24, [0, 1, 2], 99)
    """
    ratios = records.ratio("p")
    usable = np.flatnonzero(records.fooled & np.isfinite(ratios))
    order = usable[np.argsort(ratios[usable], kind="stable")]
    wanted = [*order[:EACH_END].tolist(), *order[-EACH_END:].tolist()]
    for label in np.unique(records.label[order]).tolist():
        if len(set(wanted)) >= MOST:
            break
        own = order[records.label[order] == label]
        wanted += [*own[:PER_CLASS].tolist(), *own[-PER_CLASS:].tolist()]
    chosen = np.array(sorted(set(wanted)), np.int64)
    return chosen[np.argsort(ratios[chosen], kind="stable")]


def make_gallery(
    run: Run, records: Records, *, model: Any = None, data: Any = None, may_run_code: bool = False
) -> Gallery:
    """The gallery of a run; `model` and `data` where the run was made from objects.

    A manifest can name code to run (`py:` models, attacks as module:function). That is done only if `may_run_code`.
    """
    chosen = records.pick(choose_samples(records))
    if not len(chosen):
        return Gallery(notes=["There is nothing to show: no perturbation was found."])
    median = float(np.median(records.ratio("p")[records.fooled]))
    cards = [_describe(run, chosen, i, median) for i in range(len(chosen))]
    try:
        source, samples = find_subjects(run, model, data, may_run_code=may_run_code)
        found, notes = _find_perturbations(run, chosen, source, samples, may_run_code)
        if not is_picture(tuple(samples.batch([0]).shape[1:])):
            shape = tuple(samples.batch([0]).shape[1:])
            return Gallery(cards, [*notes, f"The samples are no pictures (their shape is {shape}): listed by number."])
        shown, more = _draw(cards, found, samples)
        return Gallery(shown, [*notes, *more], pictures=True)
    except DeepFoolError as error:
        return Gallery(cards, [f"The pictures are missing: {error}"])


def _describe(run: Run, chosen: Records, i: int, median: float) -> Card:
    names = names_of_run(run)
    label, adv, true = (int(column[i]) for column in (chosen.label, chosen.adv_label, chosen.true_label))
    ratio = float(chosen.ratio("p")[i])
    return Card(
        index=int(chosen.index[i]), label=label, name=name_class(names, label), adv_name=name_class(names, adv),
        true_name=name_class(names, true) if true >= 0 else None, wrong=true >= 0 and true != label,
        end="fragile" if ratio <= median else "robust", ratio=ratio, norm=float(chosen.r["p"][i]),
    )  # fmt: skip


def _find_perturbations(
    run: Run, chosen: Records, source: Source, samples: Data, may_run_code: bool
) -> tuple[dict[int, Array], list[str]]:
    """r by index."""
    wanted = set(chosen.index.tolist())
    if run.identity["perturbations"]:
        return dict(_read_stored(run, wanted)), []
    if not may_run_code:
        refuse_code(run, "attack")
    affordable = _afford(chosen)
    found = dict(_attack_again(run, chosen.pick(affordable), source, samples))
    notes = []
    if len(affordable) < len(chosen):
        notes.append(f"Only {len(affordable)} samples are shown: to attack more again would take too long. ")
    if len(found) < len(affordable):
        notes.append(f"{len(affordable) - len(found)} samples came out otherwise than in the run and are left out.")
    return found, notes


def _read_stored(run: Run, wanted: set[int]) -> Iterator[tuple[int, Array]]:
    for group in run.groups():
        here = [i for i, row in enumerate(group) if row["index"] in wanted]
        if here:
            r = read_shard(run.folder, group)
            yield from ((group[i]["index"], r[i]) for i in here)


def _afford(chosen: Records) -> Ints:
    """Positions whose attacks fit the patience, from both ends inwards."""
    n = len(chosen)
    inwards = np.array([i // 2 if i % 2 == 0 else n - 1 - i // 2 for i in range(n)], np.int64)
    spent = np.cumsum(np.nan_to_num(chosen.seconds[inwards]))
    return np.sort(inwards[: max(2, int((spent <= PATIENCE).sum()))])


def _attack_again(run: Run, chosen: Records, source: Source, samples: Data) -> Iterator[tuple[int, Array]]:
    identity = run.identity
    job = Job(
        model=source.module, fingerprint=source.fingerprint, attack=identity["attack"]["name"], p=run.p,
        knobs=_read_knobs(identity["attack"]["knobs"]), dtype=identity["dtype"], seed=int(identity["seed"]),
        keep_perturbations=True,
    )  # fmt: skip
    worker = Worker(job, copy.deepcopy(source.module))
    index = chosen.index.tolist()
    for start in range(0, len(index), 16):
        part = index[start : start + 16]
        batch = Batch(part, np.asarray(samples.batch(part)), samples.labels[part].tolist())
        for group in worker.run(batch):
            for i, row in enumerate(group.rows):
                at = start + part.index(row["index"])
                if group.r is not None and _same(row, chosen, at):
                    yield row["index"], group.r[i]


def _same(row: Row, chosen: Records, at: int) -> bool:
    then = float(chosen.r["p"][at])
    return bool(
        row["status"] == Status.FOOLED.name
        and row["adv_label"] == int(chosen.adv_label[at])
        and abs(row["r_p"] - then) <= CLOSE * then
    )


def _read_knobs(knobs: Mapping[str, Any]) -> dict[str, Any]:
    """Knobs out of a manifest; tensors are known there by their hash alone."""
    read = {}
    for name, value in knobs.items():
        if isinstance(value, Mapping):
            raise RunError(f"the knob {name} was a tensor, which the manifest does not hold.")
        plain = tuple(map(_read_value, value)) if isinstance(value, list) else _read_value(value)
        read[name] = plain
    return read


def _read_value(value: Any) -> Any:
    return float(value) if value in ("inf", "-inf", "nan") else value


def _draw(cards: Sequence[Card], found: Mapping[int, Array], samples: Data) -> tuple[list[Card], list[str]]:
    """The cards with their pictures, both ends first, as far as the budget goes."""
    have = [card for card in cards if card.index in found]
    inwards = [have[i // 2 if i % 2 == 0 else len(have) - 1 - i // 2] for i in range(len(have))]
    drawn: list[Card] = []
    size = 0
    for card in inwards:
        done = _draw_card(card, np.asarray(samples.batch([card.index])[0]), found[card.index], samples.file)
        size += len(done.original) + len(done.perturbed) + len(done.perturbation)
        if size > BUDGET and drawn:
            break
        drawn.append(done)
    notes = []
    if len(drawn) < len(have):
        notes.append(f"{len(drawn)} samples are shown, so that the page stays small.")
    return sorted(drawn, key=lambda card: card.ratio), notes


def _draw_card(card: Card, x: Array, r: Array, file: Callable[[int], str | None]) -> Card:
    pixels, factor = show_perturbation(r)
    about = {
        **vars(card), "original": to_data_uri(to_pixels(x)), "perturbed": to_data_uri(to_pixels(x + r)),
        "perturbation": to_data_uri(pixels), "factor": factor, "width": x.shape[-1], "file": file(card.index),
    }  # fmt: skip
    return Card(**about)
