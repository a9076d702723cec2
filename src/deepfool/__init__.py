"""Measure how robust a classifier is: the smallest perturbation that changes each decision, and rho_adv.

    model + data ──▶ attack ──▶ records ──▶ metrics ──▶ report

Names are loaded when they are first used, so that `import deepfool` and `deepfool --help` stay quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deepfool import datasets as datasets
    from deepfool import errors as errors
    from deepfool import models as models
    from deepfool.attacks.adversarial import Adversarial as Adversarial
    from deepfool.attacks.adversarial import Status as Status
    from deepfool.attacks.affine import affine as affine
    from deepfool.attacks.linearization import deepfool as deepfool
    from deepfool.attacks.trust_region import smallest as smallest
    from deepfool.classifier import Classifier as Classifier
    from deepfool.evaluation import evaluate as evaluate
    from deepfool.records import Run as Run

__version__ = "0.1.0"

_HOME = {
    "Adversarial": "deepfool.attacks.adversarial",
    "Classifier": "deepfool.classifier",
    "Run": "deepfool.records",
    "Status": "deepfool.attacks.adversarial",
    "affine": "deepfool.attacks.affine",
    "deepfool": "deepfool.attacks.linearization",
    "datasets": "",
    "errors": "",
    "evaluate": "deepfool.evaluation",
    "models": "",
    "smallest": "deepfool.attacks.trust_region",
}

__all__ = [
    "Adversarial",
    "Classifier",
    "Run",
    "Status",
    "__version__",
    "affine",
    "datasets",
    "deepfool",
    "errors",
    "evaluate",
    "models",
    "smallest",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'deepfool' has no attribute {name!r}")
    home = _HOME[name]
    value = getattr(importlib.import_module(home), name) if home else importlib.import_module(f"deepfool.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
