"""Samples of the data to choose from: by class, by number, the most fragile first where a run has measured them."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from PIL import Image

from deepfool.errors import InputError
from deepfool.live.exhibit import Exhibit
from deepfool.live.scenes import send_picture
from deepfool.reporting.images import to_pixels
from deepfool.reporting.naming import name_class
from deepfool.reporting.picture import as_array

MOST = 60
"""Samples in one answer."""
THUMB = 72
"""The side of a small picture, at most."""
SHOWN = 6
"""Features of a row that are listed."""

_reading = threading.Lock()


def list_samples(
    exhibit: Exhibit, *, label: int | None = None, start: int = 0, count: int = 24, fragile: bool = False
) -> dict[str, Any]:
    """Some samples with small pictures, and how many there are in all.

    >>> from deepfool.datasets import load
    >>> from deepfool.live.exhibit import open_exhibit
    >>> from deepfool.models.sources import resolve
    >>> exhibit = open_exhibit([resolve("lenet-mnist")], load("mnist-sample"))
    >>> found = list_samples(exhibit, label=3, count=2)
    >>> found["total"], [sample["name"] for sample in found["samples"]]
    (123, ['3', '3'])
    """
    data = exhibit.data
    if data is None:
        raise InputError("there is no data to take a sample of.", hint="start the page with --data.")
    if fragile and exhibit.rho is None:
        raise InputError("no run says which samples are fragile.", hint="start the page with --run.")
    order = list(exhibit.rho or ()) if fragile else range(len(data))
    labels = data.labels.tolist()
    matching = [i for i in order if label is None or labels[i] == label]
    chosen = matching[max(0, start) : max(0, start) + min(max(1, count), MOST)]
    with _reading:
        batch = list(data.batch(chosen)) if chosen else []
    return {
        "total": len(matching),
        "samples": [
            {
                "index": i,
                "label": labels[i],
                "name": name_class(data.classes, labels[i]) if labels[i] >= 0 else "",
                "rho": None if exhibit.rho is None else exhibit.rho.get(i),
                **_show(exhibit, as_array(x.numpy())),
            }
            for i, x in zip(chosen, batch, strict=True)
        ],
    }


def _show(exhibit: Exhibit, x: np.ndarray[Any, Any]) -> dict[str, Any]:
    if exhibit.kind != "picture":
        values = [round(float(value), 6) for value in x.ravel()[: exhibit.shape[0] if exhibit.kind == "row" else SHOWN]]
        return {"values": values}
    image = Image.fromarray(to_pixels(x))
    if max(image.size) > THUMB:
        image.thumbnail((THUMB, THUMB), Image.Resampling.LANCZOS)
    return {"picture": send_picture(image)}
