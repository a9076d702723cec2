"""Samples and perturbations as pictures."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from PIL import Image

Array = np.ndarray[Any, Any]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Pixels = np.ndarray[Any, np.dtype[np.uint8]]

CUT = 0.005
"""The share of a perturbation's values that may exceed the range after stretching."""
SHARP = 96
"""Images up to this side are kept exactly (PNG). Larger ones are photographs, and become JPEG."""

_DARKER, _LIGHTER = np.array([0, 114, 178]), np.array([213, 94, 0])
"""Blue and vermilion, which colour-blind readers can tell apart (Okabe and Ito)."""


def is_image(shape: tuple[int, ...]) -> bool:
    """Whether a sample can be shown: one or three channels of pixels.

    >>> is_image((1, 28, 28)), is_image((3, 224, 224)), is_image((4,)), is_image((8, 5, 5))
    (True, True, False, False)
    """
    return len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) >= 2


def to_levels(x: Array) -> Pixels:
    """Values in [0, 1] as 8-bit levels, clipped and rounded.

    >>> to_levels(np.array([0.0, 0.5, 1.0, 7.0])).tolist()
    [0, 128, 255, 255]
    """
    levels: Pixels = np.rint(np.clip(x, 0, 1) * 255).astype(np.uint8)
    return levels


def lay_out(levels: Pixels) -> Pixels:
    """(c, h, w) as (h, w) or (h, w, 3), the layout of image files.

    >>> lay_out(np.zeros((3, 2, 5), np.uint8)).shape
    (2, 5, 3)
    """
    return levels[0] if len(levels) == 1 else np.ascontiguousarray(levels.transpose(1, 2, 0))


def stretch(r: Array) -> tuple[Floats, float]:
    """A perturbation scaled until its largest values reach -1 or 1, and the factor.

    "Largest" is the top half percent: otherwise a few pixels would leave all others grey.

    >>> stretch(np.array([[[0.0, -0.25]]]))
    (array([[[ 0., -1.]]]), 4.0)
    """
    changes = np.abs(r[r != 0])
    factor = 1 / float(np.quantile(changes, 1 - CUT)) if len(changes) else 0.0
    return np.clip(np.asarray(r, np.float64) * factor, -1, 1), factor


def colour(stretched: Array) -> Pixels:
    """Changes in [-1, 1] (c, h, w) as colours.

    With three channels, grey is no change. With one, white is no change, vermilion lighter, blue darker.

    >>> colour(np.array([[[0.0, -1.0]]])).tolist()
    [[[255, 255, 255], [0, 114, 178]]]
    """
    if len(stretched) == 3:
        return lay_out(to_levels(0.5 + 0.5 * stretched))
    amount = np.abs(stretched[0])[..., None]
    ends = np.where(stretched[0][..., None] > 0, _LIGHTER, _DARKER)
    mixed: Pixels = np.rint(255 * (1 - amount) + ends * amount).astype(np.uint8)
    return mixed


def to_data_uri(pixels: Pixels) -> str:
    """An image as a data URI, which an HTML page can hold.

    >>> to_data_uri(np.zeros((2, 2), np.uint8))[:22]
    'data:image/png;base64,'
    """
    image, stream = Image.fromarray(pixels), io.BytesIO()
    if max(image.size) <= SHARP:
        if image.mode == "RGB":  # with few colours, a palette takes fewer bytes and loses nothing
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
