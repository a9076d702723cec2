"""What the model builders share: their result, and options inside a spec."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from torch import nn

from deepfool.errors import InputError


@dataclass(frozen=True)
class Built:
    """A model, and what its builder knows about it.

    `module` takes inputs in [0, 1]. `network` is the part that the library itself calls the model, without the
    preprocessing that we put in front; checkpoints are loaded into that part.
    """

    module: nn.Module
    network: nn.Module
    architecture: str
    input_shape: tuple[int, ...] | None = None
    classes: tuple[str, ...] = ()


def flag(text: str) -> bool:
    """Read a yes or no.

    >>> flag("no"), flag("True")
    (False, True)
    """
    answers = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False, "none": False}
    if text.lower() not in answers:
        raise ValueError(f"{text!r} is neither true nor false")
    return answers[text.lower()]


def split_options(text: str, known: Mapping[str, Callable[[str], Any]]) -> tuple[str, dict[str, Any]]:
    """Split `name?key=value&key=value`. Only known keys are allowed, so a spec cannot set arbitrary arguments.

    >>> split_options("resnet18?pretrained=false&num_classes=10", {"pretrained": flag, "num_classes": int})
    ('resnet18', {'pretrained': False, 'num_classes': 10})
    """
    name, _, query = text.partition("?")
    if not name:
        raise InputError("A model name was expected after the prefix, got nothing.")
    options: dict[str, Any] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key not in known:
            raise InputError(f"Unknown option {key!r} in {text!r}.", hint=f"the options are {', '.join(known)}")
        try:
            options[key] = known[key](value)
        except ValueError as error:
            raise InputError(f"Option {key!r} in {text!r} has an invalid value: {error}.") from error
    if query and not options:
        raise InputError(f"Options were expected after '?' as key=value, got {query!r}.")
    return name, options


def unknown_name(kind: str, name: str, names: Iterable[str]) -> InputError:
    """The error for an unknown name, which suggests the closest known ones.

    >>> print(unknown_name("network", "lenet-mist", ["lenet-mnist", "caffenet"]))
    There is no network named 'lenet-mist'. Hint: did you mean lenet-mnist?
    """
    listed = sorted(names)
    close = difflib.get_close_matches(name, listed, n=3)
    hint: str | None
    if close:
        hint = f"did you mean {' or '.join(close)}?"
    else:
        hint = f"there are {', '.join(listed[:20])}{', ...' if len(listed) > 20 else ''}" if listed else None
    return InputError(f"There is no {kind} named {name!r}.", hint=hint)
