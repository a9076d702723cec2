"""Adam (Kingma and Ba, 2015) in a few lines: torch's own loads its compiler, which takes longer than a certificate."""

from __future__ import annotations

import torch
from torch import Tensor

FIRST, SECOND = 0.9, 0.999


class Climber:
    """Raises tensors along their gradients; each has a rate of its own."""

    def __init__(self, tensors: list[Tensor], rates: list[Tensor | float]) -> None:
        self.tensors, self.rates, self.count = tensors, rates, 0
        self.mean = [torch.zeros_like(each) for each in tensors]
        self.square = [torch.zeros_like(each) for each in tensors]

    @torch.no_grad()
    def step(self, gradients: list[Tensor], fade: float) -> None:
        self.count += 1
        first, second = 1 - FIRST**self.count, 1 - SECOND**self.count
        for tensor, rate, mean, square, gradient in zip(
            self.tensors, self.rates, self.mean, self.square, gradients, strict=True
        ):
            mean.lerp_(gradient, 1 - FIRST)
            square.mul_(SECOND).addcmul_(gradient, gradient, value=1 - SECOND)
            tensor.add_(fade * rate * (mean / first) / ((square / second).sqrt() + 1e-12))
