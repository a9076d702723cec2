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

An aim reads what the model returns as *alternatives*: a column for the decision at x_0 and one for each way to change
it, which is taken once its column is the largest. Attacks see alternatives where they would see class scores, with the
gradients of the alternatives, and leave the label (`Leave`) or reach one (`Reach`) as ever. So every geometry, box,
mask and norm holds for every aim, and no attack asks which aim it is.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from deepfool.attacks.shared.arguments import Labels, as_tensor, check_labels
from deepfool.errors import InputError

Read = Callable[[Tensor, Tensor], Tensor]
"""From rows and what the model returns for them, (k, c), to alternatives (k, m), differentiably."""


@dataclass(frozen=True)
class Opened:
    """An aim at the inputs: which alternative holds there, and how to read the others."""

    label: Tensor
    """(n,): the alternative at x_0; for classifiers, the class to leave."""
    right: Tensor
    """(n,): whether the labels that were given agree with it; true without labels."""
    read: Read | None = None
    """None: the scores as they are."""
    offset: float = 0.0
    """How large a number is taken off the outputs: it adds to what may be rounding."""


class Aim(ABC):
    """What counts as a changed decision."""

    reads: ClassVar[str] = "classes"
    """What an output is (`Classifier`): the score of a class, of a label of its own, or a value."""
    takes_target: ClassVar[bool] = False
    affine: ClassVar[bool] = True
    """Whether the alternatives are affine functions of what the model returns, so that `certify` can bound them."""
    wrong: ClassVar[str] = "the input itself is misclassified"
    """Why a sample is not attacked that does not agree with its label."""

    @abstractmethod
    def open(self, z: Tensor, labels: Labels | None, target: Tensor | None) -> Opened:
        """The aim at the outputs z (n, c) of the inputs; `target` are the classes to reach, if any."""

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

    def open(self, z: Tensor, labels: Labels | None, target: Tensor | None) -> Opened:
        label = z.argmax(1)
        return Opened(label, _agree(labels, label, z))

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

    def open(self, z: Tensor, labels: Labels | None, target: Tensor | None) -> Opened:
        c = z.shape[1]
        if self.k >= c:
            raise InputError(f"goal {self} needs more than {self.k} classes, but the model has {c}.")
        label = z.argmax(1) if labels is None else check_labels(labels, "labels", len(z), z)
        ahead = (z > z.gather(1, label[:, None])).sum(1)

        def read(rows: Tensor, z: Tensor) -> Tensor:
            with torch.no_grad():
                rivals = torch.nan_to_num(z, nan=-math.inf).scatter(1, label[rows, None], -math.inf)
                best = rivals.topk(self.k, dim=1).indices
                above, last = best[:, :-1], best[:, -1:]
                source = torch.arange(c, device=z.device).expand_as(z).scatter(1, above, last.expand_as(above))
                # By a unit of rounding less, so that the class in the last place is the largest, and named.
                less = torch.zeros_like(z).scatter(1, above, (2 * torch.finfo(z.dtype).eps * z.gather(1, above)).abs())
            return z.gather(1, source) - less

        return Opened(label, ahead < self.k, None if self.k == 1 else read)

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

    def open(self, z: Tensor, labels: Labels | None, target: Tensor | None) -> Opened:
        label = z.argmax(1)
        handicap = torch.full_like(z, self.ahead).scatter(1, label[:, None], 0.0)
        if target is not None:
            handicap = torch.zeros_like(z).scatter(1, target[:, None], self.ahead)
        return Opened(label, _agree(labels, label, z), lambda rows, z: z - handicap[rows].to(z.dtype), self.ahead)

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

    def open(self, z: Tensor, labels: Labels | None, target: Tensor | None) -> Opened:
        label, needed = z.argmax(1), math.log(self.share / (1 - self.share))
        counts = torch.ones_like(z).scatter(1, label[:, None], 0.0)
        if target is not None:
            counts = torch.zeros_like(z).scatter(1, target[:, None], 1.0)

        def read(rows: Tensor, z: Tensor) -> Tensor:
            return counts[rows].to(z.dtype) * (z - _log_sum_of_others(z) - needed)

        return Opened(label, _agree(labels, label, z), read, abs(needed))

    def __str__(self) -> str:
        return f"confidence:{self.share:g}"


def _log_sum_of_others(z: Tensor) -> Tensor:
    """(n, c): log sum_{j != k} exp z_j for each k, also where one class has all of the probability.

    >>> _log_sum_of_others(torch.tensor([[100.0, 0.0, 0.0]]))
    tensor([[  0.6931, 100.0000, 100.0000]])
    """
    best = torch.zeros_like(z, dtype=torch.bool).scatter(1, z.argmax(1, keepdim=True), True)
    without = z.masked_fill(best, -math.inf).logsumexp(1, keepdim=True)
    share = z.softmax(1).masked_fill(best, 0.0)  # of the best class it may round to 1
    return torch.where(best, without, z.logsumexp(1, keepdim=True) + torch.log1p(-share))


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

    def open(self, z: Tensor, labels: Labels | None, target: Tensor | None) -> Opened:
        n, c = z.shape
        if self.label is not None and self.label >= c:
            raise InputError(f"goal {self} needs a label in [0, {c - 1}]: the model has {c}.")
        counts = slice(None) if self.label is None else slice(self.label, self.label + 1)
        away = torch.where(z > 0, -1.0, 1.0).to(z.dtype)[:, counts]

        def read(rows: Tensor, z: Tensor) -> Tensor:
            return torch.cat([away[rows] * z[:, counts], torch.zeros_like(z[:, :1])], 1)

        right = torch.ones(n, dtype=torch.bool, device=z.device)
        if labels is not None:
            right = (_check_on_off(labels, n, c, z.device) == (z > 0))[:, counts].all(1)
        return Opened(torch.full((n,), away.shape[1], device=z.device), right, read)

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

    def open(self, z: Tensor, labels: Labels | None, target: Tensor | None) -> Opened:
        y = z.detach().clone() if labels is None else _check_values(labels, z)
        right = ((z - y).abs() < self.width).all(1)
        if labels is None and not bool(right[z.isfinite().all(1)].all()):
            raise InputError(f"goal {self} must be wider than 0.")

        def read(rows: Tensor, z: Tensor) -> Tensor:
            off = z - y[rows]
            return torch.cat([torch.zeros_like(z[:, :1]), off - self.width, -off - self.width], 1)

        label = torch.zeros(len(z), dtype=torch.long, device=z.device)
        return Opened(label, right, read, self.width)

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

    def open(self, z: Tensor, labels: Labels | None, target: Tensor | None) -> Opened:
        above = z > self.value
        away = torch.where(above, -1.0, 1.0).to(z.dtype)
        right = torch.ones(len(z), dtype=torch.bool, device=z.device)
        if labels is not None:
            right = ((_check_values(labels, z) > self.value) == above).all(1)

        def read(rows: Tensor, z: Tensor) -> Tensor:
            return torch.cat([torch.zeros_like(z[:, :1]), away[rows] * (z - self.value)], 1)

        label = torch.zeros(len(z), dtype=torch.long, device=z.device)
        return Opened(label, right, read, abs(self.value))

    def name_alternatives(self, outputs: int) -> tuple[str, ...]:
        return ("before", *(("passed",) if outputs == 1 else (f"output {j} passed" for j in range(outputs))))

    def __str__(self) -> str:
        return f"passes:{self.value:g}"


def _agree(labels: Labels | None, label: Tensor, z: Tensor) -> Tensor:
    if labels is None:
        return torch.ones_like(label, dtype=torch.bool)
    return check_labels(labels, "labels", len(z), z) == label


def _check_on_off(labels: Any, n: int, c: int, device: torch.device) -> Tensor:
    """(n, c) booleans: which labels are on."""
    given = as_tensor(labels, "labels", f"zeros and ones, one per sample and label, ({n}, {c})", device)
    if given.shape != (n, c) or not bool(((given == 0) | (given == 1)).all()):
        raise InputError(f"labels must be zeros and ones, one per sample and label, ({n}, {c}), {_tell(given)}.")
    return given == 1


def _check_values(labels: Any, z: Tensor) -> Tensor:
    """(n, c): the true values of the outputs."""
    n, c = z.shape
    given = as_tensor(labels, "labels", f"the true values, one per sample and output, ({n}, {c})", z.device)
    if given.shape not in ((n, c), (n, 1) if c == 1 else (n, c), (n,) if c == 1 else (n, c)) or given.is_complex():
        raise InputError(f"labels must be the true values, one per sample and output, ({n}, {c}), {_tell(given)}.")
    if not bool(given.isfinite().all()):
        raise InputError("labels must be finite where they are the true values of a regression model.")
    return given.to(z.dtype).reshape(n, c)


def _tell(given: Tensor) -> str:
    return f"got {tuple(given.shape)}, {given.dtype}"


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


def judge(aim: Aim, before: Tensor, after: Tensor, label: Tensor) -> Tensor:
    """(n,): the alternative at points where the model returns `after`, and `before` at the inputs, whose alternatives
    are `label`.

    >>> judge(Within(1.0), torch.tensor([[3.0]]), torch.tensor([[4.5]]), torch.tensor([0]))
    tensor([1])
    """
    begun = aim.open(before, label if isinstance(aim, Top) else None, None)
    z = after if begun.read is None else begun.read(torch.arange(len(after), device=after.device), after)
    return z.argmax(1)


def check_reading(aim: Aim, threshold: float | None) -> None:
    """A threshold is where a score decides: values have none, apart from that of the goal itself."""
    if threshold is not None and aim.reads == "values":
        raise InputError(f"threshold does not go with the goal {aim}.", hint="passes:T names the value to pass.")
