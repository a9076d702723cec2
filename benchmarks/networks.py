"""The networks of the comparison, and the images that every attack on them gets.

Other people's networks come from a folder: a file `networks.py` in it has `NAMES` and `load(name)`, which gives a
module on inputs in [0, 1] and the name of the data set that it belongs to.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import deepfool as df
from deepfool.datasets import Data

UNDEFENDED = ("fc500-mnist", "lenet-mnist", "lenet-cifar10", "nin-cifar10")
HARDENED = ("conv-mnist-linf", "conv-mnist-l2", "conv-mnist-certified", "mlp-mnist-small", "kwta-mnist")
MANY_CLASSES = "efficientnet-lite0"
"""1000 classes, on images of one's own: only if it is asked for."""


def names(folder: Path | None) -> tuple[str, ...]:
    """What is measured if no network is named."""
    return UNDEFENDED + HARDENED + (tuple(_read(folder).NAMES) if folder else ())


def load(name: str, images: int, folder: Path | None = None, pictures: str | None = None) -> tuple[nn.Module, Tensor]:
    """A network and the first images that it classifies correctly (of 1000 classes: the first images)."""
    if name == MANY_CLASSES:
        model, data = df.models.load(name), df.datasets.load(f"folder:{pictures}", size=224)
        return model.requires_grad_(False), data.batch(torch.arange(min(images, len(data))))
    if folder and name in _read(folder).NAMES:
        model, spec = _read(folder).load(name)
    else:
        model, spec = df.models.load(name), name.split("-")[1]
    return model.eval().requires_grad_(False), _pick_correct(model, df.datasets.load(spec), images)


@torch.no_grad()
def _pick_correct(model: nn.Module, data: Data, images: int) -> Tensor:
    found: list[Tensor] = []
    for at in torch.arange(len(data)).split(200):
        x = data.batch(at)
        found.append(x[model(x).argmax(1) == data.labels[at]])
        if sum(map(len, found)) >= images:
            break
    return torch.cat(found)[:images]


def _read(folder: Path) -> Any:
    spec = importlib.util.spec_from_file_location("networks_of_others", folder / "networks.py")
    if spec is None or spec.loader is None:
        raise SystemExit(f"no networks.py in {folder}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
