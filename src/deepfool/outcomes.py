"""How a search or a proof ended, sample by sample. Without torch, so that what was measured can be read without it."""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """How the search for one sample ended. Only `FOOLED` rows carry a perturbation that does what it should."""

    FOOLED = 0
    """A fresh forward pass at the returned point gave another label (or the target)."""
    STUCK = 1
    """There was no usable direction to go: a zero or non-finite gradient or score, or no room inside the bounds."""
    EXHAUSTED = 2
    """The iterations (or the budget) ran out."""
    MISCLASSIFIED = 3
    """True labels were given and the model was already wrong: nothing was searched for."""


class Evidence(IntEnum):
    """What a perturbation was found by, and so how far its norm can be trusted; of a fooled row."""

    GRADIENTS = 0
    """The model's own gradients."""
    REPAIRED = 1
    """Gradients past an operation that hides them (rounding, a saturated last layer): `reason` names it."""
    SCORES = 2
    """The scores alone, by random search: the smallest perturbation may be smaller."""
    DECISIONS = 3
    """The predicted labels alone: the smallest perturbation may be much smaller."""


class Proof(IntEnum):
    """What is known about one sample."""

    EXACT = 0
    """`lower` and `upper` meet within 0.1 %: this is the smallest perturbation."""
    CERTIFIED = 1
    """No perturbation smaller than `lower` changes the decision."""
    NONE = 2
    """Nothing could be proved; `reason` says why. `lower` is 0."""
