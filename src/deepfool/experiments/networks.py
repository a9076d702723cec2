"""The networks of the paper with their data, ready to be measured, or the reason why one is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from deepfool import datasets
from deepfool.datasets import Data
from deepfool.errors import DataError, MissingExtraError
from deepfool.experiments.paper import CLASSIFIERS
from deepfool.experiments.session import Session
from deepfool.experiments.space import Preprocessed, describe_space, split_network
from deepfool.models import zoo
from deepfool.models.fingerprints import fingerprint


@dataclass(frozen=True)
class Subject:
    """A network without its preprocessing, and its test data after that preprocessing."""

    name: str
    whole: nn.Module
    """The network in the zoo: takes pixels in [0, 1]."""
    network: nn.Module
    layer: nn.Module | None
    pixels: Data
    """The test data as pixels in [0, 1]."""
    test: Data
    """The same, as input for `network`."""
    sha256: str

    @property
    def space(self) -> str:
        return describe_space(self.layer)

    @property
    def identity(self) -> dict[str, Any]:
        """What a measurement of this network depends on."""
        return {"network": self.name, "sha256": self.sha256, "data": self.test.fingerprint()}


def name_network(name: str) -> str:
    """The name as the paper prints it.

    >>> name_network("fc500-mnist"), name_network("efficientnet-lite0")
    ('FC500-150-10 (MNIST)', 'EfficientNet-Lite0 (not in the paper)')
    """
    if name in CLASSIFIERS:
        return CLASSIFIERS[name].name
    return {"efficientnet-lite0": "EfficientNet-Lite0"}.get(name, name) + " (not in the paper)"


def find_subject(session: Session, name: str) -> Subject | str:
    """The network, or a sentence that says why it cannot be measured here."""
    if name not in session.networks:
        try:
            session.networks[name] = _load(session, name)
        except (DataError, MissingExtraError) as error:
            return _without_paths(error, name)
        except _NoImagesError as error:
            return str(error)
    found: Subject = session.networks[name]
    return found


class _NoImagesError(Exception):
    """There are no images for an ImageNet network."""


def _load(session: Session, name: str) -> Subject:
    entry = zoo.ZOO[name]
    whole = zoo.load(name)  # first, so that no data is fetched if the weights are missing
    if entry.data == "imagenet":
        if session.images is None:
            raise _NoImagesError("needs labelled ImageNet images; give their folder with --images DIR")
        pixels = datasets.load(f"folder:{session.images}", size=entry.input_shape[-1])
        pixels.name = "image folder"  # the path is private
    else:
        pixels = datasets.load(session.scale.data.get(entry.data, entry.data))
    layer, network = split_network(whole)
    test = pixels if layer is None else Preprocessed(pixels, layer)
    return Subject(name, whole, network.eval(), layer, pixels, test, fingerprint(whole, name))


def _without_paths(error: Exception, name: str) -> str:
    """Why it is missing, without the paths of this machine, which do not belong on a page."""
    if isinstance(error, MissingExtraError):
        return str(error)
    if zoo.ZOO[name].published is not None:
        return f"its weights are not in the cache: deepfool models fetch {name}"
    if not zoo.ZOO[name].weights.is_file():
        return f"its weights are not in this installation: deepfool train {name}"
    return str(error).partition(" Hint:")[0]


def training_pair(session: Session, subject: Subject, count: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Training images as input for `subject.network`, with their labels.

    At the smoke scale there is no training data: the last images of the sample are used, and the first ones for tests.
    """
    data = zoo.ZOO[subject.name].data
    if data in session.scale.data:
        pixels, last = subject.pixels, len(subject.pixels)
        chosen = range(last - (count or last // 2), last)
    else:
        pixels = datasets.load(data, split="train")
        chosen = range(len(pixels) if count is None else min(count, len(pixels)))
    source = pixels if subject.layer is None else Preprocessed(pixels, subject.layer)
    return source.batch(chosen), pixels.labels[list(chosen)]
