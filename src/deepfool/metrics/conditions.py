"""A condition, and whether a run meets it: met, not met, or not known. What is not known has not passed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

MET, NOT_MET, NOT_KNOWN = "met", "not met", "not known"


@dataclass(frozen=True)
class Verdict:
    """One condition, and whether the run meets it.

    >>> Verdict("min-rho", False, "3 samples have no answer", required="at least 0.1", known=False).outcome
    'not known'
    """

    name: str
    passed: bool
    why: str
    """What was found."""
    required: str = ""
    """The condition in words."""
    known: bool = True
    """False if the run does not tell."""

    @property
    def outcome(self) -> str:
        """met, not met or not known."""
        return MET if self.passed else NOT_MET if self.known else NOT_KNOWN

    @property
    def sentence(self) -> str:
        """What was found, and what was required."""
        return f"{self.why}; required: {self.required}" if self.required else self.why

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "name": self.name, "outcome": self.outcome, "passed": self.passed, "why": self.why,
            "required": self.required,
        }  # fmt: skip


class Finding(NamedTuple):
    """What looking for one condition gave."""

    met: bool | None
    """None if the run does not tell."""
    why: str


def count_words(count: int, word: str) -> str:
    """A count and its noun.

    >>> count_words(1, "sample"), count_words(3, "sample")
    ('1 sample', '3 samples')
    """
    return f"{count} {word}{'' if count == 1 else 's'}"
