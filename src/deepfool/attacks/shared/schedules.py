"""How a setting moves over the steps of a search."""

from __future__ import annotations

import math


def cosine(first: float, last: float, i: int, steps: int) -> float:
    """From `first` at i = 0 down half a wave of the cosine, towards `last` at i = steps.

    >>> cosine(1.0, 0.0, 0, 4), round(cosine(1.0, 0.0, 2, 4), 6), cosine(1.0, 0.0, 4, 4)
    (1.0, 0.5, 0.0)
    """
    return last + (first - last) * (1 + math.cos(math.pi * i / steps)) / 2
