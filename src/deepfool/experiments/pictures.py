"""Figures 1 and 8: perturbed images."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepfool.attacks.deepfool import deepfool
from deepfool.attacks.fgsm import fgsm, smallest_eps
from deepfool.datasets import load
from deepfool.experiments.networks import Subject, find_subject, name_network
from deepfool.experiments.paper import OVERSHOOT
from deepfool.experiments.session import Session

EXAMPLES = 3
STRENGTHS = (1.0, 2.0, 3.0, 4.0, 5.0)
"""alpha of Figure 8."""
ONE, SEVEN = 1, 7


def make_figure_1(session: Session) -> dict[str, Any]:
    """CIFAR-10 images with the perturbations of DeepFool and FGSM, each just large enough to change the label.

    The paper shows an image of ILSVRC 2012, which cannot be redistributed.
    """
    name = next((n for n in ("nin-cifar10", "lenet-cifar10") if not isinstance(find_subject(session, n), str)), None)
    if name is None:
        return {"missing": find_subject(session, "lenet-cifar10")}
    subject = find_subject(session, name)
    if isinstance(subject, str):
        return {"missing": subject}
    session.report(f"pictures of {name}")
    data = load("cifar10-sample")
    x = data.batch(range(60))
    y = data.labels[:60]
    with torch.no_grad():
        right = (subject.whole(x).argmax(1) == y).nonzero()[:, 0].tolist()
    shown: dict[int, dict[str, Any]] = {}
    for i in right:
        if int(y[i]) not in shown and len(shown) < EXAMPLES:  # one image per class
            each = _compare(subject, x[i : i + 1], data.classes)
            if each["fgsm"] is not None:
                shown[int(y[i])] = each | {"index": i}
    return {"missing": None, "network": name, "name": name_network(name), "examples": list(shown.values())}


def _compare(subject: Subject, x: Tensor, classes: tuple[str, ...]) -> dict[str, Any]:
    """Both perturbations of an image, in pixels in [0, 1], with their relative sizes."""
    found = deepfool(subject.whole, x, overshoot=OVERSHOOT)
    least = smallest_eps(subject.whole, (x, found.label), share=1.0)
    other = fgsm(subject.whole, x, eps=least.eps) if least.reached else None
    return {
        "label": classes[int(found.label[0])],
        "x": _pack(x[0]),
        "deepfool": _describe(x, found.r, classes[int(found.adv_label[0])]),
        "fgsm": None if other is None else _describe(x, other.r, classes[int(other.adv_label[0])]),
    }


def _describe(x: Tensor, r: Tensor, label: str) -> dict[str, Any]:
    return {"r": _pack(r[0]), "label": label, "rho": float(r.norm() / x.norm())}


def _pack(image: Tensor) -> dict[str, Any]:
    """An image for JSON; half precision is enough for display."""
    raw = image.half().cpu().contiguous().numpy().astype("<f2").tobytes()
    return {"shape": list(image.shape), "float16": base64.b64encode(raw).decode()}


def unpack(packed: Mapping[str, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The inverse of `_pack`.

    >>> unpack(_pack(torch.tensor([[[0.5, 1.0]]]))).tolist()
    [[[0.5, 1.0]]]
    """
    stored: np.ndarray[Any, Any] = np.frombuffer(base64.b64decode(packed["float16"]), "<f2")
    found: np.ndarray[Any, np.dtype[np.float64]] = stored.reshape(packed["shape"]).astype(np.float64)
    return found


def make_figure_8(session: Session) -> dict[str, Any]:
    """A "1" that its magnified perturbation turns into a "7"."""
    subject = find_subject(session, "lenet-mnist")
    if isinstance(subject, str):
        return {"missing": subject}
    session.report("pictures of lenet-mnist")
    data = load("mnist-sample")
    ones = (data.labels == ONE).nonzero()[:, 0]
    x = data.batch(ones)
    found = deepfool(subject.whole, x, overshoot=OVERSHOOT)
    became = ((found.label == ONE) & (found.adv_label == SEVEN) & found.fooled).nonzero()[:, 0]
    if not len(became):
        return {"missing": "no 1 in the sample of the package becomes a 7"}
    i = int(became[0])
    steps = []
    for alpha in STRENGTHS:
        moved = x[i : i + 1] + alpha * found.r[i : i + 1]
        with torch.no_grad():
            said = int(subject.whole(moved).argmax())
        steps.append({"alpha": alpha, "label": str(said), "rho": alpha * float(found.r[i].norm() / x[i].norm())})
    return {
        "missing": None, "network": subject.name, "name": name_network(subject.name), "index": int(ones[i]),
        "x": _pack(x[i]), "r": _pack(found.r[i]), "steps": steps, "candidates": len(became),
    }  # fmt: skip
