"""Samples and perturbations as pictures."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from PIL import Image

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Array = np.ndarray[Any, Any]

SHARP = 96
"""Up to this side, pictures are kept exactly (PNG); larger ones are photographs, for which JPEG is made."""

CUT = 0.005
"""The share of a perturbation that may go beyond the colours."""

_DARKER, _LIGHTER = np.array([0, 114, 178]), np.array([213, 94, 0])
"""Blue and vermilion: told apart by colour-blind eyes too (Okabe and Ito)."""


def is_picture(shape: tuple[int, ...]) -> bool:
    """Whether a sample can be shown: one or three channels of pixels.

    >>> is_picture((1, 28, 28)), is_picture((3, 224, 224)), is_picture((4,)), is_picture((8, 5, 5))
    (True, True, False, False)
    """
    return len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) >= 2


def to_pixels(x: Array) -> Pixels:
    """(c, h, w) in [0, 1] as (h, w) or (h, w, 3) bytes, cut to the range and rounded.

    >>> to_pixels(np.array([[[0.0, 0.5], [1.0, 7.0]]])).tolist()
    [[0, 128], [255, 255]]
    """
    levels: Pixels = np.rint(np.clip(x, 0, 1) * 255).astype(np.uint8)
    return levels[0] if len(levels) == 1 else np.ascontiguousarray(levels.transpose(1, 2, 0))


def show_perturbation(r: Array) -> tuple[Pixels, float]:
    """A perturbation stretched until its largest changes are as far as colours go, and the factor.

    The largest are the top half percent, or a few pixels would leave all others grey. With three channels, grey is
    no change. With one, white is no change, vermilion lighter, blue darker.

    >>> pixels, factor = show_perturbation(np.array([[[0.0, 0.25]]]))
    >>> pixels.tolist(), factor
    ([[[255, 255, 255], [213, 94, 0]]], 4.0)
    """
    changes = np.abs(r[r != 0])
    factor = 1 / float(np.quantile(changes, 1 - CUT)) if len(changes) else 0.0
    scaled = np.clip(np.asarray(r, np.float64) * factor, -1, 1)
    if len(r) == 3:
        return to_pixels(0.5 + 0.5 * scaled), factor
    amount = np.abs(scaled[0])[..., None]
    ends = np.where(scaled[0][..., None] > 0, _LIGHTER, _DARKER)
    mixed: Pixels = np.rint(255 * (1 - amount) + ends * amount).astype(np.uint8)
    return mixed, factor


def to_data_uri(pixels: Pixels) -> str:
    """A picture as text that an HTML page can hold.

    >>> to_data_uri(np.zeros((2, 2), np.uint8))[:22]
    'data:image/png;base64,'
    """
    image, stream = Image.fromarray(pixels), io.BytesIO()
    if max(image.size) <= SHARP:
        if image.mode == "RGB":  # few colours take fewer bytes with a palette, and lose nothing by it
            image = _with_palette(image)
        image.save(stream, "PNG", optimize=True)
        kind = "png"
    else:
        image.save(stream, "JPEG", quality=85)
        kind = "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode()}"


def _with_palette(image: Image.Image) -> Image.Image:
    colours = image.getcolors(256)
    if colours is None:
        return image
    found = image.quantize(len(colours), dither=Image.Dither.NONE)
    return found if np.array_equal(np.asarray(found.convert("RGB")), np.asarray(image)) else image
