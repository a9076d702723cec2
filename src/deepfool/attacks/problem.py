"""The border that every attack shares: arguments are checked once, here, and turned into one `Problem`.

Inside, samples are rows of flat features in the working precision (float32 for half-precision inputs); the model
only ever sees `Problem.inputs`, which have the shape, type and memory layout of what the user gave.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from deepfool.attacks.adversarial import Adversarial, Status
from deepfool.classifier import Classifier, Model
from deepfool.errors import InputError
from deepfool.norms import norm

Bounds: TypeAlias = "tuple[float | Tensor, float | Tensor]"
Labels: TypeAlias = "Tensor | Sequence[int]"

# A label counts as changed only beyond this share of the spread of the scores: less than that can flip back when the
# same point is run in another batch size, where sums are taken in another order.
_TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@dataclass
class Problem:
    """One batch to attack, checked; and the bookkeeping of how each sample ends."""

    f: Classifier
    x_0: Tensor
    """(n, d), working precision."""
    scores: Tensor
    """(n, c) at x_0."""
    label: Tensor
    """(n,): the predicted class, to be left."""
    target: Tensor | None
    """(n,): the class to reach, or None for any other."""
    lower: Tensor | None
    upper: Tensor | None
    """(n, d), or None where nothing bounds the inputs."""
    mask: Tensor | None
    """(n, d) booleans: which features may change; None means all."""
    p: float
    shape: torch.Size
    like: Tensor
    """The user's x: shape, type and memory layout of what the model is given."""
    tolerance: Tensor
    """(n,): the margin of scores that counts as a changed label."""

    running: Tensor
    """Indices of the samples still being worked on."""
    status: Tensor
    adv_label: Tensor
    r: Tensor
    """(n, d): the perturbation to return."""
    iterations: Tensor
    forwards: Tensor
    backwards: Tensor
    reason: list[str]

    @property
    def classes(self) -> int:
        return self.scores.shape[1]

    def inputs(self, rows: Tensor, y: Tensor) -> Tensor:
        """The points y (k, d) of these samples as the model takes them: inside the box, shaped, typed."""
        return self._shaped(self.clamp(rows, y), rows)

    def clamp(self, rows: Tensor, y: Tensor) -> Tensor:
        """y moved into the box, and rounded to the inputs' own precision if that is half."""
        if self.lower is not None and self.upper is not None:
            y = y.clamp(self.lower[rows], self.upper[rows])
        return y if self.like.dtype == y.dtype else y.to(self.like.dtype).to(y.dtype)

    def _shaped(self, y: Tensor, rows: Tensor) -> Tensor:
        x = y.to(self.like.dtype).view(len(rows), *self.shape[1:])
        if x.ndim == 4 and self.like.is_contiguous(memory_format=torch.channels_last) and not self.like.is_contiguous():
            x = x.contiguous(memory_format=torch.channels_last)
        return x

    def count(self, rows: Tensor, *, forwards: int = 0, backwards: int = 0) -> None:
        """Note the passes that these samples went through; a sample may stand in `rows` several times."""
        self.forwards.index_add_(0, rows, torch.full_like(rows, forwards))
        self.backwards.index_add_(0, rows, torch.full_like(rows, backwards))

    def look(self, rows: Tensor, y: Tensor) -> Tensor:
        """The scores at the points y of these samples, counted as a forward pass each."""
        self.count(rows, forwards=1)
        with torch.no_grad():
            return self.f(self.inputs(rows, y)).detach()

    def margin(self, rows: Tensor, z: Tensor) -> Tensor:
        """By how much the wanted change of label is reached: positive beyond the boundary (NaN counts as not)."""
        own = z.gather(1, self.label[rows, None])[:, 0]
        others = z.scatter(1, self.label[rows, None], -torch.inf)
        if self.target is None:
            return others.amax(1) - own
        aim = self.target[rows, None]
        rivals = z.scatter(1, aim, -torch.inf).amax(1)
        return z.gather(1, aim)[:, 0] - rivals

    def is_fooled(self, rows: Tensor, z: Tensor) -> Tensor:
        """Where these scores show the wanted label beyond doubt of rounding."""
        return (self.margin(rows, z) > self.tolerance[rows]) & z.isfinite().all(1)

    def finish(self, rows: Tensor, r: Tensor, adv_label: Tensor, caution: str = "") -> None:
        """These samples are fooled by r, as a forward pass has shown."""
        self.status[rows] = Status.FOOLED
        self.r[rows] = r
        self.adv_label[rows] = adv_label
        self._fill_reason(rows, caution)

    def give_up(self, rows: Tensor, status: Status, why: str) -> None:
        """These samples end without an answer."""
        self.status[rows] = status
        self._fill_reason(rows, why)

    def _fill_reason(self, rows: Tensor, why: str) -> None:
        for i in rows.tolist():
            self.reason[i] = why

    def result(self) -> Adversarial:
        """What the attack returns: everything in the order and shape of the inputs."""
        everyone = torch.arange(len(self.x_0), device=self.x_0.device)
        y = self.clamp(everyone, self.x_0 + self.r)
        # Clipped or rounded points move by another r than the one asked for; otherwise keep its full precision.
        exact = self.lower is None and self.like.dtype == self.x_0.dtype
        r = self.r if exact else y - self.x_0
        size = norm(r, self.p)
        failed = (self.status == Status.STUCK) | (self.status == Status.EXHAUSTED)
        return Adversarial(
            x=self._shaped(y, everyone), r=r.view(self.shape), label=self.label, adv_label=self.adv_label,
            norm=torch.where(failed, torch.inf, size), iterations=self.iterations, status=self.status,
            forwards=self.forwards, backwards=self.backwards, reason=tuple(self.reason), p=self.p,
        )  # fmt: skip


@contextmanager
def pose(
    model: Model | Classifier,
    x: Tensor,
    *,
    p: float,
    bounds: Bounds | None = None,
    labels: Labels | None = None,
    target: int | Labels | None = None,
    mask: Tensor | None = None,
    threshold: float | None = None,
) -> Iterator[Problem]:
    """Check the arguments, look at x_0 once, and hold the model frozen while the attack works on the Problem.

    `x` must not be empty (`Adversarial.empty` is the answer to that).
    """
    f = Classifier.of(model, threshold)
    n = len(x)
    with f.frozen():
        like = x.detach().clone(memory_format=torch.preserve_format)  # also out of any inference mode
        flat = like.flatten(1) if like.ndim > 1 else like.view(n, 1)
        x_0 = flat.to(torch.promote_types(x.dtype, torch.float32)).contiguous()
        lower, upper = _check_bounds(bounds, like, x_0)
        allowed = None if mask is None else _check_mask(mask, like)
        with torch.no_grad():
            scores = f(like).detach()
        spread = scores.amax(1) - scores.amin(1)
        label = scores.argmax(1)
        usable = scores.isfinite().all(1)
        whole = torch.zeros(n, dtype=torch.long, device=x.device)
        problem = Problem(
            f=f, x_0=x_0, scores=scores, label=label, target=None, lower=lower, upper=upper, mask=allowed, p=p,
            shape=like.shape, like=like, tolerance=_TOLERANCE[x.dtype] * torch.nan_to_num(spread, 0.0, 0.0),
            running=torch.arange(n, device=x.device), status=whole + Status.EXHAUSTED, adv_label=label.clone(),
            r=torch.zeros_like(x_0), iterations=whole.clone(), forwards=whole + 1, backwards=whole.clone(),
            reason=[""] * n,
        )  # fmt: skip
        if not bool(usable.all()):
            rows = (~usable).nonzero()[:, 0]
            problem.give_up(rows, Status.STUCK, "the scores at the input itself are not finite")
        if labels is not None:
            true = _check_labels(labels, "labels", n, scores)
            wrong = usable & (true != label)
            problem.give_up(wrong.nonzero()[:, 0], Status.MISCLASSIFIED, "the input itself is misclassified")
            usable = usable & (true == label)
        problem.running = usable.nonzero()[:, 0]
        if target is not None:
            problem.target = _check_target(target, problem)
        yield problem


def check_inputs(x: Any) -> Tensor:
    """x as a floating-point tensor with a batch dimension and finite values, or an error that says what came.

    >>> check_inputs(torch.tensor([[1, 2]]))
    Traceback (most recent call last):
    ...
    deepfool.errors.InputError: x must hold floating-point values, got torch.int64. Hint: pixels in 0..255 become
    x.float() / 255.
    """
    if not isinstance(x, Tensor):
        raise InputError(f"x must be a torch.Tensor, got {type(x).__name__}.", hint="torch.as_tensor(x).")
    if x.dtype not in _TOLERANCE:
        hint = "pixels in 0..255 become x.float() / 255." if not x.is_complex() else "split real and imaginary parts."
        raise InputError(f"x must hold floating-point values, got {x.dtype}.", hint=hint)
    if x.ndim == 0:
        raise InputError("x must have a batch dimension, got a single number.", hint="x.view(1, 1).")
    if not bool(x.isfinite().all()):
        bad = (~x.isfinite()).flatten(1).any(1) if x.ndim > 1 else ~x.isfinite()
        rows = bad.nonzero()[:, 0].tolist()
        raise InputError(f"x must be finite, got NaN or infinity in {_listed(rows)}.")
    return x


def check_count(value: int, name: str, least: int = 1) -> int:
    """A whole number of at least `least`, or an error.

    >>> check_count(50, "max_iter")
    50
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name} must be a whole number >= {least}, got {value!r}.")
    return value


def _check_bounds(bounds: Bounds | None, like: Tensor, x_0: Tensor) -> tuple[Tensor | None, Tensor | None]:
    if bounds is None:
        return None, None
    if not isinstance(bounds, tuple | list) or len(bounds) != 2:
        raise InputError(f"bounds must be a pair (lowest, highest), got {bounds!r}.", hint="bounds=(0, 1) for images.")
    lower, upper = (_spread_out(value, like, "bounds").to(x_0.dtype) for value in bounds)
    if bool((lower.isnan() | upper.isnan() | (lower > upper)).any()):
        raise InputError("bounds must be (lowest, highest) with lowest <= highest everywhere.")
    if bool(((x_0 < lower) | (x_0 > upper)).any()):
        low, high = x_0.amin().item(), x_0.amax().item()
        raise InputError(
            f"x must lie in [{lower.amin().item():g}, {upper.amax().item():g}], got [{low:.4g}, {high:.4g}].",
            hint="put the normalisation inside the model, so that x stays in its own range.",
        )
    return lower, upper


def _check_mask(mask: Tensor, like: Tensor) -> Tensor:
    return _spread_out(mask, like, "mask") != 0


def _spread_out(value: float | Tensor, like: Tensor, name: str) -> Tensor:
    """A number, or a tensor per feature or per sample and feature, as (n, d) in the type of the inputs."""
    if isinstance(value, Tensor) and value.dtype == torch.bool:
        given = value.to(like.device)
    else:
        given = torch.as_tensor(value, dtype=like.dtype, device=like.device)
    try:
        full = given.expand(like.shape)
    except RuntimeError:
        raise InputError(
            f"{name} must be a number or broadcast to x's shape {tuple(like.shape)}, got {tuple(given.shape)}."
        ) from None
    return full.reshape(len(like), -1)


def _check_labels(labels: Labels, name: str, n: int, scores: Tensor) -> Tensor:
    given = torch.as_tensor(labels, device=scores.device)
    if given.is_floating_point() or given.is_complex() or given.dtype == torch.bool:
        raise InputError(f"{name} must be whole numbers, got {given.dtype}.")
    if given.shape != (n,):
        raise InputError(f"{name} must have one entry per sample, ({n},), got {tuple(given.shape)}.")
    c = scores.shape[1]
    if bool(((given < 0) | (given >= c)).any()):
        low, high = int(given.min()), int(given.max())
        raise InputError(f"{name} must lie in [0, {c - 1}] for {c} classes, got [{low}, {high}].")
    return given.long()


def _check_target(target: int | Labels, problem: Problem) -> Tensor:
    n = len(problem.label)
    given = torch.full((n,), target) if isinstance(target, int) else target
    checked = _check_labels(given, "target", n, problem.scores)
    same = problem.running[checked[problem.running] == problem.label[problem.running]].tolist()
    if same:
        raise InputError(
            f"target must differ from the predicted label, but equals it in {_listed(same)}.",
            hint="leave those samples out, or give each sample a target of its own.",
        )
    return checked


def _listed(rows: list[int]) -> str:
    shown = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
    return f"row {shown}" if len(rows) == 1 else f"{len(rows)} rows ({shown})"
