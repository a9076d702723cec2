"""Picture files as pixels: upright, RGB, and of the wanted side."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from deepfool.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".jp2"})
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM", "JPEG2000")
"""What these files hold, whatever they are called. Others are not tried: to read an EPS, Pillow starts Ghostscript."""
CROP = 0.875
"""The share of the resized image's short side that the centre crop keeps, as is usual for ImageNet (224 of 256)."""


@contextmanager
def open_picture(
    source: Path | IO[bytes], name: str, *, formats: tuple[str, ...] = FORMATS, hint: str = "mend or remove the file."
) -> Iterator[Image.Image]:
    """A picture file, open and decoded; what is no picture of these formats is named in the error.

    Every picture that this package reads comes through here.

    >>> import io
    >>> with open_picture(io.BytesIO(b"%!PS-Adobe-3.0 EPSF-3.0"), "cat.png"):
    ...     pass
    Traceback (most recent call last):
    ...
    deepfool.errors.DataError: cat.png cannot be read as an image: ...
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(source, formats=formats) as opened:
            opened.load()
            yield opened
    except FileNotFoundError as error:
        raise DataError(f"{name}: there is no such file.") from error
    except DataError:
        raise
    except UnidentifiedImageError as error:
        listed = ", ".join(formats)
        raise DataError(f"{name} cannot be read as an image: it is none of {listed}.", hint=hint) from error
    except Exception as error:  # Pillow's readers raise errors of all kinds on bytes that make no sense
        raise DataError(f"{name} cannot be read as an image: {error}", hint=hint) from error


def read_picture(source: Path | IO[bytes], name: str, *, size: int | None, grey: bool = False) -> Tensor:
    """A picture file as uint8 pixels: (3, h, w), or (1, h, w) if `grey`; a broken file is named in the error."""
    with open_picture(source, name) as opened:
        return to_pixels(fit(upright(opened, grey=grey), size))


def upright(image: Image.Image, *, grey: bool = False) -> Image.Image:
    """Turned as its EXIF says, transparency laid on white, 8 bits per channel, RGB (or grey).

    >>> from PIL import Image
    >>> upright(Image.new("LA", (1, 1), (0, 0))).getpixel((0, 0))
    (255, 255, 255)
    """
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(image)
    if image.mode == "F":
        raise ValueError("pixels in floating point have no known range")
    if image.mode.startswith("I"):  # 16 bits of grey: Pillow would clip them at 255
        image = Image.fromarray((np.asarray(image).astype(np.int64).clip(0, 65535) // 257).astype(np.uint8))
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, "white")
        image = Image.alpha_composite(white, layer)
    return image.convert("L" if grey else "RGB")


def fit(image: Image.Image, size: int | None) -> Image.Image:
    """The centre square of side `size`, after the short side is brought to size / 0.875 (bicubic); None: unchanged.

    >>> from PIL import Image
    >>> fit(Image.new("RGB", (640, 480)), 224).size
    (224, 224)
    """
    from PIL import Image

    if size is None:
        return image
    width, height = image.size
    short = max(round(size / CROP), size)
    if min(width, height) != short:
        # The long side is cut to a whole pixel, as torchvision does, so that figures can be compared.
        width, height = (
            (short, int(short * height / width)) if width <= height else (int(short * width / height), short)
        )
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return image.crop((left, top, left + size, top + size))


def to_pixels(image: Image.Image) -> Tensor:
    """(c, h, w) in uint8.

    >>> from PIL import Image
    >>> to_pixels(Image.new("RGB", (4, 2), (1, 2, 3)))[:, 0, 0]
    tensor([1, 2, 3], dtype=torch.uint8)
    """
    pixels = torch.from_numpy(np.array(image))
    return pixels.unsqueeze(0) if pixels.ndim == 2 else pixels.permute(2, 0, 1).contiguous()
