"""Two runs compared in words: what they are, how their measurements differ, and which model is more robust.

A sentence about robustness needs two models that were measured in the same way, and an answer for every sample. Two
measurements of one model are compared too, but then the sentence is about what the attacks find.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from deepfool.errors import RunError
from deepfool.metrics.comparison import FEWEST, TRIFLE, Comparison, check_same_data, compare, shared_norm
from deepfool.metrics.conditions import count_words
from deepfool.metrics.estimates import Estimate, as_json
from deepfool.metrics.formatting import format_number, format_percent
from deepfool.metrics.health import write_measured
from deepfool.metrics.measures import describe_measure
from deepfool.metrics.settings import ask_the_same, find_differences, find_remarks
from deepfool.runs.records import Run
from deepfool.runs.rows import Records

LEVEL = 0.05
"""The level of the signed-rank test, as that of the 95 % intervals."""


@dataclass(frozen=True)
class Pairing:
    """Two runs, A and B, and what can be said of them."""

    a: Run
    b: Run
    norm: str
    """As in `compare`."""
    found: Comparison
    differences: tuple[str, ...]
    """How the measurements differ; models are compared only if this is empty."""
    remarks: tuple[str, ...]
    letters: tuple[str, str] = ("A", "B")

    @property
    def same_model(self) -> bool:
        return bool(self.a.identity["model"]["sha256"] == self.b.identity["model"]["sha256"])

    @property
    def about(self) -> str:
        """What the comparison is about: "models", "attacks" (one model, measured in two ways), or "nothing"."""
        if self.same_model:
            return "attacks" if self.differences else "repeat"
        return "nothing" if self.differences else "models"

    @property
    def more_robust(self) -> str | None:
        """ "a" or "b"; None if there is no difference beyond chance, or it is not known."""
        mean = self.found.mean_difference
        if self.about != "models" or not self.found.beyond_chance or mean is None:
            return None
        return "b" if mean.value > 0 else "a"

    @property
    def names(self) -> tuple[str, str]:
        """A and B with what tells them apart."""
        tags = [(run.manifest["model"]["spec"], run.identity["attack"]["name"], run.folder.name) for run in self.runs]
        which = next((i for i in range(3) if tags[0][i] != tags[1][i]), 2)
        return f"{self.letters[0]} ({tags[0][which]})", f"{self.letters[1]} ({tags[1][which]})"

    @property
    def runs(self) -> tuple[Run, Run]:
        return self.a, self.b

    @property
    def sentence(self) -> str:
        """Which is more robust, and whether that is beyond chance."""
        return " ".join(_write(self))

    @property
    def notes(self) -> list[str]:
        """What a reader has to know beside the sentence."""
        found, notes = self.found, []
        if self.differences:
            notes.append(f"the runs were not measured in the same way: {'; '.join(self.differences)}.")
        if self.remarks:
            notes.append(f"the runs also differ in: {'; '.join(self.remarks)}.")
        if found.only_a or found.only_b:
            notes.append(
                f"left out: {count_words(found.only_a, 'sample')} of {self.letters[0]} and {found.only_b} of "
                f"{self.letters[1]} that are not in both runs, were skipped, or are all zeros."
            )
        for name, run, count in zip(self.names, self.runs, (found.pairs + found.only_a, found.pairs + found.only_b),
                                    strict=True):  # fmt: skip
            if count < run.expected:
                notes.append(f"{name} is not complete: {count} of {run.expected} samples.")
        return notes

    def as_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {
            "a": _describe(self.a), "b": _describe(self.b), "about": self.about, "sentence": self.sentence,
            "more_robust": self.more_robust, "differences": list(self.differences), "notes": self.notes,
            **self.found.as_dict(), "norm": name_norm(self.a, self.norm),
        }  # fmt: skip


def pair(
    a: Run, b: Run, norm: str | None = None, *, anyway: bool = False, letters: tuple[str, str] = ("A", "B")
) -> Pairing:
    """Compare two runs on the same data.

    Two models that were measured in different ways (attack, norm, bounds or knobs) are refused, unless `anyway`: then
    there are figures, but no sentence on which is more robust.

    >>> import tempfile, torch
    >>> from deepfool import evaluate
    >>> def plane(c):
    ...     model = torch.nn.Linear(3, 1)
    ...     torch.nn.init.ones_(model.weight), torch.nn.init.constant_(model.bias, c)
    ...     return model
    >>> data = (torch.rand(30, 3), None)
    >>> with tempfile.TemporaryDirectory() as here:
    ...     near, far = (evaluate(plane(c), data, out=f"{here}/{c}") for c in (1, 2))
    ...     pair(near, far).sentence[:30]
    'B (2) is more robust than A (1'
    """
    check_same_data(a, b)
    chosen = shared_norm(a, b, norm)
    differences = tuple(find_differences(a, b))
    same = a.identity["model"]["sha256"] == b.identity["model"]["sha256"]
    if differences and not same and not anyway:
        raise RunError(
            f"the models were measured in different ways, so which is more robust cannot be told: "
            f"{'; '.join(differences)}.",
            hint="measure both alike, or see the figures without a verdict: --anyway.",
        )
    found = compare(_read(a), _read(b), chosen)
    return Pairing(a, b, chosen, found, differences, tuple(find_remarks(a, b)), letters)


def _read(run: Run) -> Records:
    records = run.records()
    if not len(records):
        raise RunError(f"{run.folder} has no rows to compare.", hint="resume it: the same `deepfool evaluate` command.")
    return records


def name_norm(run: Run, norm: str) -> str:
    """The norm of a comparison: "p" is that of the attack."""
    return run.norm if norm == "p" else norm


def _describe(run: Run) -> dict[str, Any]:
    identity = run.identity
    return {
        "run": str(run.folder), "model": run.manifest["model"]["spec"], "model_sha256": identity["model"]["sha256"],
        "data": run.manifest["data"]["name"], "data_sha256": identity["data"]["sha256"],
        "attack": identity["attack"]["name"], "p": as_json(run.p), "knobs": identity["attack"]["knobs"],
        "dtype": identity["dtype"], "seed": identity["seed"], "samples": run.expected,
        "measured": write_measured(identity),
    }  # fmt: skip


def _write(pairing: Pairing) -> Iterator[str]:
    found, (a, b) = pairing.found, pairing.names
    if found.mean_difference is None:
        yield from _write_unknown(pairing)
        return
    beyond, change = found.beyond_chance, found.change or 0.0
    same_size = abs(change) < TRIFLE
    larger, smaller = (b, a) if found.mean_difference.value > 0 else (a, b)
    size = _write_change(found, describe_measure(pairing.a).whole)
    if pairing.about == "models" and beyond:
        yield f"{larger} is more robust than {smaller}: the perturbations found are {size}."
        yield f"This is beyond chance: {_write_interval(found.mean_difference)} leaves out 0."
    elif pairing.about == "models" and beyond is None:
        yield f"Which of {a} and {b} is more robust cannot be told from {count_words(found.pairs, 'sample')}: at least"
        yield f"{FEWEST} are needed. On these, the perturbations found for {larger} are {size}."
    elif pairing.about == "models":
        yield f"{a} and {b} are equally robust, as far as {found.pairs} samples can tell:"
        if same_size:
            yield "the perturbations found are of the same size."
        else:
            yield f"the perturbations found for {larger} are {size}, but that may be chance:"
            yield f"{_write_interval(found.mean_difference)} contains 0."
    else:
        yield from _write_measurements(pairing, larger, smaller, size)
    yield from _write_proof(pairing)
    yield from _write_ranks(pairing)


def _write_proof(pairing: Pairing) -> Iterator[str]:
    """On these samples nothing is left to the attack where one is certified beyond what was found for the other."""
    found = pairing.found
    if pairing.about != "models" or found.proved is None:
        return
    (a, b), second = pairing.names, found.proved == "b"
    bracket, rho = (found.bracket_b, found.rho_a) if second else (found.bracket_a, found.rho_b)
    assert bracket is not None
    yield (
        f"On these samples it is proved: {b if second else a} is certified for {format_number(bracket.lower.value)}, "
        f"more than what was found for {a if second else b} ({format_number(rho.value)})."
    )


def _write_measurements(pairing: Pairing, larger: str, smaller: str, size: str) -> Iterator[str]:
    """One model measured twice, or two models that are not to be compared."""
    found = pairing.found
    if pairing.about == "nothing":
        yield "Which model is more robust cannot be told, because they were measured in different ways."
        yield f"As measured, the perturbations of {larger} are {size}."
        return
    if pairing.about == "repeat":
        yield "Both runs measure the same model in the same way."
    elif pairing.differences[0].startswith("attack "):
        yield "Both runs measure the same model, by different attacks."
    else:
        yield "Both runs measure the same model, with different settings."
    if abs(found.change or 0.0) < TRIFLE:
        yield "The perturbations found are of the same size."
        return
    smaller_size = _write_change(found, describe_measure(pairing.a).whole, smaller=True)
    chance = {True: ", which is beyond chance", False: ", which may be chance", None: ""}[found.beyond_chance]
    yield f"{smaller} finds perturbations that are {smaller_size}{chance}."
    if pairing.about == "attacks" and ask_the_same(*pairing.runs):
        yield "What an attack finds is an upper bound on the distance, so the smaller one is nearer to the truth."


def _write_unknown(pairing: Pairing) -> Iterator[str]:
    found, (a, b) = pairing.found, pairing.names
    lost = f"{count_words(found.censored_a, 'sample')} of {a} and {found.censored_b} of {b} have no answer"
    what = "Which is more robust" if pairing.about == "models" else "Which finds smaller perturbations"
    yield f"{what} is not known: {lost}."
    if found.mean_answered is None:
        yield "No sample has an answer in both runs."
        return
    first, second = pairing.letters
    yield (
        f"Among the {count_words(found.answered, 'sample')} with an answer in both, the mean difference ({second} - "
        f"{first}) is {format_number(found.mean_answered.value)}, which says nothing about the others."
    )


def _write_change(found: Comparison, of: str, *, smaller: bool = False) -> str:
    """How much larger the larger mean is, or how much smaller the smaller one, with both values."""
    values = sorted((found.rho_a.value, found.rho_b.value))
    less, more = (format_number(value) for value in values)
    if values[0] <= 0:
        return f"{'smaller' if smaller else 'larger'} on average ({less} and {more} {of})"
    share = 1 - values[0] / values[1] if smaller else values[1] / values[0] - 1
    told = f"{less} against {more}" if smaller else f"{more} against {less}"
    return f"{format_percent(share, 2)} {'smaller' if smaller else 'larger'} on average ({told} {of})"


def _write_interval(mean: Estimate) -> str:
    return f"the 95 % interval of the mean difference, {format_number(mean.low)} .. {format_number(mean.high)},"


def _write_ranks(pairing: Pairing) -> Iterator[str]:
    """A remark where most samples say something else than the mean does."""
    found = pairing.found
    mean = found.mean_difference
    if mean is None or found.beyond_chance is None or abs(found.change or 0.0) < TRIFLE:
        return
    by_rank = np.sign(found.median_difference.value) if found.p_value < LEVEL else 0
    by_mean = np.sign(mean.value) if found.beyond_chance else 0
    if by_rank != by_mean:
        larger = pairing.letters[0 if found.larger_in_a > found.larger_in_b else 1]
        most = max(found.larger_in_a, found.larger_in_b)
        yield (
            f"The single samples say otherwise: {most} of {found.pairs} are larger in {larger} (Wilcoxon "
            f"{write_p(found.p_value)}), so look at the distribution too."
        )


def write_p(value: float) -> str:
    """A p-value as papers write it.

    >>> write_p(0.0312), write_p(1e-9)
    ('p = 0.031', 'p < 0.001')
    """
    return "p < 0.001" if value < 0.001 else f"p = {value:.2g}"
