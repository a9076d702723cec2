"""The loop around both forms: epochs over the images used, in an order that the seed decides.

All that the loop remembers is in a `State`. The order of an epoch follows from the seed and its number alone, so a
search that goes on from a stored state ends at the same v as one that was never stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepfool.errors import InputError
from deepfool.training.checkpoints import read_checkpoint, write_state
from deepfool.universals import ascent, classic
from deepfool.universals.images import Images
from deepfool.values import check_count, check_share

METHODS = ("gradient", "deepfool")
STEPS = 200
"""Of the gradient form, by default."""
EPOCHS = 5
"""Of the algorithm of 2017, by default. Its authors report that a few passes are enough."""
MOST_AT_ONCE = {"gradient": 50, "deepfool": 20}
LOOKS = 10
"""How often a search looks at all images used, at most: at the end of an epoch, about evenly."""
SAVE_EVERY = 5.0
"""Seconds between two checkpoints."""


@dataclass(frozen=True)
class Plan:
    """How to search. `epochs` and `batch_size` depend on the number of images unless they are given."""

    method: str
    epochs: int
    batch_size: int
    wanted: float
    seed: int


def make_plan(
    count: int, *, method: str, epochs: int | None, batch_size: int | None, wanted: float | None, seed: int
) -> Plan:  # fmt: skip
    """The plan for so many images.

    >>> make_plan(1000, method="gradient", epochs=None, batch_size=None, wanted=None, seed=0)
    Plan(method='gradient', epochs=10, batch_size=50, wanted=inf, seed=0)
    >>> make_plan(10, method="gradient", epochs=None, batch_size=None, wanted=None, seed=0).epochs
    40
    """
    if method not in METHODS:
        raise InputError(f"method must be one of {', '.join(METHODS)}, got {method!r:.80}.")
    if batch_size is None:  # a fifth of the images at most: steps on all of them would all be the same
        batch_size = min(MOST_AT_ONCE[method], max(1, count // 5))
    batch_size = min(check_count(batch_size, "batch_size"), count)
    if epochs is None:
        epochs = math.ceil(STEPS * batch_size / count) if method == "gradient" else EPOCHS
    return Plan(
        method, check_count(epochs, "epochs"), batch_size, _check_wanted(wanted, method),
        check_count(seed, "seed", least=0),
    )  # fmt: skip


def _check_wanted(wanted: float | None, method: str) -> float:
    """DeepFool has nothing to do once all images used are fooled. The gradient form goes on: its v gets surer."""
    if wanted is None:
        return math.inf if method == "gradient" else 1.0
    return check_share(wanted, "wanted")


@dataclass
class State:
    """How far a search has come."""

    v: Tensor
    average: Tensor
    """Of past gradients (gradient form)."""
    best: Tensor
    """The v that fooled most of the images used, of those that were looked at."""
    best_rate: float = -1.0
    epoch: int = 0
    batch: int = 0
    """Batches of this epoch that are done."""
    rates: list[float] = field(default_factory=list)
    """The share of the images used that v fooled, at each look."""
    counted: int = 0
    """The images used that count."""
    done: bool = False
    seconds: float = 0.0


Report = Callable[[int, int, float], None]
"""Called with the batches done, their number, and the rate at the last look."""


def search(images: Images, plan: Plan, file: Path | None = None, on_batch: Report = lambda *_: None) -> State:
    """Search for v on these images; with a file, store the state now and then and go on from what is there.

    >>> from deepfool.classifier import Classifier
    >>> from deepfool.datasets import load
    >>> from deepfool.universals.ball import Ball
    >>> f = Classifier(lambda x: torch.cat([0.5 - x, x - 0.5], 1))
    >>> images = Images(f, load((torch.tensor([[0.6], [0.9]]), [1, 1])), [0, 1], Ball(2, 0.45), outputs_on="cpu")
    >>> plan = make_plan(2, method="deepfool", epochs=None, batch_size=None, wanted=1.0, seed=0)
    >>> search(images, plan).rates
    [1.0]
    """
    state = _start(images, file)
    rows = images.rows
    state.counted = len(rows)
    total = plan.epochs * math.ceil(len(rows) / plan.batch_size)
    before, began, saved = state.seconds, time.monotonic(), time.monotonic()
    with images.f.frozen():
        while not state.done:
            order = torch.Generator().manual_seed(plan.seed * 1_000_003 + state.epoch)
            batches = torch.split(rows[torch.randperm(len(rows), generator=order)], plan.batch_size)
            while state.batch < len(batches):
                _take(images, plan, state, batches[state.batch], (state.epoch * len(batches) + state.batch) / total)
                state.batch += 1
                state.seconds = before + time.monotonic() - began
                if file is not None and time.monotonic() - saved > SAVE_EVERY:
                    write_state(file, asdict(state))
                    saved = time.monotonic()
                on_batch(state.epoch * len(batches) + state.batch, total, state.rates[-1] if state.rates else math.nan)
            _end_epoch(images, plan, state)
            state.seconds = before + time.monotonic() - began
            if file is not None and (state.done or time.monotonic() - saved > SAVE_EVERY):
                write_state(file, asdict(state))
                saved = time.monotonic()
    return state


def _take(images: Images, plan: Plan, state: State, rows: Tensor, progress: float) -> None:
    if plan.method == "deepfool":
        state.v = classic.step(images, state.v, rows)
    else:
        state.v, state.average = ascent.step(images, state.v, rows, state.average, progress)


def _end_epoch(images: Images, plan: Plan, state: State) -> None:
    state.epoch, state.batch = state.epoch + 1, 0
    state.done = state.epoch >= plan.epochs
    if not state.done and state.epoch % math.ceil(plan.epochs / LOOKS):
        return
    rate = float(images.fooled(state.v).double().mean())
    state.rates.append(rate)
    if rate >= state.best_rate:  # of equals the last: it has seen most
        state.best, state.best_rate = state.v.clone(), rate
    state.done |= rate >= plan.wanted


def _start(images: Images, file: Path | None) -> State:
    zero = torch.zeros(images.shape, device=images.device)
    if file is None or not file.exists():
        return State(zero, zero.clone(), zero.clone())
    stored = read_checkpoint(file, *State.__dataclass_fields__)
    known: dict[str, Any] = {
        name: stored[name].to(images.device) if isinstance(stored[name], Tensor) else stored[name]
        for name in State.__dataclass_fields__
    }
    return State(**known)
