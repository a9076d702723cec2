"""Certificates for a batch: what `certify` proves, as `deepfool.runs.proofs` puts it into rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from deepfool.attacks.shared.adversarial import Adversarial
from deepfool.certificates.certifying import certify
from deepfool.classifier import Classifier
from deepfool.errors import InputError
from deepfool.outcomes import Proof
from deepfool.runs.proofs import QUESTION, check_order

SMALLER = 1e-6
"""By how much, at least, a perturbation of the proof has to be smaller than the attack's to be noted."""

PAUSE = 10.0
"""About how many seconds may pass until certificates are written, where the batch size is ours to choose."""


def check_seconds(seconds: Any) -> float:
    """How long to work on each sample.

    >>> check_seconds(-1)
    Traceback (most recent call last):
    ...
    deepfool.errors.InputError: certify must be a number of seconds a sample, >= 0, got -1.
    """
    if type(seconds) not in (float, int) or not 0 <= seconds < math.inf:
        raise InputError(f"certify must be a number of seconds a sample, >= 0, got {seconds!r:.80}.")
    return float(seconds)


def choose_together(together: int, seconds: float) -> int:
    """How many samples to attack and certify at once, so that what is done is written soon.

    >>> choose_together(128, 1.0), choose_together(128, 30.0), choose_together(128, 0.0)
    (10, 1, 128)
    """
    return max(1, min(together, int(PAUSE / max(seconds, 1e-9))))


def prove(
    f: Classifier, x: Tensor, norms: Sequence[float], *, p: float, seconds: float, knobs: Mapping[str, Any],
    found: Adversarial | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """What certificates add to the rows of a batch.

    `norms` are those of the perturbations that the attack found, infinite where it found none; `found` has the
    perturbations themselves, if they are at hand.

    >>> import torch
    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> _ = torch.nn.init.eye_(model.weight)
    >>> [found] = prove(Classifier(model), torch.tensor([[3.0, 1.0]]), [1.5], p=2, seconds=1, knobs={})
    >>> found["proof"], round(found["lower"], 3), round(found["proof_upper"], 3)
    ('EXACT', 1.414, 1.414)
    """
    question = {"bounds": None, **{name: knobs[name] for name in QUESTION if knobs.get(name) is not None}}
    proved = certify(f, x, p=p, upper=norms if found is None else found, seconds=seconds, **question)
    rows = []
    for i, (proof, known) in enumerate(zip(proved.status.tolist(), norms, strict=True)):
        at_least, at_most = float(proved.lower[i]), min(float(proved.upper[i]), known)
        check_order(at_least, at_most, f"row {i} of the batch")
        at_least = min(at_least, at_most)  # they may differ by rounding
        row: dict[str, Any] = {
            "proof": Proof(proof).name, "lower": at_least if math.isfinite(at_least) else None,
            "proof_seconds": round(float(proved.seconds[i]), 6), "proof_limit": seconds,
        }  # fmt: skip
        if proved.reason[i]:
            row["proof_reason"] = proved.reason[i]
        if at_most < known * (1 - SMALLER):
            row["proof_upper"] = at_most
        rows.append(row)
    return rows
