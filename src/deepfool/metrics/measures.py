"""What the sizes of a run are, in words: norms of the perturbation, or for p = 0 how many features or pixels change."""

from __future__ import annotations

from dataclasses import dataclass

from deepfool.runs.records import Run


@dataclass(frozen=True)
class Measure:
    """What is measured. `unit` is "feature" or "pixel" where things are counted (p = 0), and empty for norms."""

    unit: str

    @property
    def ratio(self) -> str:
        """What rho_adv is the mean of.

        >>> Measure("").ratio, Measure("pixel").ratio
        ('‖r‖ / ‖x‖', 'share of pixels changed')
        """
        return f"share of {self.unit}s changed" if self.unit else "‖r‖ / ‖x‖"

    @property
    def whole(self) -> str:
        """What a size is a share of.

        >>> Measure("").whole, Measure("feature").whole
        ('of the size of the input', 'of the features')
        """
        return f"of the {self.unit}s" if self.unit else "of the size of the input"

    def name_size(self, norm: str) -> str:
        """A size by name; `norm` is the name of the norm.

        >>> Measure("").name_size("ℓ2"), Measure("pixel").name_size("ℓ0")
        ('ℓ2 norm of the perturbation', 'number of pixels changed')
        """
        return f"number of {self.unit}s changed" if self.unit else f"{norm} norm of the perturbation"

    def tell_change(self, share: str) -> str:
        """A change of this share, in a sentence.

        >>> Measure("").tell_change("3 %"), Measure("pixel").tell_change("3 %")
        ('a perturbation of 3 % of the size of the input', 'a change of 3 % of the pixels')
        """
        return f"a {'change' if self.unit else 'perturbation'} of {share} {self.whole}"


def describe_measure(run: Run) -> Measure:
    """What the sizes of a run are."""
    return Measure(run.unit)
