"""A perturbation that survives rounding to 8 bits.

The smallest perturbations are often smaller than the step between two grey levels, so rounding undoes them. The remedy
is to go further in the same direction: x + s r, rounded, for the smallest s >= 1 at which the rounded image has another
label. For an l2 perturbation of a locally linear model this is also the cheapest choice of levels to change, because
rounding keeps the pixels that matter most.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from deepfool.classifier import Classifier, Model
from deepfool.errors import InputError
from deepfool.values import check_count

GROWTH = 1.02
MOST_TRIES = 400
"""1.02 ** 400 is about 2,700: by then every pixel that changes at all is black or white."""


@dataclass(frozen=True)
class Rounded:
    """An 8-bit image that fools the model."""

    levels: Tensor
    """(c, h, w), uint8."""
    label: int
    scale: float
    """How far the perturbation was stretched; 1 if it survived rounding as it was."""

    @property
    def x(self) -> Tensor:
        """In [0, 1]."""
        return self.levels.float() / 255


def round_adversarial(
    model: Model | Classifier, x: Tensor, r: Tensor, label: int, *, tries: int = MOST_TRIES, at_once: int = 16
) -> Rounded | None:
    """The 8-bit image nearest to x + r that `model` does not label `label`; None if there is none on that line.

    `x` is one sample (c, h, w) in [0, 1], `r` its perturbation.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2, bias=False))
    >>> _ = model[1].weight.data.copy_(torch.tensor([[1.0, 0, 0, 0], [0, 1.0, 0, 0]]))
    >>> x = torch.tensor([[[0.502, 0.5], [0.0, 0.0]]])
    >>> found = round_adversarial(model, x, torch.tensor([[[-0.0011, 0.0011], [0.0, 0.0]]]), label=0)
    >>> found.label, found.levels.flatten().tolist(), found.scale > 1
    (1, [127, 128, 0, 0], True)
    """
    check_count(tries, "tries")
    if x.ndim != 3 or x.shape != r.shape:
        raise InputError(f"x and r must be one sample of shape (c, h, w), got {tuple(x.shape)} and {tuple(r.shape)}.")
    if float(x.min()) < 0 or float(x.max()) > 1:
        raise InputError(f"x must lie in [0, 1] to be saved as an image, got [{x.min():.3g}, {x.max():.3g}].")
    f = Classifier.of(model)
    scales = [GROWTH**i for i in range(tries)]
    with f.frozen(), torch.no_grad():
        for start in range(0, tries, at_once):
            some = torch.tensor(scales[start : start + at_once], dtype=torch.float64).reshape(-1, 1, 1, 1)
            levels = ((x.double().cpu() + some * r.double().cpu()).clamp(0, 1) * 255).round().to(torch.uint8)
            labels = f((levels.to(x.dtype) / 255).to(x.device)).argmax(1)
            fooled = (labels != label).nonzero()
            if len(fooled):
                i = int(fooled[0])
                return Rounded(levels[i], int(labels[i]), scales[start + i])
    return None
