"""Aims: what counts as a changed decision, as `goal=` names it.

    other            another label than the predicted one (the default)
    target:3         class 3
    top:5            the label is no longer among the 5 best-scored classes
    margin:2         another label, ahead of the predicted one by 2
    confidence:0.9   another label, with a softmax probability of 0.9
    labels           one score per label, on above a threshold: any of them flips
    label:4          the same, and label 4 flips
    within:0.5       a regression model: an output leaves y ± 0.5
    passes:3         a regression model: an output passes 3, from either side

How an aim reads what the model returns is in `alternatives`. Here is no torch, so that runs can be read without it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from deepfool.errors import InputError


class Aim(ABC):
    """What counts as a changed decision."""

    reads: ClassVar[str] = "classes"
    """What an output is (`Classifier`): the score of a class, of a label of its own, or a value."""
    takes_target: ClassVar[bool] = False
    affine: ClassVar[bool] = True
    """Whether the alternatives are affine functions of what the model returns, so that `certify` can bound them."""
    wrong: ClassVar[str] = "the input itself is misclassified"
    """Why a sample is not attacked that does not agree with its label."""

    @property
    @abstractmethod
    def words(self) -> str:
        """The aim as the end of a sentence: "the smallest perturbation such that ..."."""

    def name_alternatives(self, outputs: int) -> tuple[str, ...]:
        """What the numbers of `label` and `adv_label` stand for; empty where they are classes."""
        return ()

    @abstractmethod
    def __str__(self) -> str: ...


@dataclass(frozen=True)
class Other(Aim):
    """Another label, or one that is given as a target."""

    takes_target = True
    words = "the label changes"

    def __str__(self) -> str:
        return "other"


@dataclass(frozen=True)
class Top(Aim):
    """Out of the k best-scored classes: k others are ahead of the label.

    With true labels it is the true label that is to leave, and a sample is wrong to begin with where it is not among
    the k best. The rival in the k-th place decides: those above it are read as that one. Where the label leaves, k
    boundaries meet, and the nearest point of all is a corner: DeepFool's steps go around it, `smallest` finds it to
    about a percent (tests/attacks/test_goals.py).
    """

    k: int
    affine = False

    @property
    def words(self) -> str:
        return f"the label leaves the top {self.k}"

    def __str__(self) -> str:
        return f"top:{self.k}"


@dataclass(frozen=True)
class Margin(Aim):
    """Another label (or the target), ahead by a margin: the others start with so much less."""

    ahead: float
    takes_target = True

    @property
    def words(self) -> str:
        return f"another label is ahead by {self.ahead:g}"

    def __str__(self) -> str:
        return f"margin:{self.ahead:g}"


@dataclass(frozen=True)
class Confidence(Aim):
    """Another label (or the target) with this softmax probability: z_k - log sum_{j != k} exp z_j = logit(share)."""

    share: float
    takes_target = True
    affine = False

    @property
    def words(self) -> str:
        return f"another label has a probability of {self.share:g}"

    def __str__(self) -> str:
        return f"confidence:{self.share:g}"


@dataclass(frozen=True)
class Flip(Aim):
    """A model with a score for each of several labels: any of them flips, or the given one.

    The alternatives are the labels that count, and after them what holds at x_0.
    """

    label: int | None = None
    reads = "labels"
    wrong = "the labels at the input itself are not the true ones"

    @property
    def words(self) -> str:
        return "any label flips" if self.label is None else f"label {self.label} flips"

    def name_alternatives(self, outputs: int) -> tuple[str, ...]:
        return (*(f"label {j}" for j in (range(outputs) if self.label is None else (self.label,))), "unchanged")

    def __str__(self) -> str:
        return "labels" if self.label is None else f"label:{self.label}"


@dataclass(frozen=True)
class Within(Aim):
    """A regression model: an output leaves y ± width, y being the true value if it is given, else the prediction.

    The alternatives are: within, the outputs above, the outputs below.
    """

    width: float
    reads = "values"
    wrong = "the output at the input itself is not within the goal of the true value"

    @property
    def words(self) -> str:
        return f"the output leaves y ± {self.width:g}"

    def name_alternatives(self, outputs: int) -> tuple[str, ...]:
        if outputs == 1:
            return ("within", "above", "below")
        return ("within", *(f"output {j} {side}" for side in ("above", "below") for j in range(outputs)))

    def __str__(self) -> str:
        return f"within:{self.width:g}"


@dataclass(frozen=True)
class Passes(Aim):
    """A regression model: an output passes a value, from the side that it is on (at the value counts as below)."""

    value: float
    reads = "values"
    wrong = "the output at the input itself is on the other side than the true value"

    @property
    def words(self) -> str:
        return f"the output passes {self.value:g}"

    def name_alternatives(self, outputs: int) -> tuple[str, ...]:
        return ("before", *(("passed",) if outputs == 1 else (f"output {j} passed" for j in range(outputs))))

    def __str__(self) -> str:
        return f"passes:{self.value:g}"


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < math.inf:
        raise ValueError
    return number


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return number


def _share(text: str) -> float:
    number = float(text)
    if not 0 < number < 1:
        raise ValueError
    return number


def _count(text: str, least: int = 0) -> int:
    if not text.isdecimal() or len(text) > 9 or int(text) < least:
        raise ValueError
    return int(text)


_NUMBERED: dict[str, tuple[Callable[[str], Aim], str]] = {
    "top": (lambda text: Top(_count(text, 1)), "a whole number >= 1, such as top:5"),
    "margin": (lambda text: Margin(_positive(text)), "a number > 0, such as margin:2"),
    "confidence": (lambda text: Confidence(_share(text)), "a number between 0 and 1, such as confidence:0.9"),
    "label": (lambda text: Flip(_count(text)), "the number of a label, such as label:4"),
    "within": (lambda text: Within(_positive(text)), "a number > 0, such as within:0.5"),
    "passes": (lambda text: Passes(_finite(text)), "a number, such as passes:3"),
}
KINDS = ("other", "target:K", "top:K", "margin:M", "confidence:C", "labels", "label:K", "within:T", "passes:T")


def read_goal(goal: str | Aim | None, target: Any = None) -> tuple[Aim, Any]:
    """The aim that a text names, and the target: the one that is given, or that of the text.

    >>> read_goal("top:5")[0].words
    'the label leaves the top 5'
    >>> read_goal("target:3")
    (Other(), 3)
    >>> read_goal("top:none")
    Traceback (most recent call last):
    ...
    deepfool.errors.InputError: the goal top needs a whole number >= 1, such as top:5, got 'none'.
    """
    aim, named = _parse(goal)
    if named is not None and target is not None:
        raise InputError(f"the goal is {goal}, and target is given too: leave one of them out.")
    target = named if target is None else target
    if target is not None and not aim.takes_target:
        raise InputError(
            f"a target does not go with the goal {aim}.", hint="it goes with other, margin and confidence."
        )
    return aim, target


def _parse(goal: str | Aim | None) -> tuple[Aim, int | None]:
    if goal is None or isinstance(goal, Aim):
        return goal or Other(), None
    if not isinstance(goal, str):
        raise InputError(f"goal must be a text such as top:5, got {goal!r:.80}.", hint=f"one of {', '.join(KINDS)}.")
    kind, colon, text = goal.strip().partition(":")
    if not colon and kind in ("other", "labels"):
        return (Other() if kind == "other" else Flip()), None
    try:
        if kind == "target":
            return Other(), _count(text)
        if kind in _NUMBERED:
            return _NUMBERED[kind][0](text), None
    except ValueError:
        needs = _NUMBERED[kind][1] if kind in _NUMBERED else "the number of a class, such as target:3"
        raise InputError(f"the goal {kind} needs {needs}, got {text!r:.80}.") from None
    raise InputError(f"there is no goal {goal!r:.80}.", hint=f"one of {', '.join(KINDS)}.")


def find_goal(knobs: Any) -> Aim:
    """The aim of a run with these knobs; runs from before there were goals left the label.

    >>> str(find_goal({"goal": "top:5"})), str(find_goal({}))
    ('top:5', 'other')
    """
    goal = knobs.get("goal")
    return _parse(goal)[0] if isinstance(goal, str | Aim) else Other()


def check_reading(aim: Aim, threshold: float | None) -> None:
    """A threshold is where a score decides: values have none, apart from that of the goal itself."""
    if threshold is not None and aim.reads == "values":
        raise InputError(f"threshold does not go with the goal {aim}.", hint="passes:T names the value to pass.")
