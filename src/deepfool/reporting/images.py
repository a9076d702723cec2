"""Samples and perturbations as images."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from PIL import Image

from deepfool.runs.gallery import Array, stretch, to_levels

Pixels = np.ndarray[Any, np.dtype[np.uint8]]

SHARP = 96
"""Images up to this side are kept exactly (PNG). Larger ones are photographs, and become JPEG."""

_DARKER, _LIGHTER = np.array([0, 114, 178]), np.array([213, 94, 0])
"""Blue and vermilion, which colour-blind readers can tell apart (Okabe and Ito)."""


def to_pixels(x: Array) -> Pixels:
    """(c, h, w) in [0, 1] as (h, w) or (h, w, 3) bytes, clipped and rounded.

    >>> to_pixels(np.array([[[0.0, 0.5], [1.0, 7.0]]])).tolist()
    [[0, 128], [255, 255]]
    """
    return lay_out(to_levels(x))


def lay_out(levels: Pixels) -> Pixels:
    """(c, h, w) as (h, w) or (h, w, 3), the layout of image files.

    >>> lay_out(np.zeros((3, 2, 5), np.uint8)).shape
    (2, 5, 3)
    """
    return levels[0] if len(levels) == 1 else np.ascontiguousarray(levels.transpose(1, 2, 0))


def show_perturbation(r: Array) -> tuple[Pixels, float]:
    """A perturbation (c, h, w) in colours, stretched until its largest changes fill the range, and the factor.

    >>> pixels, factor = show_perturbation(np.array([[[0.0, 0.25]]]))
    >>> pixels.tolist(), factor
    ([[[255, 255, 255], [213, 94, 0]]], 4.0)
    """
    stretched, factor = stretch(r)
    return colour(stretched), factor


def colour(stretched: Array) -> Pixels:
    """Changes in [-1, 1] (c, h, w) as colours.

    With three channels, grey is no change. With one, white is no change, vermilion lighter, blue darker.

    >>> colour(np.array([[[0.0, -1.0]]])).tolist()
    [[[255, 255, 255], [0, 114, 178]]]
    """
    if len(stretched) == 3:
        return to_pixels(0.5 + 0.5 * stretched)
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
