"""Whether the scores of a model are stable: the same in a second pass, and the same alone as in a batch.

An attack calls the model many times. If its scores change by themselves (noise, dropout that is always on), the
distance is random. If they change with the other samples of the batch (batch normalisation with batch statistics), the
distance depends on the batch size. Such a model can be measured, but readers of the results have to know.
"""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from deepfool.classifier import Classifier, find_scores

SAMPLES = 8
"""How many samples are tried."""

_REDUCED = 2.0**-10
"""The rounding error of float32 on hardware that may multiply in lower precision (TF32)."""


class InconsistentModelWarning(UserWarning):
    """The scores of the model change from call to call, or with the batch."""


def look_twice(
    module: nn.Module, x: Tensor, *, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> dict[str, Any]:
    """Compare three forward passes on a few samples; the result goes into the manifest.

    A copy of the model is used, so that a model with internal state is measured as if this had not happened.

    `repeatable` and `independent` are None if that could not be found out; `difference` is the largest one seen,
    relative to the largest score. Differences within rounding are ignored.

    >>> look_twice(nn.Linear(4, 3), torch.rand(8, 4))["repeatable"]
    True
    >>> look_twice(nn.BatchNorm1d(3, track_running_stats=False), torch.rand(8, 3))["independent"]
    False
    """
    unknown = {"repeatable": None, "independent": None, "difference": None}
    try:
        module = copy.deepcopy(module).to(device=device, dtype=dtype)
        x = x[:SAMPLES].to(device=device, dtype=dtype)
        with Classifier(module).frozen(), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the attack will warn
            first, second = find_scores(module(x)), find_scores(module(x))
            difference = _compare(first, second)
            if difference > _rounding(x, first, same_batch=True):
                return {"repeatable": False, "independent": None, "difference": _as_json(difference)}
            if len(x) < 2:
                return {**unknown, "repeatable": True}
            difference = _compare(first[:1], _look_alone(module, x[:1], first[:1]))
            independent = difference <= _rounding(x, first, same_batch=False)
            return {"repeatable": True, "independent": independent, "difference": _as_json(difference)}
    except Exception:  # the attack will raise a better error
        return unknown


def _look_alone(module: nn.Module, x: Tensor, like: Tensor) -> Tensor:
    """The scores of a single sample; NaN if the model fails on a batch of one."""
    try:
        return find_scores(module(x))
    except Exception:
        return torch.full_like(like, math.nan)


def _compare(a: Tensor, b: Tensor) -> float:
    """The largest difference, relative to the largest score; infinite if only one of two scores is a number."""
    a, b = a.detach().double().flatten(), b.detach().double().flatten()
    if a.shape != b.shape:
        return math.inf
    same = (a == b) | (a.isnan() & b.isnan())
    if bool(same.all()):
        return 0.0
    scale = torch.cat([a, b]).nan_to_num(0, 0, 0).abs().max()
    difference = float(((a - b).abs()[~same] / scale).max())
    return difference if math.isfinite(difference) else math.inf


def _rounding(x: Tensor, scores: Tensor, *, same_batch: bool) -> float:
    """How much scores may differ: a few units of rounding, or half the digits if other kernels may be used."""
    eps = max(torch.finfo(x.dtype).eps, torch.finfo(scores.dtype).eps)
    if x.device.type != "cpu":
        eps = max(eps, _REDUCED)
    half = math.sqrt(eps)
    return min(64 * eps, half) if same_batch and x.device.type == "cpu" else half


def _as_json(difference: float) -> float | None:
    return difference if math.isfinite(difference) else None
