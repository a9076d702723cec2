"""What `certify` returns: the distance to the decision boundary from both sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from deepfool.outcomes import Proof as Proof


@dataclass(frozen=True)
class Certificate:
    """One row per sample, in the order of the inputs; every field has the batch as its first dimension.

    >>> c = Certificate.empty(torch.zeros(0, 3), p=2)
    >>> len(c), c
    (0, Certificate(0 samples: none))
    """

    lower: Tensor
    """No perturbation whose p-norm is smaller changes the decision; infinite where none at all does. float64."""
    upper: Tensor
    """The p-norm of the smallest perturbation that is known to change it; infinite where none is known. float64."""
    x: Tensor
    """The point at `upper`, in the shape and type of the inputs; the input itself where none is known."""
    label: Tensor
    """The label predicted at the input: the one that is kept."""
    status: Tensor
    """A `Proof` per sample."""
    seconds: Tensor
    """What each sample took, without the attack."""
    reason: tuple[str, ...]
    """Why a row is not exact, or why nothing was proved; an empty text for an exact row."""
    p: float
    """The norm."""

    def __len__(self) -> int:
        return len(self.label)

    @property
    def exact(self) -> Tensor:
        """A boolean per sample."""
        return self.status == Proof.EXACT

    @property
    def certified(self) -> Tensor:
        """A boolean per sample: whether `lower` is a proof, exact or not."""
        return self.status != Proof.NONE

    def rows(self, index: Tensor) -> Certificate:
        """The same result for some of the samples (an index or a boolean mask)."""
        index = index.nonzero()[:, 0] if index.dtype == torch.bool else index
        picked = {f.name: getattr(self, f.name)[index] for f in fields(self) if f.name not in ("reason", "p")}
        return Certificate(**picked, reason=tuple(self.reason[i] for i in index.tolist()), p=self.p)

    @staticmethod
    def concatenate(parts: Sequence[Certificate]) -> Certificate:
        """Join the results of several batches, in order."""
        names = [f.name for f in fields(Certificate) if f.name not in ("reason", "p")]
        tensors = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
        return Certificate(**tensors, reason=tuple(r for part in parts for r in part.reason), p=parts[0].p)

    @staticmethod
    def empty(x: Tensor, p: float) -> Certificate:
        """The result for a batch of no samples."""
        real, whole = torch.zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.long)
        return Certificate(lower=real, upper=real, x=x.clone(), label=whole, status=whole, seconds=real, reason=(), p=p)

    def __repr__(self) -> str:
        counts = ", ".join(f"{n} {s.name.lower()}" for s in Proof if (n := int((self.status == s).sum())))
        known = self.certified & self.upper.isfinite() & (self.upper > 0)
        ratio = (self.lower / self.upper)[known]
        median = f", median lower/upper {ratio.median().item():.3f}" if len(ratio) else ""
        return f"Certificate({len(self)} samples: {counts or 'none'}{median})"
