"""What a notebook shows of a result: pictures where the inputs are images, a small table otherwise."""

from __future__ import annotations

import numpy as np
from markupsafe import Markup
from PIL import Image

from deepfool.attacks.shared.adversarial import Adversarial, Status, describe
from deepfool.display.pixels import Array, Pixels, colour, is_image, lay_out, stretch, to_data_uri, to_levels
from deepfool.display.tables import BAD, DOUBTFUL, box, make_table, mark, paragraph

MOST_PICTURES, MOST_ROWS = 6, 10
"""How many samples are shown; a line says how many there are."""
SIDE, LARGEST = 96, 256
"""Pictures are shown at least this wide, and reduced if they are larger than the second, in pixels."""


def to_html(found: Adversarial) -> str:
    """The result as HTML.

    >>> import torch
    >>> from deepfool import deepfool
    >>> html = to_html(deepfool(torch.nn.Identity(), torch.tensor([[3.0, 1.0]])))
    >>> "1 fooled" in html, "0 → 1" in html
    (True, True)
    """
    drawn = is_image(tuple(found.x.shape[1:]))
    shown = min(len(found), MOST_PICTURES if drawn else MOST_ROWS)
    parts: list[str | Markup] = [paragraph(describe(found), strong=True)]
    if shown:
        parts.append(_draw_pictures(found, shown) if drawn else _list_rows(found, shown))
    if shown < len(found):
        parts.append(paragraph(f"The first {shown} of {len(found)} samples.", faint=True))
    return box(*parts)


def _list_rows(found: Adversarial, shown: int) -> Markup:
    rows = [[str(i), *_tell(found, i)] for i in range(shown)]
    return make_table(["sample", "label", _name_norm(found), ""], rows, right=(0, 2))


def _draw_pictures(found: Adversarial, shown: int) -> Markup:
    x, r = (part[:shown].detach().cpu().double().numpy() for part in (found.x, found.r))
    before = x - r
    inside = bool((before > -1e-4).all() and (before < 1 + 1e-4).all())  # x - r is x_0 but for rounding
    rows = []
    for i in range(shown):
        fooled = int(found.status[i]) == Status.FOOLED
        # Inputs in another range, such as normalised ones, are shown from their own lowest to their highest value.
        low, high = (0.0, 1.0) if inside else (float(before[i].min()), float(before[i].max()))
        cells: list[str | Markup] = [_show_image(before[i], low, high), "", "", ""]
        if fooled:
            stretched, factor = stretch(r[i])
            cells[1:] = [_show(colour(stretched), "r"), f"{factor:.3g}", _show_image(x[i], low, high)]
        rows.append([str(i), *cells, *_tell(found, i)])
    head = ["sample", "x", "r", "scaled by", "x + r", "label", _name_norm(found), ""]
    note = paragraph("Each picture is shown from its lowest to its highest value.", faint=True) if not inside else ""
    return Markup("{}{}").format(make_table(head, rows, right=(0, 3, 6)), note)


def _show_image(x: Array, low: float, high: float) -> Markup:
    return _show(lay_out(to_levels((x - low) / (high - low if high > low else 1.0))), "x")


def _show(pixels: Pixels, words: str) -> Markup:
    image = Image.fromarray(pixels)
    image.thumbnail((LARGEST, LARGEST))
    pixels = np.asarray(image)
    width = max(SIDE, min(pixels.shape[1], LARGEST // 2))
    sharp = "image-rendering:pixelated;" if pixels.shape[1] < width else ""
    return Markup('<img src="{}" alt="{}" width="{}" style="{}max-width:none;display:inline-block">').format(
        to_data_uri(pixels), words, width, sharp
    )


def _tell(found: Adversarial, i: int) -> list[str | Markup]:
    """The labels, the norm, and what there is to say about one sample."""
    status, label, reason = Status(int(found.status[i])), int(found.label[i]), found.reason[i]
    if status == Status.FOOLED:
        remark: str | Markup = mark(reason, DOUBTFUL) if reason else ""
        return [f"{label} → {int(found.adv_label[i])}", f"{found.norm[i].item():.4g}", remark]
    said = Markup("{} {}").format(mark(status.name.lower(), BAD), reason)
    return [str(label), "0" if status == Status.MISCLASSIFIED else "not known", said]


def _name_norm(found: Adversarial) -> str:
    return f"l{found.p:g} norm"
