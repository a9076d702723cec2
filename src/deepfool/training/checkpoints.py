"""The checkpoint of a training: written after every epoch, read to resume."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import torch
from torch import nn

from deepfool.errors import RunError


def save_checkpoint(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, *, epoch: int, **about: Any
) -> None:  # fmt: skip
    """Write to a temporary name and rename, so that a kill never leaves half a checkpoint.

    >>> import tempfile
    >>> net = nn.Linear(1, 1)
    >>> with tempfile.TemporaryDirectory() as here:
    ...     save_checkpoint(Path(here) / "run.pt", net, torch.optim.SGD(net.parameters(), lr=0.1), epoch=3, seed=0)
    ...     read_checkpoint(Path(here) / "run.pt", "epoch")["epoch"]
    3
    """
    write_state(path, {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict(), **about})


def write_state(path: Path, state: dict[str, Any]) -> None:
    """Write tensors and plain values to a file, all of them or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as stream:
        torch.save(state, stream)
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(path)


def read_checkpoint(path: Path, *needed: str) -> dict[str, Any]:
    """Read a checkpoint that has the `needed` entries, without running any code from the file."""
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
        for name in needed:
            state[name]
    except (OSError, RuntimeError, KeyError, TypeError, EOFError, pickle.UnpicklingError) as error:
        raise RunError(
            f"{path} cannot be read as a checkpoint ({type(error).__name__}).",
            hint="remove the file to start again, or give another checkpoint path",
        ) from error
    return state
