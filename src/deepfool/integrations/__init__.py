"""INTEGRATIONS: runs in the trackers that teams use, and robustness measured while a network trains.

    figures.py        what is logged of a run: its figures and settings by name
    probe.py          `Probe`: measure a network in training on a fixed subset, every n epochs
    frameworks.py     how the frameworks that train networks are imported
    mlflow.py         `log_run` to MLflow
    wandb.py          `log_run` to Weights & Biases
    tensorboard.py    `log_run` to TensorBoard
    lightning.py      `RobustnessCallback` for Lightning
    transformers.py   `RobustnessCallback` for the Hugging Face Trainer

None of these libraries is needed by the package: a module is loaded when it is first used and imports its own library,
and an error names the extra to install.
"""

from __future__ import annotations

import importlib
from typing import Any

from deepfool.integrations.figures import list_figures, list_settings
from deepfool.integrations.probe import Measured, Probe, ProbeWarning

_LOADED_WHEN_USED = ("lightning", "mlflow", "tensorboard", "transformers", "wandb")

__all__ = ["Measured", "Probe", "ProbeWarning", "list_figures", "list_settings"]


def __getattr__(name: str) -> Any:
    if name not in _LOADED_WHEN_USED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")
