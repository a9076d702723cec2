"""What a visitor asks, checked before anything runs. Nothing that a client sends is a path, a module or an attack of
its own: models and samples are numbers, attacks are names of the table, everything else is numbers and bytes."""

from __future__ import annotations

import base64
import binascii
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepfool.attacks.shared.aims import Top, read_goal
from deepfool.attacks.shared.registry import ATTACKS
from deepfool.errors import InputError
from deepfool.live.drawing import fit_drawing
from deepfool.live.exhibit import Exhibit
from deepfool.values import as_number, as_whole

PAD_SIDES = range(28, 513)
"""The sides of a drawing pad, in pixels."""
EFFORTS = (50, 100, 300, 1000)
"""Passes that `smallest` may be given."""
NORMS = {1: 1.0, 2: 2.0, "inf": math.inf}


@dataclass(frozen=True)
class Side:
    """One of the things to compare: a model and an attack."""

    model: int
    attack: str


@dataclass(frozen=True)
class Question:
    """An input, what is asked about it, and of whom."""

    x: Tensor
    """In the shape of the models' inputs, float64."""
    exact: bool
    """Whether x is an image of 8 bits, which can be saved without loss."""
    p: float
    bounds: tuple[Tensor, Tensor] | tuple[float, float] | None
    target: int | None
    goal: str | None
    """What counts as changed, as the attacks take it; None: another class."""
    mask: Tensor | None
    sides: tuple[Side, ...]
    effort: int
    random_plane: bool
    sample: int | None = None
    """Which sample of the data x is."""


def read_question(sent: Any, exhibit: Exhibit) -> Question:
    """What a client sent as a question, or an error in words.

    >>> from deepfool.live.exhibit import open_exhibit
    >>> from deepfool.models.sources import resolve
    >>> exhibit = open_exhibit([resolve("lenet-mnist")])
    >>> blank = base64.b64encode(bytes(784)).decode()
    >>> sides = [{"model": 0, "attack": "smallest"}]
    >>> asked = read_question({"input": {"kind": "pixels", "levels": blank}, "p": 2, "sides": sides}, exhibit)
    >>> asked.x.shape, asked.p, asked.sides[0].attack
    (torch.Size([1, 28, 28]), 2.0, 'smallest')
    >>> read_question({"input": {"kind": "file", "path": "/etc/passwd"}, "p": 2, "sides": sides}, exhibit)
    Traceback (most recent call last):
    ...
    deepfool.errors.InputError: input must be a drawing, pixels, a sample or a row, got 'file'.
    """
    if not isinstance(sent, dict):
        raise InputError("a question must be an object.")
    given = sent.get("input")
    if not isinstance(given, dict):
        raise InputError("a question needs an input.", hint="draw something, or choose a sample.")
    x, exact = _read_input(given, exhibit)
    p = NORMS.get(_hashable(sent.get("p", 2)))
    if p is None:
        raise InputError(f"p must be 1, 2 or inf, got {sent.get('p')!r:.40}.")
    effort = as_whole(sent.get("effort", 100))
    if effort not in EFFORTS:
        raise InputError(f"effort must be one of {', '.join(map(str, EFFORTS))}, got {sent.get('effort')!r:.40}.")
    target = None if sent.get("target") is None else _read_whole(sent["target"], "target", max(exhibit.classes))
    return Question(
        x=x, exact=exact, p=p, bounds=_read_bounds(sent.get("bounds"), exhibit), target=target,
        goal=_read_goal(sent.get("goal"), target, exhibit),
        mask=_read_mask(sent.get("mask"), exhibit), sides=_read_sides(sent.get("sides"), exhibit), effort=effort,
        random_plane=sent.get("plane") == "random",
        sample=int(given["index"]) if given.get("kind") == "sample" else None,
    )  # fmt: skip


def _hashable(value: Any) -> Any:
    return value if isinstance(value, int | str) and not isinstance(value, bool) else None


def _read_whole(value: Any, name: str, count: int) -> int:
    number = as_whole(value)
    if number is None or not 0 <= number < count:
        raise InputError(f"{name} must be a whole number from 0 to {count - 1}, got {value!r:.40}.")
    return number


def _read_sides(sent: Any, exhibit: Exhibit) -> tuple[Side, ...]:
    if not isinstance(sent, list) or not 1 <= len(sent) <= 2 or not all(isinstance(each, dict) for each in sent):
        raise InputError("a question is asked of one model and attack, or of two.")
    sides = []
    for each in sent:
        if _hashable(each.get("attack")) not in ATTACKS:
            raise InputError(f"attack must be one of {', '.join(ATTACKS)}, got {each.get('attack')!r:.40}.")
        sides.append(Side(_read_whole(each.get("model", 0), "model", len(exhibit.models)), each["attack"]))
    return tuple(sides)


def _read_input(sent: dict[str, Any], exhibit: Exhibit) -> tuple[Tensor, bool]:
    kind, shape = sent.get("kind"), exhibit.shape
    if kind == "drawing":
        if exhibit.kind != "picture" or shape[0] != 1 or shape[1] != shape[2]:
            raise InputError(f"the model takes inputs of shape {shape}, which cannot be drawn.")
        side = as_whole(sent.get("side"))
        if side is None or side not in PAD_SIDES:
            raise InputError(f"a drawing must be {PAD_SIDES[0]} to {PAD_SIDES[-1]} pixels wide.")
        drawn = read_bytes(sent.get("levels"), side * side, "drawing").reshape(side, side)
        return fit_drawing(drawn, shape[1]).double() / 255, True
    if kind == "pixels":
        if exhibit.kind != "picture":
            raise InputError(f"the model takes inputs of shape {shape}, which are not images.")
        levels = read_bytes(sent.get("levels"), math.prod(shape), "image")
        return torch.from_numpy(levels.copy()).reshape(shape).double() / 255, True
    if kind == "sample":
        if exhibit.data is None:
            raise InputError("there is no data to take a sample of.", hint="start the page with --data.")
        x = exhibit.data.batch([_read_whole(sent.get("index"), "sample", len(exhibit.data))])[0].double()
        whole = exhibit.kind == "picture" and bool(((x * 255) - (x * 255).round()).abs().max() < 1e-4)
        return x, whole and float(x.min()) >= 0 and float(x.max()) <= 1
    if kind == "row":
        if exhibit.kind != "row":
            raise InputError(f"the model takes inputs of shape {shape}, which are not rows of a table.")
        return _read_row(sent.get("values"), shape[0]), False
    raise InputError(f"input must be a drawing, pixels, a sample or a row, got {kind!r:.40}.")


def _read_row(sent: Any, count: int) -> Tensor:
    if not isinstance(sent, list) or len(sent) != count:
        raise InputError(f"a row must have {count} numbers.")
    values = [as_number(value) for value in sent]
    for i, value in enumerate(values):
        if value is None or not abs(value) < 1e30:
            raise InputError(f"feature {i + 1} must be a finite number, got {sent[i]!r:.40}.")
    return torch.tensor(values, dtype=torch.float64)


def read_bytes(sent: Any, count: int, name: str) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Exactly `count` bytes, sent as base64.

    >>> read_bytes("AAEC", 3, "image").tolist()
    [0, 1, 2]
    """
    try:
        found = base64.b64decode(sent if isinstance(sent, str) else b"", validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if len(found) != count:
        raise InputError(f"the {name} must have {count} bytes, got {len(found)} that can be read.")
    return np.frombuffer(found, np.uint8)


def _read_goal(sent: Any, target: int | None, exhibit: Exhibit) -> str | None:
    """What counts as changed: a goal of classes that goes with the target; None for another class."""
    if sent is None or sent == "other":
        return None
    if not isinstance(sent, str) or sent.startswith("target"):
        raise InputError(f"goal must be a text such as top:3, got {sent!r:.40}.")
    aim, _ = read_goal(sent, target)
    if aim.reads != "classes":
        raise InputError(f"the goal {aim} is not about classes, which the page shows.", hint="use deepfool evaluate.")
    if isinstance(aim, Top) and aim.k >= min(exhibit.classes):
        raise InputError(f"the goal {aim} needs more than {aim.k} classes, got {min(exhibit.classes)}.")
    return str(aim)


def _read_bounds(sent: Any, exhibit: Exhibit) -> tuple[Tensor, Tensor] | tuple[float, float] | None:
    if sent is None:
        return None
    if sent == "data":
        if exhibit.box is None:
            raise InputError("the box of the data needs a table of data.", hint="start the page with --data.")
        return exhibit.box
    pair = [as_number(value) for value in sent] if isinstance(sent, list) and len(sent) == 2 else [None, None]
    low, high = pair
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError("the box must be two numbers, the smaller one first.")
    return low, high


def _read_mask(sent: Any, exhibit: Exhibit) -> Tensor | None:
    """A byte per pixel of an image, or per feature of anything else; not zero where it may change."""
    if sent is None:
        return None
    shape = exhibit.shape[1:] if exhibit.kind == "picture" else exhibit.shape
    mask = torch.from_numpy(read_bytes(sent, math.prod(shape), "mask").copy()).reshape(shape) != 0
    if not bool(mask.any()):
        raise InputError("The mask lets nothing change.", hint="paint where it may change, or remove the mask.")
    return mask.expand(exhibit.shape).contiguous()
