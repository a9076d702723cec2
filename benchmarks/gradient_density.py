"""FC500 trained in other ways: why its rho_adv is further from the paper's in linf than in l2.

Near an affine boundary with normal w, the distance is |f| / ||w||_2 in l2 and |f| / ||w||_1 in linf. So the two norms
tell how dense the gradients are: ||w||_1 / ||w||_2 is at most sqrt(784) = 28, and 22.3 for Gaussian noise. More than
a third of the pixels are almost never lit: there the first layer keeps its initial weights, or what weight decay leaves
of them.

`benchmarks.what_moves_rho` runs this and puts it on its page.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import deepfool as df
from deepfool.models.zoo import ZOO
from deepfool.training.recipes import RECIPES
from deepfool.training.sgd import Recipe, test_error, to_unit, train

NAME = "fc500-mnist"
SELDOM = 0.01
"""A pixel is seldom lit if it is not 0 in at most this share of the training images."""


@dataclass(frozen=True)
class Variant:
    """One FC500, with what is changed."""

    label: str
    change: Callable[[Recipe], Recipe] = lambda recipe: recipe
    deviation: Callable[[int], float] | None = None
    """The standard deviation of a layer's initial weights, given its inputs; None for torch's own, sqrt(1 / 3n)."""
    centred: bool = False
    """Subtract the mean image, and measure after that."""
    cut: bool = False
    """Set the weights of seldom lit pixels to 0 after the training."""


def _without_decay(recipe: Recipe) -> Recipe:
    return replace(recipe, weight_decay=0.0)


def _gently(recipe: Recipe) -> Recipe:
    return replace(recipe, learning_rate=0.01)


def _he(inputs: int) -> float:
    return math.sqrt(2 / inputs)


FC500 = {
    "fc500-shipped": Variant("as shipped: torch's initial weights, weight decay 0.0005"),
    "fc500-decay-0": Variant("no weight decay", _without_decay),
    "fc500-small": Variant("initial weights of deviation 0.01, as in MatConvNet", deviation=lambda _: 0.01),
    "fc500-small-decay-0": Variant("deviation 0.01, no weight decay", _without_decay, deviation=lambda _: 0.01),
    "fc500-small-slow": Variant("deviation 0.01, a tenth of the learning rate", _gently, deviation=lambda _: 0.01),
    "fc500-he": Variant("initial weights of deviation sqrt(2 / n), He's", deviation=_he),
    "fc500-he-decay-0": Variant("He's, no weight decay", _without_decay, deviation=_he),
    "fc500-cut": Variant(
        "the same network, weights of seldom lit pixels set to 0", _without_decay, deviation=_he, cut=True
    ),
    "fc500-he-slow": Variant("He's, a tenth of the learning rate", _gently, deviation=_he),
    "fc500-centred": Variant("mean image subtracted", centred=True),
    "fc500-he-centred": Variant("mean image subtracted, He's, no weight decay", _without_decay, _he, centred=True),
}


@cache
def _read_mnist() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images and labels, test images and labels."""
    sets = [df.datasets.load("mnist", split=split) for split in ("train", "test")]
    (x, y), (held, labels) = ((to_unit(each.images()), each.labels) for each in sets)
    return x, y, held, labels


def build(variant: Variant) -> nn.Module:
    """FC500 before its training, always with the same seed."""
    network = ZOO[NAME].build(0)
    if variant.deviation is not None:
        generator = torch.Generator().manual_seed(0)
        for layer in network.modules():
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=variant.deviation(layer.in_features), generator=generator)
                nn.init.zeros_(layer.bias)
    return network


def measure_fc500(key: str, work: Path) -> dict[str, Any]:
    """Train one variant; its error, and rho_adv in both norms, on all test images."""
    variant = FC500[key]
    x, y, held, labels = _read_mnist()
    seldom = ((x > 0).float().mean(0) <= SELDOM).flatten()
    if variant.centred:
        x, held = x - x.mean(0), held - x.mean(0)
    if key == "fc500-shipped":
        network = df.models.load(NAME)
    else:
        recipe = variant.change(RECIPES[NAME])
        # What is cut is the network of the row above: its training is not repeated.
        file = work / f"{key.replace('cut', 'he-decay-0')}.pt"
        network = train(build(variant), x, y, recipe, checkpoint=file)
    network.eval().requires_grad_(False)
    if variant.cut:
        first = next(layer for layer in network.modules() if isinstance(layer, nn.Linear))
        first.weight[:, seldom] = 0
    found = {"error": test_error(network, held, labels), **measure_norms(network, held)}
    return {**found, "seldom": int(seldom.sum()), "images": len(held)}


def measure_norms(network: nn.Module, x: Tensor) -> dict[str, float]:
    """rho_adv in l2 and linf, FGSM's ratio of the two, and how dense the gradients are."""
    parts = x.split(500)
    found = [(df.deepfool(network, part), df.deepfool(network, part, p=math.inf)) for part in parts]
    return {
        **{key: mean_ratio(torch.cat([pair[i].norm for pair in found]), x, p) for i, (key, p) in enumerate(NORMS)},
        "fgsm": read_fgsm_ratio(x),
        "density": float(
            torch.cat([measure_density(network, part, pair[0]) for part, pair in zip(parts, found, strict=True)]).mean()
        ),
    }


NORMS = (("l2", 2.0), ("linf", math.inf))


def mean_ratio(norms: Tensor, x: Tensor, p: float) -> float:
    """rho_adv: the mean of ||r|| / ||x||.

    >>> mean_ratio(torch.tensor([1.0, 1.0]), torch.tensor([[3.0, 4.0], [0.0, 5.0]]), 2)
    0.20000000298023224
    """
    return float((norms / x.flatten(1).norm(p, dim=1)).mean())


def read_fgsm_ratio(x: Tensor) -> float:
    """FGSM's rho_adv in linf divided by its rho_adv in l2: with r = eps * sign it depends on the images alone.

    For one image this is ||x||_2 / (sqrt(d) ||x||_inf). No smallest perturbations have a lower ratio, since ||r||_2 is
    at most sqrt(d) ||r||_inf.

    >>> read_fgsm_ratio(torch.ones(3, 4)), read_fgsm_ratio(torch.eye(4))
    (1.0, 0.5)
    """
    step = torch.ones_like(x).flatten(1)
    return mean_ratio(step.norm(math.inf, dim=1), x, math.inf) / mean_ratio(step.norm(dim=1), x, 2)


def measure_density(network: nn.Module, x: Tensor, found: df.Adversarial) -> Tensor:
    """||w||_1 / ||w||_2 of each image, for the gradient w between its class and the one that DeepFool reached."""
    x = x.clone().requires_grad_()
    scores = network(x)
    rows = torch.arange(len(x))
    (w,) = torch.autograd.grad((scores[rows, found.adv_label] - scores[rows, found.label]).sum(), x)
    w = w.flatten(1)
    return w.norm(1, dim=1) / w.norm(dim=1)
