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
    from deepfool import metrics as metrics
    from deepfool import models as models
    from deepfool.attacks.adaptive_boundary import fab as fab
    from deepfool.attacks.adversarial import Adversarial as Adversarial
    from deepfool.attacks.adversarial import Status as Status
    from deepfool.attacks.affine import affine as affine
    from deepfool.attacks.box_lbfgs import lbfgs as lbfgs
    from deepfool.attacks.decoupled import ddn as ddn
    from deepfool.attacks.fast_gradient import SmallestEps as SmallestEps
    from deepfool.attacks.fast_gradient import fgsm as fgsm
    from deepfool.attacks.fast_gradient import smallest_eps as smallest_eps
    from deepfool.attacks.fast_minimum_norm import fmn as fmn
    from deepfool.attacks.linearization import deepfool as deepfool
    from deepfool.attacks.ray_search import tighten as tighten
    from deepfool.attacks.super_deepfool import superdeepfool as superdeepfool
    from deepfool.attacks.trust_region import smallest as smallest
    from deepfool.classifier import Classifier as Classifier
    from deepfool.evaluation import evaluate as evaluate
    from deepfool.finetuning import finetune as finetune
    from deepfool.records import Run as Run

__version__ = "0.1.0"

_HOME = {
    "Adversarial": "deepfool.attacks.adversarial",
    "Classifier": "deepfool.classifier",
    "Run": "deepfool.records",
    "SmallestEps": "deepfool.attacks.fast_gradient",
    "Status": "deepfool.attacks.adversarial",
    "affine": "deepfool.attacks.affine",
    "datasets": "",
    "ddn": "deepfool.attacks.decoupled",
    "deepfool": "deepfool.attacks.linearization",
    "errors": "",
    "evaluate": "deepfool.evaluation",
    "fab": "deepfool.attacks.adaptive_boundary",
    "fgsm": "deepfool.attacks.fast_gradient",
    "finetune": "deepfool.finetuning",
    "fmn": "deepfool.attacks.fast_minimum_norm",
    "lbfgs": "deepfool.attacks.box_lbfgs",
    "metrics": "",
    "models": "",
    "smallest": "deepfool.attacks.trust_region",
    "smallest_eps": "deepfool.attacks.fast_gradient",
    "superdeepfool": "deepfool.attacks.super_deepfool",
    "tighten": "deepfool.attacks.ray_search",
}

__all__ = [
    "Adversarial",
    "Classifier",
    "Run",
    "SmallestEps",
    "Status",
    "__version__",
    "affine",
    "datasets",
    "ddn",
    "deepfool",
    "errors",
    "evaluate",
    "fab",
    "fgsm",
    "finetune",
    "fmn",
    "lbfgs",
    "metrics",
    "models",
    "smallest",
    "smallest_eps",
    "superdeepfool",
    "tighten",
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
