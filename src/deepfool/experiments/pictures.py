"""Figures 1 and 8: perturbed images."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepfool.attacks.deepfool import deepfool
from deepfool.attacks.fgsm import fgsm, smallest_eps
from deepfool.datasets import load
from deepfool.experiments.measuring import set_deepfool
from deepfool.experiments.networks import Subject, find_subject, name_network
from deepfool.experiments.paper import OVERSHOOT, SMALL
from deepfool.experiments.session import Session
from deepfool.models.imagenet import list_names

EXAMPLES, LOOKED_AT = 3, 60
SHOWN_ON = ("caffenet", "googlenet", "nin-cifar10", "lenet-cifar10")
"""The networks of Figure 1: the first that is there."""
STRENGTHS = (1.0, 2.0, 3.0, 4.0, 5.0)
"""alpha of Figure 8."""
ONE, SEVEN = 1, 7


def make_figure_1(session: Session) -> dict[str, Any]:
    """Images with the perturbations of DeepFool and FGSM, each just large enough to change the label.

    The paper shows an image of ILSVRC 2012, which cannot be redistributed: without CaffeNet's or GoogLeNet's weights
    and a folder of ImageNet images, CIFAR-10 takes its place.
    """
    subjects = (find_subject(session, name) for name in SHOWN_ON)
    subject = next((each for each in subjects if not isinstance(each, str)), None)
    if subject is None:
        return {"missing": find_subject(session, SHOWN_ON[-1])}
    session.report(f"pictures of {subject.name}")
    imagenet = subject.name not in SMALL
    data = subject.pixels if imagenet else load("cifar10-sample")
    classes = list_names() if imagenet else data.classes
    x = data.batch(range(min(LOOKED_AT, len(data))))
    with torch.no_grad():
        said = torch.cat([subject.whole(part).argmax(1) for part in torch.split(x, 1 if imagenet else LOOKED_AT)])
    right = (said == data.labels[: len(x)]).nonzero()[:, 0].tolist()
    shown: dict[int, dict[str, Any]] = {}
    for i in right or range(len(x)):  # a folder of images may be labelled otherwise than the network
        if int(said[i]) not in shown and len(shown) < EXAMPLES:  # one image per class
            each = _compare(subject, x[i : i + 1], classes)
            if each["fgsm"] is not None:
                shown[int(said[i])] = each | {"index": i}
    return {
        "missing": None if shown else "FGSM changed none of the images", "network": subject.name,
        "name": name_network(subject.name), "examples": list(shown.values()),
    }  # fmt: skip


def _compare(subject: Subject, x: Tensor, classes: Sequence[str]) -> dict[str, Any]:
    """Both perturbations of an image, in pixels in [0, 1], with their relative sizes."""
    found = deepfool(subject.whole, x, **set_deepfool(subject))
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
