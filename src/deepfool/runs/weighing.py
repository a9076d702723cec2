"""Weighted norms in runs: where a run has weights, all norms of its rows are those of weights * r and weights * x."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from deepfool.errors import RunError
from deepfool.schemas import read_schema

if TYPE_CHECKING:
    from torch import Tensor


def find_weights(knobs: Mapping[str, Any]) -> list[float] | None:
    """What each feature counts in the norms of a run with these knobs; None where all count the same.

    >>> find_weights({"weights": [1.0, 2.0]}), find_weights({"max_iter": 50})
    ([1.0, 2.0], None)
    """
    given = knobs.get("weights")
    if given is None:
        return None if knobs.get("schema") is None else read_schema(knobs["schema"]).weights
    if not isinstance(given, list | tuple) or not all(isinstance(each, int | float) for each in given):
        raise RunError(f"the weights of the run must be a list of numbers, got {given!r:.80}.")
    return [float(each) for each in given]


def weigh(flat: Tensor, knobs: Mapping[str, Any]) -> Tensor:
    """Features (n, d) times their weights.

    >>> import torch
    >>> weigh(torch.ones(1, 2), {"weights": [1.0, 3.0]})
    tensor([[1., 3.]])
    """
    weights = find_weights(knobs)
    if weights is None:
        return flat
    if len(weights) != flat.shape[1]:
        raise RunError(f"the run has {len(weights)} weights for {flat.shape[1]} features.")
    return flat * flat.new_tensor(weights)
