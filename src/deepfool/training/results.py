"""What a fine-tuning returns, and what it reports while it runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Epoch:
    """The model after this many extra epochs; epoch 0 is the model before fine-tuning."""

    epoch: int
    test_error: float
    """The share of all test samples that are misclassified."""
    rho: dict[str, float]
    """Judge -> rho_adv on the judged test samples; infinite where FGSM never misclassifies 90 % of them."""
    censored: dict[str, int] = field(default_factory=dict)
    """Judge -> how many samples it could not fool; where there are any, rho is not known (NaN)."""
    runs: dict[str, str] = field(default_factory=dict)
    """Judge -> the run folder that rho was computed from; FGSM has none."""


@dataclass(frozen=True)
class FineTuned:
    """A fine-tuned copy of a model, and how it was made."""

    model: nn.Module
    """In eval mode; the caller's own model is unchanged."""
    epochs: tuple[Epoch, ...]
    """One entry per extra epoch, after one for the model before fine-tuning."""
    perturbed: Path | None
    """The run folder of the (first) perturbed set; None for clean epochs."""
    left_clean: int = 0
    """Training samples that were not fooled and so stayed clean; with `fresh`, those of the last epoch."""
    learning_rate: float = 0.0
    """The rate that was used, `lr_scale` included."""
    samples: int = 0
    """The number of training samples."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Everything that the result depends on."""


@dataclass(frozen=True)
class Progress:
    """The current stage: "perturbing", "training" or "judging". `done` and `total` count samples or batches."""

    stage: str
    epoch: int
    """The extra epoch, from 1; 0 before the first."""
    epochs: int
    done: int
    total: int
    name: str = ""
    """The attack or judge."""
    loss: float = math.nan
    result: Epoch | None = None
    """At the end of an epoch: what was measured."""


OnProgress = Callable[[Progress], None]
