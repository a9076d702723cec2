"""The result that every attack returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from deepfool.outcomes import Evidence as Evidence
from deepfool.outcomes import Status as Status

_OF_ALL_ROWS = ("reason", "p", "unit")
"""The fields that are no tensors."""


@dataclass(frozen=True)
class Adversarial:
    """One row per sample, in the order of the inputs; every field has the batch as its first dimension.

    >>> a = Adversarial.empty(torch.zeros(0, 3), p=2)
    >>> len(a), a.fooled.sum().item()
    (0, 0)
    """

    x: Tensor
    """The perturbed inputs, in the shape and type of the inputs."""
    r: Tensor
    """The perturbations, `x - x_0`; in float32 where the inputs have half precision."""
    label: Tensor
    """The label predicted at x_0: the one to leave."""
    adv_label: Tensor
    """The label predicted at `x`."""
    norm: Tensor
    """The p-norm of `r`, for p = 0 how many of its entries are not zero (see `unit`); infinite where the search failed,
    0 where the sample was misclassified to begin with."""
    iterations: Tensor
    """Steps taken."""
    status: Tensor
    """A `Status` per sample."""
    forwards: Tensor
    """Forward passes each sample went through."""
    backwards: Tensor
    """Backward rows: gradients of one score, or of one difference of scores."""
    reason: tuple[str, ...]
    """Why a row is not fooled, and what to try; for a fooled row a caution, or an empty text."""
    p: float
    """The norm that was minimised."""
    evidence: Tensor = None  # type: ignore[assignment]
    """An `Evidence` per sample: what the perturbation was found by. An attack of your own may leave it out."""
    converged: Tensor = None  # type: ignore[assignment]
    """A boolean per sample: whether the last tenth of its passes made the perturbation less than 0.5 % smaller. Not
    known to have, if an attack of your own leaves it out."""
    unit: str = "feature"
    """For p = 0: what `norm` counts, "feature" or "pixel"."""

    def __post_init__(self) -> None:
        if self.evidence is None:
            object.__setattr__(self, "evidence", torch.full_like(self.label, int(Evidence.GRADIENTS)))
        if self.converged is None:
            object.__setattr__(self, "converged", torch.zeros_like(self.label, dtype=torch.bool))

    def __len__(self) -> int:
        return len(self.label)

    @property
    def fooled(self) -> Tensor:
        """A boolean per sample."""
        return self.status == Status.FOOLED

    def rows(self, index: Tensor) -> Adversarial:
        """The same result for some of the samples (an index or a boolean mask)."""
        index = index.nonzero()[:, 0] if index.dtype == torch.bool else index
        picked = {
            f.name: getattr(self, f.name)[index.to(self.label.device)]
            for f in fields(self)
            if f.name not in _OF_ALL_ROWS
        }
        reason = tuple(self.reason[i] for i in index.tolist())
        return Adversarial(**picked, reason=reason, p=self.p, unit=self.unit)

    @staticmethod
    def concatenate(parts: Sequence[Adversarial]) -> Adversarial:
        """Join the results of several batches, in order."""
        tensors = {
            f.name: torch.cat([getattr(part, f.name) for part in parts])
            for f in fields(Adversarial)
            if f.name not in _OF_ALL_ROWS
        }
        reason = tuple(r for part in parts for r in part.reason)
        return Adversarial(**tensors, reason=reason, p=parts[0].p, unit=parts[0].unit)

    @staticmethod
    def empty(x: Tensor, p: float, unit: str = "feature") -> Adversarial:
        """The result for a batch of no samples."""
        whole = torch.zeros(0, dtype=torch.long, device=x.device)
        real = torch.zeros(0, dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)
        return Adversarial(
            x=x.clone(), r=x.to(real.dtype), label=whole, adv_label=whole, norm=real, iterations=whole,
            status=whole, forwards=whole, backwards=whole, evidence=whole, converged=whole.bool(), reason=(), p=p,
            unit=unit,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"Adversarial({describe(self)})"

    def _repr_html_(self) -> str:
        """What a notebook shows: pictures of x, r and x + r where the inputs are images, a small table otherwise."""
        from deepfool.attacks.shared.showing import to_html

        return to_html(self)


def describe(found: Adversarial) -> str:
    """A result in a line.

    >>> describe(Adversarial.empty(torch.zeros(0, 3), p=2))
    '0 samples: none'
    """
    counts = ", ".join(f"{n} {s.name.lower()}" for s in Status if (n := int((found.status == s).sum())))
    norms = found.norm[found.fooled]
    whose = "" if len(norms) == len(found) else " among the fooled"
    what = f"median of {found.unit}s changed" if found.p == 0 else f"median l{found.p:g} norm"
    median = f", {what} {norms.median().item():.4g}{whose}" if len(norms) else ""
    return f"{len(found)} sample{'s' * (len(found) != 1)}: {counts or 'none'}{median}"
