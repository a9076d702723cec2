"""How much is measured: the same experiments in three sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from deepfool.errors import InputError


@dataclass(frozen=True)
class Sizes:
    """How many test samples of a network each measurement uses; always the first ones, so that methods share them.

    None means all.
    """

    tested: int | None
    """For the test error: one forward pass per sample."""
    deepfool: int | None
    pixels: int | None
    """The same in [0, 1], for networks that normalise their input."""
    fgsm: int | None
    lbfgs: int
    """0 skips L-BFGS, as the paper does for ImageNet."""
    thorough: int
    """L-BFGS with three target classes and a fine search for the penalty."""
    timed: int
    """Attacked one at a time, for the time per sample."""
    train: int | None = 0
    """Training images to perturb and fine-tune on; 0 skips fine-tuning."""
    judged: int = 0
    """Test images for rho_adv after each epoch."""
    retested: int = 0
    """Test images for the test error after each epoch."""
    seeds: int | None = None
    """Use only this many of the scale's seeds; None for all."""
    batch: int | None = None
    """Images per fine-tuning step; None for the recipe's 128, which gives too few steps if there are few images."""


@dataclass(frozen=True)
class Scale:
    """One size of all experiments."""

    name: str
    about: str
    sizes: Mapping[str, Sizes]
    seeds: tuple[int, ...]
    """Seeds of the fine-tuning: each is a separate training on the same perturbed images."""
    epochs: int
    data: Mapping[str, str] = field(default_factory=dict)
    """Replacements for data sets (the samples in the package); empty to use the data sets themselves."""
    lbfgs_knobs: Mapping[str, int] = field(default_factory=dict)
    magnified: tuple[str, ...] = ("lenet-mnist", "fc500-mnist")
    """The networks of Figure 7; the paper does not say which it used, but discusses the MNIST networks next to it."""

    @property
    def is_measurement(self) -> bool:
        """Whether its numbers can be compared with the paper's."""
        return self.name != "smoke"


_IMAGENET = Sizes(tested=100, deepfool=20, pixels=20, fgsm=40, lbfgs=0, thorough=0, timed=2)

SMOKE = Scale(
    name="smoke",
    about="a few of the images in the package, to check that everything runs",
    sizes={
        "lenet-mnist": Sizes(100, 8, 0, 20, 1, 0, 1, train=16, judged=4, retested=20),
        "fc500-mnist": Sizes(100, 16, 0, 40, 2, 1, 2, train=64, judged=8, retested=50),
        "nin-cifar10": Sizes(4, 1, 1, 4, 0, 0, 1),
        "lenet-cifar10": Sizes(20, 4, 2, 10, 1, 0, 1, train=8, judged=2, retested=10),
        "caffenet": replace(_IMAGENET, tested=1, deepfool=1, pixels=1, fgsm=1, timed=1),
        "googlenet": replace(_IMAGENET, tested=1, deepfool=1, pixels=1, fgsm=1, timed=1),
        "efficientnet-lite0": replace(_IMAGENET, tested=1, deepfool=1, pixels=1, fgsm=1, timed=1),
    },
    seeds=(0, 1),
    epochs=1,
    data={"mnist": "mnist-sample", "cifar10": "cifar10-sample"},
    lbfgs_knobs={"max_iter": 10, "brackets": 6},
)

DEFAULT = Scale(
    name="default",
    about="the first images of the real test sets, as many as fit into tens of minutes on two cores",
    sizes={
        "lenet-mnist": Sizes(None, 5000, 0, 3000, 50, 15, 20, train=6000, judged=300, retested=5000),
        "fc500-mnist": Sizes(None, None, 0, None, 100, 30, 20, train=20_000, judged=1000, retested=10_000),
        "nin-cifar10": Sizes(None, 400, 150, 500, 20, 3, 5, train=400, judged=40, retested=400, seeds=2, batch=8),
        "lenet-cifar10": Sizes(None, 2000, 1000, 2000, 50, 12, 20, train=4000, judged=150, retested=2000),
        "caffenet": _IMAGENET,
        "googlenet": _IMAGENET,
        "efficientnet-lite0": _IMAGENET,
    },
    seeds=(0, 1, 2),
    epochs=5,
)

_ALL_IMAGENET = Sizes(None, None, None, 1000, 0, 0, 20)

FULL = Scale(
    name="full",
    about="the full test sets, and the whole training sets for fine-tuning (NIN: 2,000 and 10,000 images)",
    sizes={
        "lenet-mnist": Sizes(None, None, None, None, 200, 50, 100, train=None, judged=1000, retested=10_000),
        "fc500-mnist": Sizes(None, None, None, None, 200, 50, 100, train=None, judged=1000, retested=10_000),
        "nin-cifar10": Sizes(None, 2000, 500, 2000, 50, 10, 20, train=10_000, judged=200, retested=10_000, seeds=1),
        "lenet-cifar10": Sizes(None, None, None, None, 200, 50, 100, train=None, judged=500, retested=10_000),
        "caffenet": _ALL_IMAGENET,
        "googlenet": _ALL_IMAGENET,
        "efficientnet-lite0": _ALL_IMAGENET,
    },
    seeds=(0, 1, 2),
    epochs=5,
)

SCALES: Mapping[str, Scale] = {scale.name: scale for scale in (SMOKE, DEFAULT, FULL)}


def find_scale(name: str) -> Scale:
    """A scale by name.

    >>> find_scale("default").epochs
    5
    >>> find_scale("huge")
    Traceback (most recent call last):
    ...
    deepfool.errors.InputError: the scale must be smoke, default or full, got 'huge'.
    """
    if name not in SCALES:
        raise InputError(f"the scale must be smoke, default or full, got {name!r}.")
    return SCALES[name]
