"""The most fragile and the most robust samples, as cards: drawn from the rows and `gallery.safetensors` alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from deepfool.display.pixels import colour, lay_out, to_data_uri
from deepfool.errors import DeepFoolError
from deepfool.reporting.naming import name_class, names_of_run
from deepfool.reporting.wording import format_number, format_percent
from deepfool.runs.gallery import GALLERY, Stored, choose_samples, read_gallery
from deepfool.runs.records import Run
from deepfool.runs.rows import Records


@dataclass(frozen=True)
class Card:
    """One sample."""

    index: int
    label: int
    name: str
    adv_name: str
    true_name: str | None
    """None if it is unknown."""
    wrong: bool
    """Whether the model was wrong before the perturbation."""
    end: str
    """"fragile" or "robust": which end of the run it belongs to."""
    ratio: float
    norm: float
    file: str | None = None
    original: str = ""
    perturbed: str = ""
    perturbation: str = ""
    factor: float = 0.0
    width: int = 0

    @property
    def description(self) -> str:
        """What the images show, for screen readers."""
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
    """The cards, and notes about them."""

    cards: list[Card] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    pictures: bool = False
    grey: bool = False
    """Whether the images have one channel."""

    @property
    def labels(self) -> list[tuple[int, str]]:
        """The classes to filter by."""
        return sorted({(card.label, card.name) for card in self.cards})


def make_gallery(run: Run, records: Records) -> Gallery:
    """The gallery of a run; without stored images, the samples are listed and a note says why."""
    chosen = records.pick(choose_samples(records))
    if not len(chosen):
        return Gallery(notes=["There is nothing to show: no perturbation was found."])
    median = float(np.median(records.ratio("p")[records.fooled]))
    cards = _describe(run, chosen, median)
    return _add_pictures(run, records, cards, _note_absent(records))


def _note_absent(records: Records) -> list[str]:
    """Samples without an answer have no place between fragile and robust."""
    if not (lost := int(records.censored.sum())):
        return []
    whom = "sample whose search had no answer is" if lost == 1 else "samples whose searches had no answer are"
    return [f"{lost:,} {whom} not among these, and may be more fragile or more robust than all of them."]


def _add_pictures(run: Run, records: Records, cards: list[Card], notes: list[str]) -> Gallery:
    if len(records) < run.expected:
        note = "There are no pictures yet: they are added when the run is complete. The same command resumes it."
        return Gallery(cards, [*notes, note])
    try:
        stored = read_gallery(run)
    except DeepFoolError as error:
        return Gallery(cards, [*notes, f"There are no pictures: {error}"])
    if stored is None:
        return Gallery(cards, [*notes, _explain_absence(run)])
    drawn = list(_draw(cards, stored))
    if not drawn:
        return Gallery(cards, [*notes, *stored.notes])
    return Gallery(drawn, [*notes, *stored.notes], pictures=True, grey=stored.original.shape[1] == 1)


def _explain_absence(run: Run) -> str:
    return (
        f"There are no pictures: the run folder has no {GALLERY}. To add it, give the `deepfool evaluate` command of "
        f"this run again with --out {run.folder.name}; samples that are already measured are not measured again. A run "
        f"made by another version of deepfool has to be measured again, into a new folder."
    )


def _describe(run: Run, chosen: Records, median: float) -> list[Card]:
    names, ratios = names_of_run(run), chosen.ratio("p")
    cards = []
    for i, index in enumerate(chosen.index.tolist()):
        label, adv, true = (int(column[i]) for column in (chosen.label, chosen.adv_label, chosen.true_label))
        cards.append(
            Card(
                index=index, label=label, name=name_class(names, label), adv_name=name_class(names, adv),
                true_name=name_class(names, true) if true >= 0 else None, wrong=true >= 0 and true != label,
                end="fragile" if ratios[i] <= median else "robust", ratio=float(ratios[i]),
                norm=float(chosen.r["p"][i]),
            )
        )  # fmt: skip
    return cards


def _draw(cards: Sequence[Card], stored: Stored) -> Iterator[Card]:
    """The cards that have images, with them."""
    place: Mapping[int, int] = {index: i for i, index in enumerate(stored.index.tolist())}
    for card in cards:
        i = place.get(card.index)
        if i is not None:
            yield replace(
                card, original=to_data_uri(lay_out(stored.original[i])),
                perturbed=to_data_uri(lay_out(stored.perturbed[i])),
                perturbation=to_data_uri(colour(stored.perturbation[i] / 127)), factor=float(stored.factor[i]),
                width=stored.original.shape[-1], file=stored.files[i],
            )  # fmt: skip
