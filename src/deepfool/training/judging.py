"""How the model is judged after each epoch: its test error, and rho_adv by one or more attacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from deepfool.attacks.fgsm import smallest_eps
from deepfool.attacks.shared.registry import find_attack
from deepfool.classifier import Classifier
from deepfool.errors import InputError
from deepfool.metrics import rho_adv
from deepfool.models.fingerprints import fingerprint
from deepfool.norms import check_p
from deepfool.training.jobs import Job
from deepfool.training.measuring import Measurement
from deepfool.training.perturbing import SHARE
from deepfool.training.results import Epoch
from deepfool.training.sgd import test_error


def judge(job: Job, model: nn.Module, epoch: int, labels: Tensor) -> Epoch:
    """Measure the model after an epoch; epoch 0 is the model before fine-tuning."""
    error = test_error(model, job.test.data.images(), labels, scores=read_scores(model, **job.reading))
    rho: dict[str, float] = {}
    censored: dict[str, int] = {}
    runs: dict[str, str] = {}
    weights = job.source.fingerprint if epoch == 0 else fingerprint(model, job.source.spec)
    knobs = {**({} if job.bounds is None else {"bounds": job.bounds}), **job.reading}
    for name in job.judges:
        if name == "fgsm":
            rho[name] = _rho_by_sign(job, model, labels)
            continue
        plan = Measurement(job, weights, job.test, name, p=job.p, knobs=knobs, limit=job.judged)
        run = plan.run(job.original if epoch == 0 else model, "judging", epoch)
        records = run.records()
        rho[name] = rho_adv(records, "p").value
        censored[name] = int(records.censored.sum())
        runs[name] = str(run.folder)
    return Epoch(epoch, error, rho, censored, runs)


def check_judges(judges: Sequence[str], p: float) -> None:
    """Raise on a name that is not an attack, or a norm that FGSM cannot judge by.

    >>> check_judges("deepfool", 2)
    Traceback (most recent call last):
    ...
    deepfool.errors.InputError: judges must be a list of names, got 'deepfool'. Hint: judges=("deepfool",)
    """
    if isinstance(judges, str) or not isinstance(judges, Sequence):
        raise InputError(f"judges must be a list of names, got {judges!r:.80}.", hint='judges=("deepfool",)')
    for name in judges:
        find_attack(name)
        if name == "fgsm" and check_p(p) not in (2, math.inf):
            raise InputError(f"FGSM judges by the l2 and linf norms, got p = {p:g}.")


def read_scores(model: nn.Module, **reading: Any) -> Callable[[Tensor], Tensor]:
    """A function that gives the class scores of any model: single logits, outputs in a tuple or a dict, and so on."""
    f, dtype = Classifier(model, **reading), next(model.parameters()).dtype
    return lambda x: f(x.to(dtype))


def _rho_by_sign(job: Job, model: nn.Module, labels: Tensor) -> float:
    """The mean of ||r|| / ||x|| at the eps at which FGSM misclassifies 90 % of the samples."""
    weight = next(model.parameters())
    x = job.test.data.batch(range(job.judged)).to(weight.device, weight.dtype)
    labels = labels[: job.judged].to(weight.device)
    found = smallest_eps(model, (x, labels), share=SHARE, bounds=job.bounds, **job.reading)
    return found.rho_linf if math.isinf(job.p) else found.rho_l2
