"""What users hand in, checked once: an argument that cannot be used is refused with what was expected and what came."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from deepfool.attacks.shared.adversarial import Adversarial
from deepfool.classifier import check_threshold as check_threshold
from deepfool.errors import InputError
from deepfool.values import LARGEST, as_whole, check_count

Bounds: TypeAlias = "tuple[float | Tensor, float | Tensor]"
Labels: TypeAlias = "Tensor | Sequence[int]"
Candidates: TypeAlias = "int | str | None"
"""Which classes to consider: "auto", "all" (None means the same), or how many of the best-scored ones."""

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_inputs(x: Any, name: str = "x") -> Tensor:
    """x as a floating-point tensor with a batch dimension and finite values, or an error that says what came.

    >>> check_inputs(torch.tensor([[1, 2]]))
    Traceback (most recent call last):
    ...
    deepfool.errors.InputError: x must hold floating-point values, got torch.int64. Hint: pixels in 0..255 become
    x.float() / 255.
    """
    if not isinstance(x, Tensor):
        raise InputError(f"{name} must be a torch.Tensor, got {type(x).__name__}.", hint=f"torch.as_tensor({name}).")
    check_dense(x, name)
    if x.dtype not in FLOATS:
        hint = f"pixels in 0..255 become {name}.float() / 255."
        if x.is_complex():
            hint = "split real and imaginary parts."
        raise InputError(f"{name} must hold floating-point values, got {x.dtype}.", hint=hint)
    if x.ndim == 0:
        raise InputError(f"{name} must have a batch dimension, got a single number.", hint=f"{name}.view(1, 1).")
    if not bool(x.isfinite().all()):
        bad = (~x.isfinite()).flatten(1).any(1) if x.ndim > 1 else ~x.isfinite()
        rows = bad.nonzero()[:, 0].tolist()
        raise InputError(f"{name} must be finite, got NaN or infinity in {_listed(rows)}.")
    return x


def check_dense(x: Tensor, name: str) -> Tensor:
    """A tensor whose values are there, each in its place; or an error that says how to get one.

    >>> check_dense(torch.eye(2).to_sparse(), "x")
    Traceback (most recent call last):
    ...
    deepfool.errors.InputError: x must be a dense tensor, got torch.sparse_coo. Hint: x.to_dense().
    """
    if x.is_quantized:
        raise InputError(f"{name} must hold plain numbers, got the quantised {x.dtype}.", hint=f"{name}.dequantize().")
    if x.is_nested:
        raise InputError(f"{name} must be a dense tensor, got a nested one.", hint="bring the samples to one shape.")
    if x.layout != torch.strided:
        raise InputError(f"{name} must be a dense tensor, got {x.layout}.", hint=f"{name}.to_dense().")
    if x.device.type == "meta":
        raise InputError(f"{name} must hold values, got a meta tensor, which has none.")
    return x


def check_candidates(value: Candidates) -> Candidates:
    """ "auto", "all", None, or a whole number of at least 1; or an error.

    >>> check_candidates("all")
    'all'
    """
    if value is None or (isinstance(value, str) and value in ("auto", "all")):
        return value
    if as_whole(value) is None:
        raise InputError(f'candidates must be "auto", "all" or a whole number >= 1, got {value!r:.80}.')
    return check_count(value, "candidates")  # type: ignore[arg-type]


def as_tensor(value: Any, name: str, expected: str, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Numbers, lists of them (read as `dtype`), arrays and dense tensors as a tensor; anything else is refused.

    >>> as_tensor("0", "mask", "a number or a tensor", torch.device("cpu"))
    Traceback (most recent call last):
    ...
    deepfool.errors.InputError: mask must be a number or a tensor, got '0'.
    """
    if isinstance(value, Tensor):
        return check_dense(value, name).detach().to(device)
    if value is None or isinstance(value, str | bytes):
        raise InputError(f"{name} must be {expected}, got {value!r:.80}.")
    known = isinstance(value, np.ndarray | np.generic)  # has a type of its own; `dtype` is that of bare numbers
    try:
        return torch.as_tensor(value, device=device, dtype=None if known else dtype)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InputError(f"{name} must be {expected}, got {type(value).__name__}: {error}") from error


def check_bounds(bounds: Bounds | None, like: Tensor, x_0: Tensor) -> tuple[Tensor | None, Tensor | None]:
    if bounds is None:
        return None, None
    if not isinstance(bounds, tuple | list) or len(bounds) != 2:
        raise InputError(
            f"bounds must be a pair (lowest, highest), got {_told(bounds)}.", hint="bounds=(0, 1) for images."
        )
    lower, upper = (_spread_out(value, like, "bounds").to(x_0.dtype) for value in bounds)
    if not bool((lower <= upper).all()):  # nor is NaN
        raise InputError("bounds must be (lowest, highest) with lowest <= highest everywhere.")
    if bool(((x_0 < lower) | (x_0 > upper)).any()):
        low, high = x_0.amin().item(), x_0.amax().item()
        raise InputError(
            f"x must lie in [{lower.amin().item():g}, {upper.amax().item():g}], got [{low:.4g}, {high:.4g}].",
            hint="put the normalisation inside the model, so that x stays in its own range.",
        )
    return lower, upper


UNITS = ("feature", "pixel")
"""What p = 0 counts."""


def count_channels(unit: str, p: float, x: Tensor) -> int:
    """How many features of x count as one: for p = 0 and pixels, the channels of an image; otherwise 1.

    >>> count_channels("pixel", 0, torch.zeros(1, 3, 8, 8)), count_channels("feature", 0, torch.zeros(1, 3, 8, 8))
    (3, 1)
    """
    if not isinstance(unit, str) or unit not in UNITS:
        raise InputError(f"unit must be 'feature' or 'pixel', got {unit!r:.80}.")
    if unit == "feature":
        return 1
    if p != 0:
        raise InputError(f"unit says what p = 0 counts, got unit={unit!r} with p = {p:g}.", hint="p=0.")
    if x.ndim != 4:
        raise InputError(
            f"pixels are counted in images (channels, height, width), got samples of shape {tuple(x.shape[1:])}.",
            hint="unit='feature'.",
        )
    return x.shape[1]


def check_room(p: float, lower: Tensor | None, upper: Tensor | None) -> None:
    """p = 0 needs bounds: without them a single feature may go as far as it takes."""
    if p != 0:
        return
    if lower is None or upper is None:
        raise InputError(
            "p = 0 needs bounds: without them one feature that moves far enough changes most decisions.",
            hint="bounds=(0, 1) for images (--bounds 0,1).",
        )
    if not bool(lower.isfinite().all() and upper.isfinite().all()):
        raise InputError("p = 0 needs finite bounds, got infinite ones.", hint="the least and largest value of x.")


def check_mask(mask: Tensor, like: Tensor) -> Tensor:
    full = _spread_out(mask, like, "mask")
    if full.is_floating_point() and bool(full.isnan().any()):
        raise InputError(
            "mask must say of each feature whether it may change, got NaN.", hint="True or 1 where it may, else 0."
        )
    return full != 0


def check_weights(weights: Any, x: Tensor, p: float) -> Tensor:
    """What each feature counts in the norm, as (d,): positive numbers, one for each feature of a sample; or an error.

    >>> check_weights([1, 2], torch.zeros(5, 2), 2)
    tensor([1., 2.], dtype=torch.float64)
    """
    given = as_tensor(weights, "weights", "positive numbers, one per feature", torch.device("cpu"), torch.float64)
    shape = tuple(x.shape[1:])
    if given.is_complex() or given.dtype == torch.bool:
        raise InputError(f"weights must hold real numbers, got {given.dtype}.")
    if given.numel() != math.prod(shape):
        raise InputError(
            f"weights must have one number for each feature of a sample, {shape}, got {tuple(given.shape)}."
        )
    flat = given.double().reshape(-1)
    if not bool(((flat > 0) & flat.isfinite()).all()):
        raise InputError(
            "weights must be positive and finite.", hint="mask= (or a schema) says which features may not change."
        )
    if p == 0:
        raise InputError("weights do not go with p = 0, which counts features.", hint="p=1, 2 or inf.")
    return flat


def _spread_out(value: float | Tensor, like: Tensor, name: str) -> Tensor:
    """A number, or a tensor per feature or per sample and feature, as (n, d) in the type of the inputs."""
    shape = tuple(like.shape)
    given = as_tensor(value, name, f"a number or a tensor that broadcasts to {shape}", like.device, like.dtype)
    if given.is_complex():
        raise InputError(f"{name} must hold real numbers, got {given.dtype}.")
    given = given if given.dtype == torch.bool else given.to(like.dtype)
    try:
        full = given.expand(like.shape)
    except RuntimeError:
        raise InputError(
            f"{name} must be a number or broadcast to x's shape {shape}, got {tuple(given.shape)}."
        ) from None
    return full.reshape(len(like), -1)


def check_labels(labels: Labels, name: str, n: int, scores: Tensor) -> Tensor:
    """Whole numbers, one per sample, each a class that these scores (n, c) have; or an error."""
    given = as_tensor(labels, name, f"whole numbers, one per sample, ({n},)", scores.device)
    if given.is_floating_point() or given.is_complex() or given.dtype == torch.bool:
        raise InputError(f"{name} must be whole numbers, got {given.dtype}.")
    if given.shape != (n,):
        raise InputError(f"{name} must have one entry per sample, ({n},), got {tuple(given.shape)}.")
    given = given.long()
    c = scores.shape[1]
    if bool(((given < 0) | (given >= c)).any()):
        low, high = int(given.min()), int(given.max())
        raise InputError(f"{name} must lie in [0, {c - 1}] for {c} classes, got [{low}, {high}].")
    return given


def check_differs(target: Tensor, label: Tensor, running: Tensor) -> Tensor:
    """Classes to reach (n,), none of them what is predicted already for a sample that is to be attacked."""
    same = running[target[running] == label[running]].tolist()
    if same:
        raise InputError(
            f"target must differ from the predicted label, but equals it in {_listed(same)}.",
            hint="leave those samples out, or give each sample a target of its own.",
        )
    return target


def spread_target(target: int | Labels, n: int, device: torch.device) -> Tensor:
    """One target for all, or one for each of n samples, as (n,).

    >>> spread_target(np.int64(3), 2, torch.device("cpu"))
    tensor([3, 3])
    """
    one = as_whole(target)
    if one is not None:
        return torch.full((n,), max(-1, min(one, LARGEST)), device=device)  # beyond these there are no classes
    given = as_tensor(target, "target", f"a class, or one for each of {n} samples", device)
    if given.shape != (n,):
        raise InputError(f"target must be one class or have one entry per sample, ({n},), got {tuple(given.shape)}.")
    return given


def check_start(start: Tensor | Adversarial | None, x: Tensor) -> Tensor | Adversarial | None:
    """The points to begin a search at: none, one for each input, or an attack's result for them."""
    if start is None:
        return None
    points = start.x if isinstance(start, Adversarial) else start
    if not isinstance(points, Tensor) or points.shape != x.shape:
        got = tuple(points.shape) if isinstance(points, Tensor) else type(points).__name__
        raise InputError(f"start must hold a point for each input, {tuple(x.shape)}, got {got}.")
    check_inputs(points, "start")
    return start


def check_adversarial(adversarial: Adversarial, x: Tensor) -> Adversarial:
    """The result of an attack on these inputs, or an error."""
    if not isinstance(adversarial, Adversarial):
        raise InputError(
            f"adversarial must be what an attack returned, an Adversarial, got {type(adversarial).__name__}.",
            hint="found = deepfool(model, x).",
        )
    if adversarial.x.shape != x.shape:
        raise InputError(
            f"adversarial must belong to x: its points have shape {tuple(adversarial.x.shape)}, x {tuple(x.shape)}."
        )
    return adversarial


def _told(value: Any) -> str:
    """Short, whatever it is."""
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"{value!r:.80}"


def _listed(rows: list[int]) -> str:
    shown = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
    return f"row {shown}" if len(rows) == 1 else f"{len(rows)} rows ({shown})"
