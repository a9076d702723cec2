"""A task is what an attack works on: the question, the counted model, and the best answer so far.

`run` is how every public attack starts and ends. It checks what all attacks take, looks at x_0 once, holds the model
frozen while the body of the attack works, and shortens the result if asked to.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict, TypeVar

import torch
from torch import Tensor
from typing_extensions import Unpack as Unpack  # typing has it from Python 3.11 on

from deepfool.attacks.shared.adversarial import Adversarial, Status
from deepfool.attacks.shared.aims import Aim, check_reading, read_goal
from deepfool.attacks.shared.alternatives import open_aim
from deepfool.attacks.shared.answers import Answers
from deepfool.attacks.shared.arguments import (
    Bounds,
    Labels,
    check_bounds,
    check_differs,
    check_inputs,
    check_labels,
    check_mask,
    check_room,
    check_threshold,
    check_weights,
    count_channels,
    spread_target,
)
from deepfool.attacks.shared.counting import CountedModel
from deepfool.attacks.shared.goals import Leave, Reach
from deepfool.attacks.shared.lifting import check_subspace, run_in, run_weighted
from deepfool.attacks.shared.question import Question
from deepfool.attacks.shared.registry import SHARED
from deepfool.attacks.shared.rounding import Rounding
from deepfool.classifier import Classifier, Model
from deepfool.classifier.jacobian import Tangent
from deepfool.errors import InputError
from deepfool.norms import check_p, refuse_zero
from deepfool.values import check_flag

F = TypeVar("F", bound=Callable[..., Adversarial])


class Unlabelled(TypedDict, total=False):
    """What every attack takes besides its own arguments and labels. `deepfool` describes them."""

    bounds: Bounds | None
    target: int | Labels | None
    goal: str | Aim | None
    mask: Tensor | None
    threshold: float | None
    outputs: str


class Shared(Unlabelled, total=False):
    """What every attack takes besides its own arguments."""

    labels: Labels | None


def attack(function: F) -> F:
    """Mark a public attack: its `**shared` is shown as the arguments that it stands for.

    >>> @attack
    ... def nothing(model, x, *, p: float = 2, **shared): ...
    >>> list(inspect.signature(nothing).parameters)[2:5]
    ['p', 'bounds', 'target']
    """
    own = inspect.signature(function)
    before = [each for each in own.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    known = {each.name for each in before}
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=SHARED[name])
        for name in Shared.__annotations__
        if name not in known
    ]
    function.__signature__ = own.replace(parameters=[*before, *shared])  # type: ignore[attr-defined]
    return function


@dataclass(frozen=True)
class Task:
    """What an attack works on."""

    asked: Question
    model: CountedModel
    best: Answers
    rows: Tensor
    """The samples to attack: not those that were misclassified to begin with, or have no finite scores."""

    def result(self) -> Adversarial:
        return self.best.result()


def run(
    body: Callable[[Task], None],
    model: Model | Classifier,
    x: Tensor,
    *,
    p: float,
    norms: Sequence[float] | None = None,
    tighten: bool = False,
    classes: bool = False,
    unmask: bool = False,
    unit: str = "feature",
    subspace: Any = None,
    weights: Any = None,
    schema: Any = None,
    **shared: Unpack[Shared],
) -> Adversarial:
    """Run the body of an attack on a checked task and return what it found.

    `norms` are those that the attack works in (None: any p >= 1); `classes` says that it begins with the gradients of
    several classes at x_0, so that the first forward pass is kept for them; `unmask` that it sees through operations
    that hide gradients; `unit` is what p = 0 counts; `subspace` are the directions in which the inputs may change, and
    `weights` what each feature counts (see `lifting`); `schema` what the features of a table are (see `validity`).
    """
    from deepfool.attacks.shared.ray import shorten  # it needs a Task itself

    name = body.__qualname__.partition(".")[0]  # the body is defined inside its attack
    p = check_p(p) if norms is not None else refuse_zero(p, name)
    if norms is not None and p not in norms:
        known = ", ".join(f"{each:g}" for each in norms[:-1]) + f" and {norms[-1]:g}"
        hint = "deepfool takes any p >= 1." if p else "smallest, sparsefool and sigma_zero count features (p = 0)."
        raise InputError(f"{name} works in the norms p = {known}, got {p:g}.", hint=hint)
    check_inputs(x)
    tighten = check_flag(tighten, "tighten")
    check_threshold(shared.get("threshold"))
    channels = count_channels(unit, p, x)
    if len(x) == 0:
        return Adversarial.empty(x, p, unit)
    search = partial(run, body, norms=norms, tighten=tighten, classes=classes, unmask=unmask, unit=unit)
    own: dict[str, Any] = {"bounds": None, "threshold": None, "outputs": "auto", **shared}
    if schema is not None:
        return _run_valid(schema, search, model, x, p, subspace, weights, own)
    if subspace is not None:
        chosen = check_subspace(subspace, x, p, own.pop("mask", None), weights)
        return run_in(chosen, partial(search, weights=weights), model, x, p=p, **own)
    if weights is not None:
        mask = own.pop("mask", None)
        return run_weighted(check_weights(weights, x, p), search, model, x, p=p, mask=mask, **own)
    with prepare(model, x, p=p, classes=classes, unmask=unmask, channels=channels, **shared) as task:
        if len(task.rows):
            body(task)
        if tighten:
            shorten(task)
        return task.result()


def _run_valid(
    schema: Any, search: Callable[..., Adversarial], model: Any, x: Tensor, p: float, subspace: Any, weights: Any,
    own: dict[str, Any],
) -> Adversarial:  # fmt: skip
    from deepfool.attacks.shared.validity import run_valid  # it needs a Task itself

    if subspace is not None:
        raise InputError("a schema and a subspace are given: leave one of them out.")
    given = {"bounds": None, "mask": None, **own}
    return run_valid(schema, run, search, model, x, p=p, weights=weights, **given)


@contextmanager
def prepare(
    model: Model | Classifier,
    x: Tensor,
    *,
    p: float,
    bounds: Bounds | None = None,
    labels: Labels | None = None,
    target: int | Labels | None = None,
    goal: str | Aim | None = None,
    mask: Tensor | None = None,
    threshold: float | None = None,
    outputs: str = "auto",
    classes: bool = False,
    unmask: bool = False,
    channels: int = 1,
) -> Iterator[Task]:
    """Check the arguments, look at x_0 once, and hold the model frozen while this is open. `x` must not be empty."""
    aim, target = read_goal(goal, target)
    check_reading(aim, threshold)
    f = Classifier.of(model, threshold, outputs, aim.reads)
    with f.frozen():
        like = x.detach().clone(memory_format=torch.preserve_format)  # also out of any inference mode
        flat = like.flatten(1) if like.ndim > 1 else like.view(len(x), 1)
        x_0 = flat.to(torch.promote_types(x.dtype, torch.float32)).contiguous()
        lower, upper = check_bounds(bounds, like, x_0)
        check_room(p, lower, upper)
        allowed = None if mask is None else check_mask(mask, like)
        opening = Tangent(f, like, hidden=True, unmask=unmask) if classes else None
        if opening is None:
            with torch.no_grad():
                returned = f(like).detach()
        else:
            returned = opening.scores
        usable = returned.isfinite().all(1)
        everyone = torch.arange(len(x), device=x.device)
        wanted = None
        if target is not None:
            wanted = check_labels(spread_target(target, len(x), x.device), "target", len(x), returned)
        begun = open_aim(aim, returned, labels, wanted)
        label, right = begun.label, usable & begun.right
        rows = everyone if bool(right.all()) else right.nonzero()[:, 0]
        leave = Leave(label, competing=aim.reads == "classes")
        goal_ = leave if wanted is None else Reach(label, check_differs(wanted, label, rows))
        scores = returned if begun.read is None else begun.read(everyone, returned)
        asked = Question(
            x_0=x_0, scores=scores, label=label, goal=goal_, read=begun.read, p=p, lower=lower, upper=upper,
            mask=allowed, like=like, everyone=everyone, channels=channels,
        )  # fmt: skip
        rounding = Rounding(returned, x.dtype, offset=abs(f.cut) + begun.offset)
        counted = CountedModel(
            f, asked, rounding, None if opening is None else opening.through(asked.reading(everyone))
        )
        best = Answers(asked, counted)
        best.give_up(everyone[~usable], Status.STUCK, "the scores at the input itself are not finite")
        best.give_up(everyone[usable & ~right], Status.MISCLASSIFIED, aim.wrong)
        yield Task(asked, counted, best, rows)
