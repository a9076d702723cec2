"""What users hand in, checked once: an argument that cannot be used is refused with what was expected and what came."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from deepfool.errors import InputError

Bounds: TypeAlias = "tuple[float | Tensor, float | Tensor]"
Labels: TypeAlias = "Tensor | Sequence[int]"
Candidates: TypeAlias = "int | str | None"
"""Which classes to consider: "auto", "all" (None means the same), or how many of the best-scored ones."""

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


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
    if x.dtype not in FLOATS:
        hint = "pixels in 0..255 become x.float() / 255." if not x.is_complex() else "split real and imaginary parts."
        raise InputError(f"x must hold floating-point values, got {x.dtype}.", hint=hint)
    if x.ndim == 0:
        raise InputError("x must have a batch dimension, got a single number.", hint="x.view(1, 1).")
    if not bool(x.isfinite().all()):
        bad = (~x.isfinite()).flatten(1).any(1) if x.ndim > 1 else ~x.isfinite()
        rows = bad.nonzero()[:, 0].tolist()
        raise InputError(f"x must be finite, got NaN or infinity in {_listed(rows)}.")
    return x


def check_number(value: float, name: str, low: float, high: float) -> float:
    """A number strictly between two others, or an error.

    >>> check_number(0.5, "share", 0, 1)
    0.5
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not low < value < high:
        raise InputError(f"{name} must be a number between {low:g} and {high:g}, got {value!r}.")
    return float(value)


def check_overshoot(value: float) -> float:
    """How far to go beyond a boundary, relative to the perturbation: a finite number that is not negative."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise InputError(f"overshoot must be a finite number >= 0, got {value!r}.", hint="DeepFool's paper has 0.02.")
    return float(value)


def check_count(value: int, name: str, least: int = 1) -> int:
    """A whole number of at least `least`, or an error.

    >>> check_count(50, "max_iter")
    50
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name} must be a whole number >= {least}, got {value!r}.")
    return value


def check_candidates(value: Candidates) -> Candidates:
    """ "auto", "all", None, or a whole number of at least 1; or an error.

    >>> check_candidates("all")
    'all'
    """
    if value is None or value in ("auto", "all"):
        return value
    if isinstance(value, str):
        raise InputError(f'candidates must be "auto", "all" or a whole number >= 1, got {value!r}.')
    return check_count(value, "candidates")


def check_bounds(bounds: Bounds | None, like: Tensor, x_0: Tensor) -> tuple[Tensor | None, Tensor | None]:
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


def check_mask(mask: Tensor, like: Tensor) -> Tensor:
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


def check_labels(labels: Labels, name: str, n: int, scores: Tensor) -> Tensor:
    """Whole numbers, one per sample, each a class that these scores (n, c) have; or an error."""
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


def check_target(target: int | Labels, label: Tensor, running: Tensor, scores: Tensor) -> Tensor:
    """(n,) classes to reach, none of them what is predicted already for a sample that is to be attacked."""
    n = len(label)
    given = torch.full((n,), target) if isinstance(target, int) else target
    checked = check_labels(given, "target", n, scores)
    same = running[checked[running] == label[running]].tolist()
    if same:
        raise InputError(
            f"target must differ from the predicted label, but equals it in {_listed(same)}.",
            hint="leave those samples out, or give each sample a target of its own.",
        )
    return checked


def _listed(rows: list[int]) -> str:
    shown = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
    return f"row {shown}" if len(rows) == 1 else f"{len(rows)} rows ({shown})"
