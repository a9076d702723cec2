"""Known values of rho_adv to compare with: from the DeepFool paper, and of the networks that ship with the package.

All were measured by DeepFool with its default knobs and without bounds. A run is compared only with values measured in
the same way and in the same space; the others can be shown, with what sets them apart.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from deepfool.metrics.setup import describe_setup, has_pixels
from deepfool.models.zoo import ZOO
from deepfool.runs.records import Run
from deepfool.runs.rows import Records

PAPER = "Moosavi-Dezfooli, Fawzi, Frossard: DeepFool, CVPR 2016"

_TABLE_1 = {
    "LeNet": ("mnist", 0.20), "FC500-150-10": ("mnist", 0.11), "NIN": ("cifar10", 0.023),
    "LeNet (CIFAR-10)": ("cifar10", 0.030), "CaffeNet": ("imagenet", 0.0027), "GoogLeNet": ("imagenet", 0.0019),
}  # fmt: skip
"""rho_adv in l2, the DeepFool column."""

_TABLE_2 = {
    "LeNet": ("mnist", 0.10), "FC500-150-10": ("mnist", 0.04), "NIN": ("cifar10", 0.008),
    "LeNet (CIFAR-10)": ("cifar10", 0.015),
}  # fmt: skip
"""The same in linf."""

SPACE_UNKNOWN = ("cifar10", "imagenet")
"""The paper does not say what came before its networks. On MNIST nothing usually does, and pixels lie in [0, 1]. On
CIFAR-10 and ImageNet the mean is usually subtracted, which makes ||x|| smaller and rho_adv larger: `deepfool reproduce`
finds 0.0235 for LeNet on CIFAR-10 behind its normalisation and 0.0107 in [0, 1] (2,000 images; paper: 0.030)."""

DATA_NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10", "imagenet": "ImageNet"}


@dataclass(frozen=True)
class Reference:
    """The rho_adv of a known network."""

    name: str
    data: str
    """A key of `DATA_NAMES`."""
    rho: float
    source: str
    pixels: bool = True
    """Whether x was measured in [0, 1], before any normalisation."""
    attack: str = "deepfool"
    """It was used with its default knobs and without bounds."""


@dataclass(frozen=True)
class _Measured:
    """The result of `deepfool evaluate --model NAME --data DATA --p P` on all 10,000 test samples."""

    name: str
    p: float
    rho: float
    weights: str
    """The start of the SHA-256 of the weights. The value holds only for these weights."""


MEASURED: tuple[_Measured, ...] = (
    _Measured("lenet-mnist", 2, 0.1781, "76419138991da4b8"),
    _Measured("fc500-mnist", 2, 0.1336, "a023aabb11f92f2b"),
    _Measured("lenet-cifar10", 2, 0.01048, "13e0b8c22ac833f8"),
    _Measured("lenet-mnist", math.inf, 0.103, "76419138991da4b8"),
    _Measured("fc500-mnist", math.inf, 0.0695, "a023aabb11f92f2b"),
    _Measured("lenet-cifar10", math.inf, 0.00867, "13e0b8c22ac833f8"),
)


def find_references(p: float, *, but: Collection[str] = ()) -> list[Reference]:
    """The known values in a norm, the paper's first; empty for norms without published values.

    `but` names networks of the zoo to leave out: a network is not a reference for itself.

    >>> [(each.name, each.rho) for each in find_references(2)][:2]
    [('LeNet', 0.2), ('FC500-150-10', 0.11)]
    >>> find_references(1)
    []
    """
    tables = {2.0: (_TABLE_1, "Table 1"), math.inf: (_TABLE_2, "Table 2")}
    if p not in tables:
        return []
    table, which = tables[p]
    published = [
        Reference(name.removesuffix(" (CIFAR-10)"), data, rho, f"the paper, {which}", data not in SPACE_UNKNOWN)
        for name, (data, rho) in table.items()
    ]
    return [*published, *(each for each in _find_measured(p) if each.name not in but)]


def _find_measured(p: float) -> Iterator[Reference]:
    """Networks of the zoo whose weights are still the ones that were measured."""
    for each in MEASURED:
        card = ZOO[each.name].card
        if each.p == p and card is not None and card.sha256.startswith(each.weights):
            yield Reference(each.name, card.data, each.rho, "measured, full test set")


def why_incomparable(run: Run, records: Records, reference: Reference) -> str:
    """What sets a run and a known value apart, in words; empty if both were measured in the same way."""
    setup, differences = describe_setup(run), []
    if setup.attack != reference.attack:
        differences.append(f"by {reference.attack}")
    elif not setup.usual:
        differences.append("default knobs")
    if setup.bounds is not None:
        differences.append("no bounds")
    if run.identity["skip_misclassified"]:
        differences.append("misclassified samples too")
    if not reference.pixels:
        differences.append("behind a normalisation")
    elif not has_pixels(run, records):
        differences.append("on pixels in [0, 1]")
    return ", ".join(differences)


def family_of(run: Run) -> str | None:
    """The data family of a run, if there are references for it.

    For a folder or an array, it is the family of the zoo network that was measured on it.
    """
    name, spec = str(run.manifest["data"]["name"]), str(run.manifest["model"]["spec"])
    for family in DATA_NAMES:
        if name == family or name.startswith(f"{family}-"):
            return family
    return ZOO[spec].data if spec in ZOO else None
