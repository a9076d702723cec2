"""A drawing as MNIST would have it: scaled to 20 of 28 pixels, and centred by its centre of mass.

A network that was trained on MNIST has only seen digits of that size and in that place. The proportions are kept.
"""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from deepfool.errors import InputError

INNER = 20 / 28
"""The share of the side that the drawing fills."""
INK = 16
"""The level from which a pixel counts as drawn: smoothing at the edges of a stroke leaves lighter ones."""


def fit_drawing(levels: np.ndarray[tuple[int, int], np.dtype[np.uint8]], side: int) -> Tensor:
    """A drawing, white on black, as (1, side, side) bytes.

    >>> pad = np.zeros((140, 140), np.uint8)
    >>> pad[10:80, 30:40] = 255
    >>> digit = fit_drawing(pad, 28)
    >>> rows, columns = digit[0].nonzero().T
    >>> int(rows.max() - rows.min()) + 1, bool((rows.float().mean() - 13.5).abs() < 1)
    (20, True)
    """
    rows, columns = np.nonzero(levels >= INK)
    if not len(rows):
        raise InputError("The drawing is empty.", hint="draw something first.")
    image = Image.fromarray(levels[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1])
    inner = max(1, round(INNER * side))
    scale = inner / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    small = np.asarray(image.resize(size, Image.Resampling.BOX if scale < 1 else Image.Resampling.BICUBIC), np.float64)
    if small.max() > 0:
        small = small * (255 / small.max())
    out = np.zeros((side, side))
    top, left = (_place(small.sum(1 - axis), side) for axis in (0, 1))
    out[top : top + small.shape[0], left : left + small.shape[1]] = small
    return torch.from_numpy(out.round().astype(np.uint8)).unsqueeze(0)


def _place(weights: np.ndarray[tuple[int], np.dtype[np.float64]], side: int) -> int:
    """Where to begin, so that the centre of mass is in the middle and nothing is cut off."""
    middle = float((weights * np.arange(len(weights))).sum() / max(weights.sum(), 1e-9))
    return min(max(round((side - 1) / 2 - middle), 0), side - len(weights))
