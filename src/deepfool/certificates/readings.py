"""Certificates for goals: the model, followed by the alternatives of its goal as one more affine layer.

Where a goal's alternatives are affine functions of what the model returns (a margin, labels that flip, a value that
leaves an interval or passes another), they are a layer A z + b, the same for all samples that begin with the same
decision. The decision changes where another column than the one at x_0 is the largest: a plain question for `certify`.
Goals that are not affine are refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from deepfool.attacks.shared.aims import Aim
from deepfool.attacks.shared.alternatives import Opened
from deepfool.classifier import Classifier
from deepfool.errors import InputError


class Alternatives(nn.Module):
    """A model and what a goal makes of its outputs.

    >>> f = Classifier(nn.Identity(), reads="values")
    >>> Alternatives(f, torch.tensor([[0.0], [1.0]]), torch.tensor([0.0, -2.0]))(torch.tensor([[5.0]]))
    tensor([[0., 3.]])
    """

    def __init__(self, f: Classifier, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        if isinstance(f.model, nn.Module):
            self.model = f.model  # so that it is frozen with this one
        self.f, self.weight, self.bias = f, weight, bias

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(self.f(x), self.weight, self.bias)


def check_provable(aim: Aim) -> None:
    """An error for a goal that has no certificate.

    >>> from deepfool.attacks.shared.aims import Top
    >>> check_provable(Top(5))
    Traceback (most recent call last):
    ...
    deepfool.errors.InputError: certify cannot prove the goal top:5. Hint: it proves other, target, margin, labels, ...
    """
    if not aim.affine:
        raise InputError(
            f"certify cannot prove the goal {aim}.", hint="it proves other, target, margin, labels, label, within and "
            "passes: those that are affine in what the model returns.",
        )  # fmt: skip


def split_by_reading(f: Classifier, z: Tensor, opened: Opened) -> Iterator[tuple[Tensor, Classifier]]:
    """Samples that are read alike, with the classifier whose labels are their alternatives.

    `z` (n, c) is what the model returns for the samples; affine goals only.
    """
    assert opened.read is not None
    n, c = z.shape
    everyone = torch.arange(n, device=z.device)
    bias = opened.read(everyone, torch.zeros_like(z))
    columns = [opened.read(everyone, unit.expand_as(z)) - bias for unit in torch.eye(c, dtype=z.dtype, device=z.device)]
    weight = torch.stack(columns, -1)
    alike: dict[bytes, list[int]] = {}
    for i in range(n):
        key = torch.cat([weight[i].flatten(), bias[i]]).cpu().numpy().tobytes()
        alike.setdefault(key, []).append(i)
    for rows in alike.values():
        yield torch.tensor(rows, device=z.device), Classifier(Alternatives(f, weight[rows[0]], bias[rows[0]]))
