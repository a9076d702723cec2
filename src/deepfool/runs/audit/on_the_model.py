"""Checks of the model: an attack that follows gradients needs scores that stay the same, and gradients that lead on."""

from __future__ import annotations

import torch
from torch import Tensor

from deepfool.classifier.unmasking import find_masks
from deepfool.errors import DeepFoolError
from deepfool.runs import consistency
from deepfool.runs.audit.checklist import Check, Verdict
from deepfool.runs.audit.subject import Subject
from deepfool.runs.worker import DTYPES

TIE = 4
"""Two scores that differ by so many units of rounding or less are the same as far as anyone can tell."""


def check_scores(subject: Subject) -> list[Check]:
    """Look twice: the same scores in a second pass, and the same alone as in a batch."""
    job = subject.job
    facts = consistency.look_twice(subject.module, subject.x, device=job.device, dtype=DTYPES[job.dtype])
    size = facts["difference"]
    changed = "more than can be measured" if size is None else f"{size:.2g} of their size"
    checks = []
    for name, holds, right, wrong, bad in (
        (
            "same scores twice", facts["repeatable"], "The same inputs give the same scores when they are run again.",
            f"The same inputs give other scores when they are run again (by {changed}): the model is random, and so "
            f"are the distances.", Verdict.FAIL,
        ),
        (
            "alone as in a batch", facts["independent"], "A sample has the same scores alone as in a batch.",
            f"A sample has other scores alone than in a batch (by {changed}): the distances depend on the batch size.",
            Verdict.CAUTION,
        ),
    ):  # fmt: skip
        if holds is None and facts["repeatable"] is not None:
            continue  # of a random model, or of a single sample, there is no telling
        if holds is None:
            checks.append(Check(name, Verdict.CAUTION, "This could not be found out.", None))
        else:
            checks.append(Check(name, Verdict.PASS if holds else bad, right if holds else wrong, size))
    return checks


def check_gradients(subject: Subject) -> list[Check]:
    """The gradient of the margin, between the predicted class and the next one, at each sample."""
    dead = int(_has_no_gradient(subject).sum())
    n = len(subject.x)
    if not dead:
        return [Check("gradients", Verdict.PASS, f"Each of {n} samples has a gradient to follow.", 0.0)]
    return [
        Check(
            "gradients", Verdict.CAUTION,
            f"The gradient is zero or not finite at {dead} of {n} samples: attacks that follow gradients are blind "
            f"there.", dead / n,
        )
    ]  # fmt: skip


def _has_no_gradient(subject: Subject) -> Tensor:
    """(n,): where the gradient of the margin is exactly zero, not finite, or not there at all."""
    f = subject.f
    with f.frozen():
        x = subject.x.detach().clone().requires_grad_()
        top = f(x).topk(2, dim=1).values
        margin = (top[:, 0] - top[:, 1]).sum()
        (w,) = torch.autograd.grad(margin, x, allow_unused=True) if margin.requires_grad else (None,)
    if w is None:
        return torch.ones(len(x), dtype=torch.bool)
    flat = w.flatten(1)
    return ~flat.isfinite().all(1) | (flat == 0).all(1)


def check_operations(subject: Subject) -> list[Check]:
    """Operations that hide gradients: roundings, a last layer that saturates."""
    with subject.f.frozen():
        try:
            found = find_masks(subject.f, subject.x)
        except DeepFoolError:
            return [Check("hidden gradients", Verdict.CAUTION, "This could not be found out.", None)]
    if not found:
        sentence = "No operation of the model was seen to hide gradients: no rounding, no saturating last layer."
        return [Check("hidden gradients", Verdict.PASS, sentence, 0.0)]
    return [
        Check(
            "hidden gradients", Verdict.CAUTION,
            f"The model hides its gradients: {', '.join(found)}. An attack that does not see through that finds "
            f"distances that are too large.", float(len(found)),
        )
    ]  # fmt: skip


def check_saturation(subject: Subject) -> list[Check]:
    """Where differences between scores are at the resolution of the floating-point type."""
    saturated, n = int(_is_saturated(subject).sum()), len(subject.x)
    if not saturated:
        return [Check("saturation", Verdict.PASS, f"The scores of {n} samples are apart by more than rounding.", 0.0)]
    return [
        Check(
            "saturation", Verdict.CAUTION,
            f"The scores of {saturated} of {n} samples are at the limit of what {subject.job.dtype} can tell apart "
            f"(probabilities of 1, or the same score twice): small changes are lost in rounding.", saturated / n,
        )
    ]  # fmt: skip


def _is_saturated(subject: Subject) -> Tensor:
    """(n,): a probability that was rounded to 1, or two largest scores that are the same up to rounding."""
    f = subject.f
    with f.frozen(), torch.no_grad():
        z = f.run(subject.x)
        scores = f.read(z, subject.x)
    eps = torch.finfo(subject.x.dtype).eps
    top = scores.topk(2, dim=1).values.double()
    tied = top[:, 0] - top[:, 1] <= TIE * eps * top.abs().amax(1)
    if not f.probabilities:
        return tied
    given = z.flatten(1)
    sure = given.amax(1) if given.shape[1] > 1 else torch.maximum(given[:, 0], 1 - given[:, 0])
    return tied | (sure >= 1 - eps)


CHECKS = (check_scores, check_gradients, check_operations, check_saturation)
