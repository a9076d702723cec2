"""Samples and perturbations as pixels, at the scale that the pictures of one image use."""

from __future__ import annotations

from deepfool.display.pixels import Array, Pixels, colour, lay_out, stretch, to_levels


def to_pixels(x: Array) -> Pixels:
    """(c, h, w) in [0, 1] as (h, w) or (h, w, 3) bytes, clipped and rounded.

    >>> import numpy as np
    >>> to_pixels(np.array([[[0.0, 0.5], [1.0, 7.0]]])).tolist()
    [[0, 128], [255, 255]]
    """
    return lay_out(to_levels(x))


def show_perturbation(r: Array) -> tuple[Pixels, float]:
    """A perturbation (c, h, w) in colours, stretched until its largest changes fill the range, and the factor.

    >>> import numpy as np
    >>> pixels, factor = show_perturbation(np.array([[[0.0, 0.25]]]))
    >>> pixels.tolist(), factor
    ([[[255, 255, 255], [213, 94, 0]]], 4.0)
    """
    stretched, factor = stretch(r)
    return colour(stretched), factor
