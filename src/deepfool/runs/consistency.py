"""Whether the scores of a model are its own: the same when it is asked twice, and the same alone as in a batch.

A distance is measured by asking the model again and again. If the answers change by themselves (noise, dropout that is
always on), it depends on chance; if they change with the other samples of the batch (batch normalisation with the
statistics of the batch), it depends on the batch size. Such a model can be measured, but whoever reads the figures has
to know.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from deepfool.classifier import Classifier, find_scores

SAMPLES = 8
"""How many samples are looked at."""

_REDUCED = 2.0**-10
"""The rounding of float32 where the hardware may multiply with fewer digits (TF32)."""


class InconsistentModelWarning(UserWarning):
    """The model answers otherwise when it is asked again, or in another batch."""


def look_twice(
    module: nn.Module, x: Tensor, *, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> dict[str, Any]:
    """What three forward passes on a few samples say: facts for a manifest.

    It looks at a copy: what a model remembers of a look must not become part of what is measured.

    `repeatable` and `independent` are None where that could not be found out; `difference` is the largest one met,
    relative to the largest score. What is told apart by rounding counts as the same.

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
            warnings.simplefilter("ignore")  # the attack will say it
            first, second = find_scores(module(x)), find_scores(module(x))
            difference = _compare(first, second)
            if difference > _rounding(x, first, same_batch=True):
                return {"repeatable": False, "independent": None, "difference": _as_json(difference)}
            if len(x) < 2:
                return {**unknown, "repeatable": True}
            difference = _compare(first[:1], _look_alone(module, x[:1], first[:1]))
            independent = difference <= _rounding(x, first, same_batch=False)
            return {"repeatable": True, "independent": independent, "difference": _as_json(difference)}
    except Exception:  # whatever is wrong with the model, the attack meets it too, and says it better
        return unknown


def list_cautions(facts: Mapping[str, Any]) -> list[str]:
    """The facts of `look_twice` in words, where a reader has to know them.

    >>> list_cautions({"repeatable": True, "independent": False, "difference": 0.5})[0][:50]
    'the scores of a sample depend on the others in its'
    """
    size = facts.get("difference")
    much = f" (by {size:.2g} of their size)" if isinstance(size, float) and size > 0 else ""
    if facts.get("repeatable") is False:
        return [
            f"the model gave other scores for the same inputs when it was asked again{much}: it draws at random, and "
            f"so do the distances."
        ]
    if facts.get("independent") is False:
        return [
            f"the scores of a sample depend on the others in its batch{much}: so do the distances. Normalisation that "
            f"takes the statistics of the batch does this."
        ]
    return []


def _look_alone(module: nn.Module, x: Tensor, like: Tensor) -> Tensor:
    """The scores of a sample that is alone; NaN if the model takes it only in company."""
    try:
        return find_scores(module(x))
    except Exception:
        return torch.full_like(like, math.nan)


def _compare(a: Tensor, b: Tensor) -> float:
    """The largest difference, relative to the largest score; infinite if one of them has no number where one is."""
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
    """How far scores may be apart: a few digits of the last place, or, where other kernels may run, half of them."""
    eps = max(torch.finfo(x.dtype).eps, torch.finfo(scores.dtype).eps)
    if x.device.type != "cpu":
        eps = max(eps, _REDUCED)
    half = math.sqrt(eps)
    return min(64 * eps, half) if same_batch and x.device.type == "cpu" else half


def _as_json(difference: float) -> float | None:
    return difference if math.isfinite(difference) else None
