"""Names of classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deepfool.datasets.catalog import BUILTINS
from deepfool.models.imagenet import list_names
from deepfool.models.zoo import ZOO
from deepfool.runs.records import Run


def name_class(classes: Sequence[str], label: int) -> str:
    """The name of a label, or its number if it has none.

    >>> name_class(["cat", ""], 0), name_class(["cat", ""], 1), name_class([], 7)
    ('cat', '1', '7')
    """
    return (classes[label] if 0 <= label < len(classes) else "") or str(label)


def names_of_run(run: Run) -> list[str]:
    """The class names of the data; gaps are filled from the network."""
    names: list[Any] = list(run.manifest["data"]["classes"])
    known = names_of_network(str(run.manifest["model"]["spec"]))
    names += [""] * (len(known) - len(names))
    return [str(name or (known[i] if i < len(known) else "")) for i, name in enumerate(names)]


def names_of_network(spec: str) -> tuple[str, ...]:
    """The class names of a network in the zoo, as far as they are known; empty for other models.

    >>> names_of_network("lenet-cifar10")[:2], names_of_network("timm:resnet18")
    (('airplane', 'automobile'), ())
    """
    data = ZOO[spec].data if spec in ZOO else ""
    if data in BUILTINS:
        return BUILTINS[data].classes
    return list_names() if data == "imagenet" else ()
