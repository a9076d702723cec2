"""Whether the labels of some data are those of a model, and how the one's class names go with the other's."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from deepfool.attacks.shared.aims import Aim
from deepfool.classifier import Classifier
from deepfool.datasets import Data
from deepfool.datasets.catalog import BUILTINS
from deepfool.datasets.relabelled import Relabelled
from deepfool.errors import DataError, DeepFoolError, InputError
from deepfool.models.imagenet import list_names, list_synsets
from deepfool.models.sources import Source
from deepfool.models.zoo import ZOO
from deepfool.runs.rows import Ints

SHOWN = 3
"""How many class names a message lists."""


class LabelWarning(UserWarning):
    """The labels of the data are not, or may not be, the classes of the model."""


def match_labels(source: Source, samples: Data) -> Data:
    """The samples with the model's own class numbers, where the data names its classes instead of numbering them.

    Names are compared with the model's (synset ids and names for ImageNet), without regard to case and underscores. If
    the model's names are not known, the numbers of the data stay: the classes in alphabetical order, as they are for
    models that were trained on such a folder. A `LabelWarning` says what does not match; its label is then unknown.
    """
    names = [name for name in samples.classes if name]
    if not names or not bool((samples.labels >= 0).any()):
        return samples
    own = name_classes(source)
    if samples.numbered:
        _compare_names(samples, own)
        return samples
    if not own:
        own = list_names() if all(name in list_synsets() for name in names) else ()
        classes = count_classes(source.module, samples.batch([0]))
        if not own or classes != len(own):
            if classes is not None and classes != len(names):
                _warn(
                    f"the data has {len(names)} classes ({_few(names)}) and the model has {classes}, whose names are "
                    f"not known: the labels are numbered in alphabetical order, which is probably not the model's",
                    "give each image its class number in a labels.json.",
                )
            return samples
    numbers = _index_names(own)
    found = [_find(name, numbers) for name in samples.classes]
    used = sorted(set(samples.labels[samples.labels >= 0].tolist()))
    lost = [samples.classes[label] for label in used if found[label] < 0]
    if lost:
        some = f"{len(lost)} of {len(used)} classes" if len(lost) < len(used) else "classes"
        _warn(
            f"the data has {some} that the model does not have ({_few(lost)}; the model has {_few(own)}): "
            f"{'their images count' if len(lost) < len(used) else 'all images count'} as unlabelled, "
            f"and accuracy {'leaves them out' if len(lost) < len(used) else 'is not measured'}",
            "name the folders as the model names its classes, or list class numbers in a labels.json.",
        )
    table = torch.tensor([*found, -1])  # label -1 finds the last entry
    return Relabelled(samples, table[samples.labels], tuple(own))


def name_classes(source: Source) -> tuple[str, ...]:
    """The class names of a model; empty if they are not known.

    >>> from deepfool.models.sources import resolve
    >>> name_classes(resolve("lenet-cifar10"))[:2]
    ('airplane', 'automobile')
    """
    if source.classes and not all(re.fullmatch(r"LABEL_\d+", name) for name in source.classes):  # transformers' filler
        return source.classes
    data = ZOO[source.spec].data if source.spec in ZOO else ""
    return BUILTINS[data].classes if data in BUILTINS else ()


def _index_names(names: Sequence[str]) -> Mapping[str, int]:
    """Every name by which a class is known; -1 for a name that two classes have."""
    numbers: dict[str, int] = {}
    for number, name in enumerate(names):
        for each in {_plain(part) for part in (name, *name.split(","))} - {""}:
            numbers[each] = -1 if each in numbers else number
    if len(names) == len(list_synsets()):  # ImageNet; its synsets tell apart what names do not
        numbers |= {synset: number for number, synset in enumerate(list_synsets())}
    return numbers


def _find(name: str, numbers: Mapping[str, int]) -> int:
    whole = numbers.get(_plain(name))
    if whole is not None:
        return whole
    parts = {numbers[part] for part in map(_plain, name.split(",")) if numbers.get(part, -1) >= 0}
    return parts.pop() if len(parts) == 1 else -1


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name).strip().casefold()


def _compare_names(samples: Data, own: Sequence[str]) -> None:
    """Warn if labels that were given as numbers have names that are mostly not the model's names for them."""
    numbers = _index_names(own)
    named = [(label, name) for label, name in enumerate(samples.classes) if name and label < len(own)]
    known = [(label, name) for label, name in named if _plain(name) in numbers]
    other = [(label, name) for label, name in known if numbers[_plain(name)] not in (label, -1)]
    if 2 * len(other) > len(known):
        label, name = other[0]
        _warn(
            f"label {label} is {name!r} in the data and {own[label]!r} in the model, and {len(other)} of {len(known)} "
            f"names disagree like that: the labels are probably numbered in another order, and accuracy means nothing",
            f"{name!r} is the model's class {numbers[_plain(name)]}.",
        )


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")


def _warn(message: str, hint: str) -> None:
    warnings.warn(f"{message}. Hint: {hint}", LabelWarning, stacklevel=4)


def check_true_labels(source: Source, samples: Data, selection: Ints) -> None:
    """Refuse data with labels that are not classes of the model: every result based on them would be wrong."""
    largest = int(samples.labels[selection].max())
    classes = count_classes(source.module, samples.batch(selection[:1].tolist())) if largest > 0 else None
    if classes is not None and largest >= classes:
        raise DataError(
            f"{samples.name} has the label {largest}, but the model has {classes} classes, 0 to {classes - 1}.",
            hint="give the labels that the model was trained with, or -1 where unknown.",
        )


def name_alternatives(aim: Aim, source: Source, samples: Data, skip_misclassified: bool) -> Data:
    """The samples for a goal that is not about classes: without labels, and with names for its alternatives."""
    if skip_misclassified:
        raise InputError(
            f"skip_misclassified needs classes, and the goal {aim} has none.",
            hint="leave it out: the distance is measured from what the model predicts.",
        )
    outputs = count_outputs(source.module, samples.batch([0]))
    names = aim.name_alternatives(outputs or 0)
    own = samples.classes if outputs == len(samples.classes) else ()
    names = tuple(own[i] if i < len(own) and aim.reads == "labels" else name for i, name in enumerate(names))
    return Relabelled(samples, torch.full_like(samples.labels, -1), names)


def count_outputs(module: nn.Module, x: torch.Tensor) -> int | None:
    """How many numbers a model returns for a sample, found out with one; None if the model fails on it.

    >>> count_outputs(nn.Linear(4, 1), torch.zeros(1, 4))
    1
    """
    return _count(Classifier(module, reads="values"), module, x)


def count_classes(module: nn.Module, x: torch.Tensor) -> int | None:
    """How many classes a model has, found out with one sample; None if the model fails on it.

    >>> count_classes(nn.Linear(4, 3), torch.zeros(1, 4)), count_classes(nn.Linear(4, 1), torch.zeros(1, 4))
    (3, 2)
    """
    return _count(Classifier(module, outputs="logits"), module, x)  # the scores are only counted


def _count(f: Classifier, module: nn.Module, x: torch.Tensor) -> int | None:
    weight = next((each for each in module.parameters() if each.is_floating_point()), None)
    x = x if weight is None else x.to(weight.device, weight.dtype)
    try:
        with f.frozen(), torch.no_grad():
            return f(x).shape[1]
    except (DeepFoolError, RuntimeError, MemoryError):  # the attack will raise a better error
        return None
