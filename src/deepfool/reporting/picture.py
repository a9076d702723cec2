"""One image as in Figure 1 of the paper: the original, the perturbed image, and the magnified perturbation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from deepfool.display.pixels import Array, Pixels, colour, stretch
from deepfool.reporting.images import to_pixels
from deepfool.reporting.wording import format_number

SIDE = 320
"""The side of a panel in pixels. Small images are enlarged by a whole factor."""
GAP = 16
LINE = 24


@dataclass(frozen=True)
class Panels:
    """One row: an image and what an attack did to it."""

    attack: str
    x: Array
    """(c, h, w) in [0, 1]."""
    r: Array
    label: str
    adv_label: str
    size: str
    """The size of the perturbation in words."""


def draw_panels(rows: Sequence[Panels]) -> Image.Image:
    """The rows one below another, each with three captioned panels. All perturbations are magnified alike.

    >>> x, r = np.zeros((1, 28, 28)), np.full((1, 28, 28), 0.1)
    >>> draw_panels([Panels("deepfool", x, r, "7", "9", "16.8 %")]).size
    (1024, 412)
    """
    width, height = 4 * GAP + 3 * SIDE, SIDE + 2 * LINE + 12
    sheet = Image.new("RGB", (width, len(rows) * (height + GAP) + GAP), "white")
    factor = choose_factor([row.r for row in rows])
    for k, row in enumerate(rows):
        _draw_row(sheet, row, GAP + k * (height + GAP), factor)
    return sheet


def choose_factor(perturbations: Sequence[Array]) -> float:
    """How much to magnify: until the largest changes of the largest perturbation fill the range.

    >>> choose_factor([np.full((1, 2, 2), 0.1), np.full((1, 2, 2), 0.25), np.zeros((1, 2, 2))])
    4.0
    """
    return min((factor for _, factor in map(stretch, perturbations) if factor), default=0.0)


def _draw_row(sheet: Image.Image, row: Panels, top: int, factor: float) -> None:
    magnified = colour(np.clip(row.r * factor, -1, 1))
    panels = [
        (to_pixels(row.x), row.label, "original"),
        (to_pixels(row.x + row.r), row.adv_label, f"perturbed ({row.attack})"),
        (magnified, f"perturbation, {format_number(factor, 2)} times", row.size),
    ]
    pen = ImageDraw.Draw(sheet)
    for i, (pixels, name, below) in enumerate(panels):
        left = GAP + i * (SIDE + GAP)
        shown = _enlarge(pixels)
        sheet.paste(shown, (left + (SIDE - shown.width) // 2, top + (SIDE - shown.height) // 2))
        pen.rectangle((left - 1, top - 1, left + SIDE, top + SIDE), outline="#b0b7bf")
        for text, size, ink, down in ((name, 19, "#1b1f24", 8), (below, 15, "#57606a", 8 + LINE + 4)):
            font = _find_font(size)
            short = _shorten(pen, text, font)
            middle = left + (SIDE - pen.textlength(short, font=font)) / 2
            pen.text((middle, top + SIDE + down), short, fill=ink, font=font)


def _enlarge(pixels: Pixels) -> Image.Image:
    """To the size of a panel: small images by whole pixels, so that each can be seen; large ones smoothly."""
    image = Image.fromarray(pixels).convert("RGB")
    largest = max(image.size)
    if largest * 2 <= SIDE:
        times = SIDE // largest
        return image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)
    size = (max(1, round(image.width * SIDE / largest)), max(1, round(image.height * SIDE / largest)))
    return image.resize(size, Image.Resampling.LANCZOS)


def _find_font(size: int) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    """A font with many alphabets if the system has one, otherwise Pillow's own, which is Latin only."""
    try:
        return ImageFont.truetype("DejaVuSans.ttf", round(size * 0.9))
    except OSError:
        return ImageFont.load_default(size)


def _shorten(pen: ImageDraw.ImageDraw, text: str, font: ImageFont.ImageFont | ImageFont.FreeTypeFont) -> str:
    if pen.textlength(text, font=font) <= SIDE:
        return text
    while text and pen.textlength(f"{text}…", font=font) > SIDE:
        text = text[:-1]
    return f"{text}…"


def as_array(x: Array) -> Array:
    """A tensor or an array as float64.

    >>> as_array(np.zeros((1, 2, 2), np.float32)).dtype
    dtype('float64')
    """
    return np.asarray(x, np.float64)
