"""One image and one model: read the image, attack it, and describe the result."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from typing_extensions import Unpack

from deepfool.attacks.shared.adversarial import Adversarial
from deepfool.attacks.shared.aims import Aim, read_goal
from deepfool.attacks.shared.alternatives import open_aim
from deepfool.attacks.shared.arguments import Bounds, count_channels
from deepfool.attacks.shared.registry import (
    ATTACKS,
    Attack,
    complete_knobs,
    find_attack,
    name_attack,
    run_attack,
    takes,
)
from deepfool.classifier import Classifier, Model
from deepfool.datasets.pictures import Limits, open_picture, read_picture
from deepfool.errors import DataError, InputError
from deepfool.models.sources import Source
from deepfool.norms import norm as norm_of
from deepfool.norms import norm_of_whole
from deepfool.reporting.naming import names_of_network

TOP = 3
"""How many scores to list."""


@dataclass(frozen=True)
class Score:
    """A class and its score."""

    label: int
    name: str
    score: float
    probability: float


@dataclass(frozen=True)
class Outcome:
    """The result of attacking one image."""

    attack: str
    p: float
    fooled: bool
    label: int
    adv_label: int
    before: list[Score]
    after: list[Score]
    norm: float
    """Of the perturbation; for p = 0 how many features or pixels (`unit`) changed."""
    rho: float
    iterations: int
    reason: str
    r: Tensor
    classifier: Classifier
    """The attacked model with its threshold. Use it to classify the image again."""
    unit: str = ""
    """What p = 0 counts; empty for norms."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON, without the perturbation and the model."""
        left_out = ("r", "classifier", "before", "after")
        plain = {key: value for key, value in vars(self).items() if key not in left_out}
        plain["p"] = str(self.p) if self.p == float("inf") else self.p
        return plain | {
            "before": [asdict(each) for each in self.before],
            "after": [asdict(each) for each in self.after],
        }


def read_image(path: str | Path, source: Source, *, size: int | None = None, grey: bool = False) -> Tensor:
    """An image file as the model expects it: (c, h, w) in [0, 1], resized and cropped, grey for one channel.

    `size` and `grey` are for models that do not say what they expect.
    """
    shape = source.input_shape
    check_picture_shape(shape)
    grey = shape[0] == 1 if shape is not None else grey
    side = size or (shape[1] if shape is not None else None)
    with _open(path) as stream:
        return fit_picture(stream, str(path), side, grey=grey).float() / 255


def check_picture_shape(shape: tuple[int, ...] | None) -> None:
    """An error if inputs of this shape are not images that a picture can be cropped to."""
    if shape is not None and (len(shape) != 3 or shape[0] not in (1, 3)):
        raise InputError(f"the model takes inputs of shape {tuple(shape)}, which are not images.")
    if shape is not None and shape[1] != shape[2]:
        raise InputError(f"the model takes inputs of shape {tuple(shape)}; images can only be cropped to a square.")


def fit_picture(stream: IO[bytes], name: str, side: int | None, *, grey: bool, **limits: Unpack[Limits]) -> Tensor:
    """An image file as (c, side, side) bytes; one that fits already stays as it is."""
    pixels = read_picture(stream, name, size=None, grey=grey, **limits)
    if side is None or tuple(pixels.shape[1:]) == (side, side):
        return pixels
    stream.seek(0)
    return read_picture(stream, name, size=side, grey=grey, **limits)


def _open(path: str | Path) -> IO[bytes]:
    if not Path(path).is_file():  # opening a pipe would wait forever
        raise DataError(
            f"{path}: there is no such file.",
            hint="relative paths start at the current folder.",
        )
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error


def name_label(source: Source, label: int) -> str:
    """The name of a label, or "class" and its number.

    >>> import torch
    >>> from deepfool.models.sources import resolve
    >>> name_label(resolve("lenet-mnist"), 7)
    '7'
    """
    names = source.classes or names_of_network(source.spec)
    return (names[label] if label < len(names) else "") or f"class {label}"


def attack_one(
    source: Source,
    x: Tensor,
    attack: str | Attack = "deepfool",
    *,
    p: float = 2,
    bounds: Bounds | None = (0, 1),
    threshold: float | None = None,
    outputs: str = "auto",
    **knobs: Any,
) -> Outcome:
    """Attack one image (c, h, w). `threshold` and `outputs` say how to read the model (see `Classifier`).

    >>> import torch
    >>> from deepfool.models.sources import resolve
    >>> from deepfool.datasets import load
    >>> outcome = attack_one(resolve("lenet-mnist"), load("mnist-sample").batch([0])[0])
    >>> outcome.fooled, outcome.label != outcome.adv_label, 0 < outcome.rho < 0.5
    (True, True, True)
    """
    function = _find(attack)
    wanted = dict(knobs)
    if bounds is not None and takes(function, "bounds"):
        wanted["bounds"] = bounds
    if takes(function, "p"):
        wanted["p"] = p
    given = dict(wanted)
    if _needs_eps(function) and "eps" not in wanted:
        wanted["eps"] = 0.0
    complete_knobs(function, wanted)  # rejects unknown knobs before anything runs
    aim, _ = read_goal(knobs.get("goal"), knobs.get("target"))
    if aim.reads != "classes":
        raise InputError(f"the goal {aim} has no classes to show.", hint="deepfool evaluate takes it.")
    f = Classifier(source.module, threshold=threshold, outputs=outputs)
    found = _run(function, f, x.unsqueeze(0), given)
    r = found.r[0].detach().cpu()
    with f.frozen(), torch.no_grad():
        before, after = f(x.unsqueeze(0))[0], f(found.x)[0]
    channels = count_channels(found.unit, p, x.unsqueeze(0))
    size, rho = measure(x, x + r, p, channels)
    return Outcome(
        attack=name_attack(attack), p=p, fooled=bool(found.fooled[0]), label=int(found.label[0]),
        adv_label=int(found.adv_label[0]), before=_rank(source, before), after=_rank(source, after), norm=size,
        rho=rho, iterations=int(found.iterations[0]), reason=found.reason[0], r=r,
        classifier=judge_by(aim, f, x.unsqueeze(0)),
        unit=found.unit if p == 0 else "",
    )  # fmt: skip


def judge_by(aim: Aim, f: Classifier, x: Tensor) -> Classifier:
    """The classifier whose label changes where the goal is reached for this image."""
    with f.frozen(), torch.no_grad():
        read = open_aim(aim, f(x)).read
    if read is None:
        return f
    return Classifier(lambda y: read(torch.zeros(len(y), dtype=torch.long, device=y.device), f(y)), outputs="logits")


def _find(attack: str | Attack) -> Attack:
    """An attack of the registry, or another attack that the package exports."""
    if isinstance(attack, str) and attack not in ATTACKS and ":" not in attack:
        import deepfool

        found = getattr(deepfool, attack, None) if attack in deepfool.__all__ else None
        if found is None or not callable(found) or isinstance(found, type):
            raise InputError(
                f"there is no attack called {attack!r} in this version of deepfool.",
                hint=f"choose from {', '.join(ATTACKS)}, or give module:function.",
            )
        return found  # type: ignore[no-any-return]
    return find_attack(attack)


def _needs_eps(attack: Attack) -> bool:
    """Whether it takes a step of a given length, as FGSM does."""
    eps = inspect.signature(attack).parameters.get("eps")
    return eps is not None and eps.default is inspect.Parameter.empty


def _run(attack: Attack, f: Classifier, x: Tensor, knobs: Mapping[str, Any]) -> Adversarial:
    """Run the attack. If it needs an eps and none is given, use the smallest one that fools, on a grid of 5 % steps."""
    if not _needs_eps(attack) or "eps" in knobs:
        return run_attack(attack, f, x, knobs)
    eps = 1e-4
    found = run_attack(attack, f, x, {**knobs, "eps": eps})
    while not bool(found.fooled[0]) and eps < 1:
        eps *= 1.05
        found = run_attack(attack, f, x, {**knobs, "eps": eps})
    return found


def _rank(source: Source, scores: Tensor) -> list[Score]:
    shares = scores.softmax(0)
    return [
        Score(label, name_label(source, label), float(scores[label]), float(shares[label]))
        for label in scores.argsort(descending=True)[:TOP].tolist()
    ]


def measure(x: Tensor, y: Tensor, p: float, channels: int = 1) -> tuple[float, float]:
    """The p-norm of y - x, and its ratio to the p-norm of x; for p = 0 how many units changed, and their share.

    >>> measure(torch.tensor([[[3.0, 4.0]]]), torch.tensor([[[3.0, 5.0]]]), 2)
    (1.0, 0.2)
    """
    size = float(norm_of((y.double() - x.double()).reshape(1, -1), p, channels)[0])
    whole = float(norm_of_whole(x.double().reshape(1, -1), p, channels)[0])
    return size, size / whole if whole > 0 else float("nan")


def classify(model: Model | Classifier, x: Tensor) -> int:
    """The label of one image.

    >>> classify(torch.nn.Flatten(), torch.tensor([[[0.2, 0.7]]]))
    1
    """
    f = Classifier.of(model)
    with f.frozen(), torch.no_grad():
        return int(f(x.unsqueeze(0)).argmax(1)[0])


def write_image(path: Path, levels: Tensor) -> None:
    """Write (c, h, w) bytes to a file without loss."""
    pixels = levels.numpy()
    image = Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}.") from error


def read_back(path: Path) -> Tensor:
    """The pixels of a file written by `write_image`, in [0, 1]."""
    with open_picture(path, str(path)) as image:
        pixels = np.array(image)
    return torch.from_numpy(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1).copy()).float() / 255
