"""Measure how robust a classifier is: the smallest perturbation that changes each decision, and rho_adv.

    model + data ──▶ attack ──▶ records ──▶ metrics ──▶ report
                       └─▶ certificate

Names are loaded when they are first used, so that `import deepfool` and `deepfool --help` stay quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deepfool import datasets as datasets
    from deepfool import errors as errors
    from deepfool import integrations as integrations
    from deepfool import metrics as metrics
    from deepfool import models as models
    from deepfool.attacks.affine import affine as affine
    from deepfool.attacks.ddn import ddn as ddn
    from deepfool.attacks.deepfool import deepfool as deepfool
    from deepfool.attacks.fab import fab as fab
    from deepfool.attacks.fgsm import SmallestEps as SmallestEps
    from deepfool.attacks.fgsm import fgsm as fgsm
    from deepfool.attacks.fgsm import smallest_eps as smallest_eps
    from deepfool.attacks.fmn import fmn as fmn
    from deepfool.attacks.lbfgs import lbfgs as lbfgs
    from deepfool.attacks.shared.adversarial import Adversarial as Adversarial
    from deepfool.attacks.sigma_zero import sigma_zero as sigma_zero
    from deepfool.attacks.smallest import smallest as smallest
    from deepfool.attacks.sparsefool import sparsefool as sparsefool
    from deepfool.attacks.superdeepfool import superdeepfool as superdeepfool
    from deepfool.attacks.tighten import tighten as tighten
    from deepfool.certificates.certificate import Certificate as Certificate
    from deepfool.certificates.certifying import certify as certify
    from deepfool.certificates.checking import certifiable as certifiable
    from deepfool.classifier import Classifier as Classifier
    from deepfool.interactive.evaluation import evaluate as evaluate
    from deepfool.interactive.evaluation import finetune as finetune
    from deepfool.interactive.runs import Run as Run
    from deepfool.outcomes import Evidence as Evidence
    from deepfool.outcomes import Proof as Proof
    from deepfool.outcomes import Status as Status
    from deepfool.runs.audit.auditing import audit as audit
    from deepfool.runs.audit.checklist import Audit as Audit
    from deepfool.schemas import Feature as Feature
    from deepfool.schemas import Schema as Schema
    from deepfool.universals.results import Universal as Universal
    from deepfool.universals.universal import universal as universal

__version__ = "0.1.0"

_HOME = {
    "Adversarial": "deepfool.attacks.shared.adversarial",
    "Audit": "deepfool.runs.audit.checklist",
    "Certificate": "deepfool.certificates.certificate",
    "Classifier": "deepfool.classifier",
    "Evidence": "deepfool.outcomes",
    "Feature": "deepfool.schemas",
    "Proof": "deepfool.outcomes",
    "Run": "deepfool.interactive.runs",
    "Schema": "deepfool.schemas",
    "SmallestEps": "deepfool.attacks.fgsm",
    "Status": "deepfool.outcomes",
    "Universal": "deepfool.universals.results",
    "affine": "deepfool.attacks.affine",
    "audit": "deepfool.runs.audit.auditing",
    "certifiable": "deepfool.certificates.checking",
    "certify": "deepfool.certificates.certifying",
    "datasets": "",
    "ddn": "deepfool.attacks.ddn",
    "deepfool": "deepfool.attacks.deepfool",
    "errors": "",
    "evaluate": "deepfool.interactive.evaluation",
    "fab": "deepfool.attacks.fab",
    "fgsm": "deepfool.attacks.fgsm",
    "finetune": "deepfool.interactive.evaluation",
    "fmn": "deepfool.attacks.fmn",
    "integrations": "",
    "lbfgs": "deepfool.attacks.lbfgs",
    "metrics": "",
    "models": "",
    "sigma_zero": "deepfool.attacks.sigma_zero",
    "smallest": "deepfool.attacks.smallest",
    "smallest_eps": "deepfool.attacks.fgsm",
    "sparsefool": "deepfool.attacks.sparsefool",
    "subspaces": "",
    "superdeepfool": "deepfool.attacks.superdeepfool",
    "tighten": "deepfool.attacks.tighten",
    "universal": "deepfool.universals.universal",
}

__all__ = [
    "Adversarial",
    "Audit",
    "Certificate",
    "Classifier",
    "Evidence",
    "Feature",
    "Proof",
    "Run",
    "Schema",
    "SmallestEps",
    "Status",
    "Universal",
    "__version__",
    "affine",
    "audit",
    "certifiable",
    "certify",
    "datasets",
    "ddn",
    "deepfool",
    "errors",
    "evaluate",
    "fab",
    "fgsm",
    "finetune",
    "fmn",
    "integrations",
    "lbfgs",
    "metrics",
    "models",
    "sigma_zero",
    "smallest",
    "smallest_eps",
    "sparsefool",
    "subspaces",
    "superdeepfool",
    "tighten",
    "universal",
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
