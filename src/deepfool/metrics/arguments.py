"""Checks of what callers pass to the metrics."""

from __future__ import annotations

from typing import Any

import numpy as np

from deepfool.errors import InputError
from deepfool.runs.records import Run
from deepfool.runs.rows import NORMS, Floats, Records
from deepfool.values import as_number


def check_norm(norm: str) -> str:
    """The name of a norm that every row has."""
    if norm not in NORMS:
        raise InputError(f"norm must be one of {', '.join(NORMS)}, got {norm!r}.")
    return norm


def check_records(records: Records) -> Records:
    """The rows of a run as columns."""
    if not isinstance(records, Records):
        raise InputError(
            f"records must be the Records of a run, got {type(records).__name__}.", hint="Run(folder).records()."
        )
    return records


def check_runs(*runs: Run) -> None:
    """Run folders that are open for reading."""
    for run in runs:
        if not isinstance(run, Run):
            raise InputError(f"expected a Run, got {type(run).__name__}.", hint="deepfool.Run(folder).")


def check_values(values: Floats) -> Floats:
    """A one-dimensional array of numbers without NaN."""
    found = as_floats(values, "values")
    if found.ndim != 1 or np.isnan(found).any():
        raise InputError(f"values must be a one-dimensional array without NaN, got shape {found.shape}.")
    return found


def as_floats(values: Any, name: str) -> Floats:
    """An array of float64."""
    try:
        given = np.asarray(values)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be numbers, got {type(values).__name__}: {error}") from error
    if given.dtype.kind not in "iuf":
        raise InputError(f"{name} must be numbers, got {type(values).__name__} of {given.dtype}.")
    return given.astype(np.float64)


def check_eps(eps: float) -> float:
    """A distance."""
    number = as_number(eps)
    if number is None or not number >= 0:
        raise InputError(f"eps must be a number >= 0, got {eps!r:.80}.")
    return number
