"""Plain values that users hand in, checked once: numbers, counts, flags and paths. Without torch."""

from __future__ import annotations

import math
import numbers
import sys
from pathlib import Path
from typing import Any

import numpy as np

from deepfool.errors import InputError

LARGEST = 2**63 - 1
"""The largest whole number that torch takes."""


def check_number(value: float, name: str, low: float, high: float) -> float:
    """A number strictly between two others, or an error; NumPy's scalars will do.

    >>> check_number(0.5, "share", 0, 1), check_number(np.float64(0.5), "share", 0, 1)
    (0.5, 0.5)
    """
    number = as_number(value)
    if number is None or not low < number < high:
        raise InputError(f"{name} must be a number between {low:g} and {high:g}, got {value!r:.80}.")
    return number


def check_share(value: float, name: str, *, zero: bool = False) -> float:
    """A number in (0, 1], or in [0, 1] if `zero` will do; or an error.

    >>> check_share(1, "share")
    1.0
    """
    number = as_number(value)
    if number is None or not 0 <= number <= 1 or (number == 0 and not zero):
        expected = "a share in [0, 1]" if zero else "a number in (0, 1]"
        raise InputError(f"{name} must be {expected}, got {value!r:.80}.")
    return number


def check_overshoot(value: float) -> float:
    """How far to go beyond a boundary, relative to the perturbation: a finite number that is not negative."""
    number = as_number(value)
    if number is None or not 0 <= number < math.inf:
        raise InputError(
            f"overshoot must be a finite number >= 0, got {value!r:.80}.", hint="DeepFool's paper has 0.02."
        )
    return number


def check_count(value: int, name: str, least: int = 1) -> int:
    """A whole number of at least `least`, or an error; NumPy's scalars will do.

    >>> check_count(50, "max_iter"), check_count(np.int64(50), "max_iter")
    (50, 50)
    """
    number = as_whole(value)
    if number is None or number < least:
        raise InputError(f"{name} must be a whole number >= {least}, got {value!r:.80}.")
    if number > LARGEST:
        raise InputError(f"{name} must be a whole number up to {LARGEST}, got one of {len(str(number))} digits.")
    return number


def check_flag(value: bool, name: str) -> bool:
    """True or False, Python's or NumPy's; or an error. A text such as "no" would count as true.

    >>> check_flag(np.bool_(True), "tighten")
    True
    >>> check_flag("no", "tighten")
    Traceback (most recent call last):
    ...
    deepfool.errors.InputError: tighten must be True or False, got 'no'.
    """
    if not isinstance(value, bool | np.bool_):
        raise InputError(f"{name} must be True or False, got {value!r:.80}.")
    return bool(value)


def check_path(value: Any, name: str) -> Path:
    """A text or a path as a Path, or an error.

    >>> check_path("runs/a", "out").as_posix()
    'runs/a'
    """
    if not isinstance(value, str | Path) or "\0" in str(value):
        raise InputError(f"{name} must be a path, got {value!r:.80}.")
    if not str(value).strip():
        raise InputError(f"{name} needs a name, got an empty one.")
    return Path(value)


def check_callable(value: Any, name: str) -> None:
    """Something that can be called, or an error."""
    if not callable(value):
        raise InputError(f"{name} must be a function, got {value!r:.80}.")


def check_optional_count(value: int | None, name: str) -> int | None:
    """None, or a whole number of at least 1; or an error.

    >>> check_optional_count(None, "candidates")
    """
    return None if value is None else check_count(value, name)


def as_number(value: Any) -> float | None:
    """A real number as a float: Python's, NumPy's, or the one entry of a tensor without dimensions. None: it is none.

    Booleans are no numbers: where one is given for a number, something else was meant.

    >>> as_number(np.float32(0.5)), as_number(True), as_number("2")
    (0.5, None, None)
    """
    value = _as_scalar(value)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    try:
        return float(value)
    except OverflowError:  # a whole number beyond all floats
        return math.inf if value == abs(value) else -math.inf


def as_whole(value: Any) -> int | None:
    """A whole number as an int: Python's, NumPy's, or that of a tensor without dimensions. None: it is none.

    >>> as_whole(np.int64(3)), as_whole(3.0), as_whole(False)
    (3, None, None)
    """
    value = _as_scalar(value)
    return None if isinstance(value, bool) or not isinstance(value, numbers.Integral) else int(value)


def _as_scalar(value: Any) -> Any:
    """What NumPy and torch wrap into scalars, as Python has it; anything else as it is."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return value.item()
    torch: Any = sys.modules.get("torch")  # where it was never imported, nobody has a tensor
    if torch and isinstance(value, torch.Tensor) and value.ndim == 0 and value.layout == torch.strided:
        usable = value.device.type != "meta" and not value.is_quantized
        return value.item() if usable else value
    return value
