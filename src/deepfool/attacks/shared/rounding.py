"""How much of a margin may be rounding.

A label counts as changed only beyond a small share of what the scores are summed up from. With less it could change
back when the same point is run in another batch size, where sums are taken in another order. What the scores are summed
up from is not visible, but two things indicate it: how large the scores are, and the sum of |w_i x_i|, with w the
gradient of their difference. On trained networks (one, two and ten scores; dense and convolutional; with and without
an offset) batches of 1, 7, 32 and 1000 differ by up to 3.4 units of rounding of the two together.
`tests/attacks/test_rounding.py` holds the result: 0 of 20,000 rows per network, attack and offset change back.
"""

from __future__ import annotations

import torch
from torch import Tensor

SHARE = {torch.float64: 1e-12, torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
"""Of what the scores are summed up from; 1e-6 is 8 units of rounding in float32."""


SQUASHED = 0.15
"""Of that, what is left where the scores were squashed at the end (tanh, sigmoid): 2.5 units of rounding below 1 in
float32. There the last operation adds a unit, and what it was given has been flattened with everything else."""


class Rounding:
    """The margin that counts as a change, for each sample; grows as gradients are seen.

    >>> rounding = Rounding(torch.tensor([[3.0, -5.0]]), torch.float32)
    >>> rounding.learn(torch.tensor([0]), torch.tensor([[1.0, 2.0]]), torch.tensor([[10.0, -10.0]]))
    >>> rounding.tolerance
    tensor([3.5000e-05])
    """

    def __init__(self, scores: Tensor, dtype: torch.dtype, offset: float = 0.0) -> None:
        """`scores` at x_0, the inputs' own `dtype`, and what was taken off the scores already."""
        self.share, self.squashed = SHARE[dtype], False
        self.magnitude = torch.nan_to_num(scores.abs().amax(1), 0.0, 0.0) + abs(offset)
        self.tolerance = self.share * self.magnitude

    def learn(self, rows: Tensor, y: Tensor, w: Tensor, weight: Tensor | float = 1.0) -> None:
        """Raise the tolerance to what the gradient w at y indicates. `weight`: how large a score difference it has."""
        if self.squashed:
            return
        terms = torch.nan_to_num((w * y).abs_().sum(1) / weight, 0.0, 0.0).to(self.tolerance.dtype)
        self.tolerance.scatter_reduce_(0, rows, self.share * (self.magnitude[rows] + terms), "amax")

    def squash(self) -> None:
        """The scores were squashed at the end (tanh, sigmoid): gradients before that do not say what may be rounding.

        Where the scores saturate, what was summed up is flattened with everything else, and units of rounding are all
        that is left of the margin. Where they do not saturate, a change by less than rounding may then count.

        >>> rounding = Rounding(torch.tensor([[1.0, -1.0]]), torch.float32)
        >>> rounding.squash()
        >>> rounding.tolerance
        tensor([1.5000e-07])
        """
        self.squashed = True
        self.magnitude = SQUASHED * self.magnitude
        self.tolerance = self.share * self.magnitude
