"""Image files as pixels: upright, RGB, resized and cropped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypedDict

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Unpack

from deepfool.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".jp2"})
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM", "JPEG2000")
"""The formats to try, whatever the suffix. No others: to read an EPS, for example, Pillow starts Ghostscript."""
CROP = 0.875
"""The share of the resized image's short side that the centre crop keeps, as usual for ImageNet (224 of 256)."""


class Limits(TypedDict, total=False):
    """What an image file may be, where it comes from somebody else."""

    formats: tuple[str, ...]
    most_pixels: int | None
    hint: str


@contextmanager
def open_picture(
    source: Path | IO[bytes],
    name: str,
    *,
    formats: tuple[str, ...] = FORMATS,
    most_pixels: int | None = None,
    hint: str = "repair or remove the file.",
) -> Iterator[Image.Image]:
    """Open and decode an image file of one of these formats; the error names a file that is not.

    An image of more than `most_pixels` is refused by what its header says, before it is decoded. Every image that this
    package reads comes through here.

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
            if most_pixels is not None and opened.width * opened.height > most_pixels:
                raise DataError(
                    f"{name} is too large: {opened.width} x {opened.height} pixels, at most "
                    f"{most_pixels / 1e6:.3g} million are read.",
                    hint="make it smaller first.",
                )
            opened.load()
            yield opened
    except FileNotFoundError as error:
        raise DataError(f"{name}: there is no such file.") from error
    except DataError:
        raise
    except UnidentifiedImageError as error:
        listed = ", ".join(formats)
        raise DataError(f"{name} cannot be read as an image: it is none of {listed}.", hint=hint) from error
    except Exception as error:  # Pillow's readers raise many kinds of errors on broken files
        raise DataError(f"{name} cannot be read as an image: {error}", hint=hint) from error


def read_picture(
    source: Path | IO[bytes], name: str, *, size: int | None, grey: bool = False, **limits: Unpack[Limits]
) -> Tensor:
    """An image file as uint8 pixels: (3, h, w), or (1, h, w) if `grey`; the error names a broken file."""
    with open_picture(source, name, **limits) as opened:
        return to_pixels(fit(upright(opened, grey=grey), size))


def upright(image: Image.Image, *, grey: bool = False) -> Image.Image:
    """Rotate as the EXIF data says, put transparency on white, and convert to 8-bit RGB (or grey).

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
    """Resize the short side to size / 0.875 (bicubic) and crop the centre square of side `size`; None: unchanged.

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
        # The long side is rounded down to a whole pixel, as in torchvision, so that results can be compared.
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
