"""What was seen of the scores when a run began (`deepfool.runs.consistency`), as warnings for the reader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def list_cautions(facts: Mapping[str, Any]) -> list[str]:
    """The result of `look_twice` as warnings for the reader, if there is something to warn of.

    >>> list_cautions({"repeatable": True, "independent": False, "difference": 0.5})[0][:50]
    'the scores of a sample depend on the others in its'
    """
    size = facts.get("difference")
    much = f" (by {size:.2g} of their size)" if isinstance(size, float) and size > 0 else ""
    if facts.get("repeatable") is False:
        return [
            f"the model gave other scores for the same inputs when it was called again{much}: it is random, and so "
            f"are the distances."
        ]
    if facts.get("independent") is False:
        return [
            f"the scores of a sample depend on the others in its batch{much}: so do the distances. Normalisation with "
            f"batch statistics does this."
        ]
    return []
