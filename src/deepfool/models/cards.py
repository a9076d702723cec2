"""A weight file and its card, which records where the weights come from and how good they are.

`NAME.safetensors` holds the weights, `NAME.json` the card. The card contains the hash of the weights, so a card cannot
be mistaken for that of other weights.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import nn

from deepfool import cache
from deepfool.errors import DataError


@dataclass(frozen=True)
class Card:
    """What is known about a weight file."""

    name: str
    data: str
    """The data set that the network was trained on (split `train`) and tested on (split `test`)."""
    data_sha256: Mapping[str, str]
    """The fingerprints of the two splits."""
    recipe: Mapping[str, Any]
    seed: int
    epochs: int
    test_error: float
    """The share of the full test set that is misclassified."""
    parameters: int
    sha256: str
    """Of the weight file."""
    command: str
    """The command that reproduces the file."""
    torch: str
    """The version it was trained with. Another version or another processor may give slightly different weights."""
    robust_accuracy: Sequence[Mapping[str, Any]] = ()
    """For networks trained to be robust: the share of the test set that stays correct, and how that was measured."""
    tried: Sequence[Mapping[str, Any]] = ()
    """Recipes that were tried for this network, this one among them: the test error and the rho_adv that they gave, in
    l2 by DeepFool behind the network's normalisation."""


def write_weights(model: nn.Module, path: Path, **about: Any) -> Card:
    """Write the weights of `model` to `path` and its card beside it; each file is written completely or not at all.

    >>> import tempfile
    >>> about = dict(name="n", data="d", data_sha256={}, recipe={}, seed=0, epochs=1, test_error=0.5, command="c",
    ...              torch="2")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     card = write_weights(nn.Linear(2, 3), Path(folder) / "n.safetensors", **about)
    ...     card.parameters, read_card(Path(folder) / "n.safetensors") == card
    (9, True)
    """
    state = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    # A single entry: safetensors does not fix the order of several, and the hash would vary.
    content = safetensors.torch.save(state, metadata={"format": "pt"})
    card = Card(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        sha256=hashlib.sha256(content).hexdigest(),
        **about,
    )
    text = json.dumps(_plain(asdict(card)), indent=2, allow_nan=False) + "\n"
    cache.write(path, content)
    cache.write(path.with_suffix(".json"), text.encode())
    return read_card(path)


def _plain(value: Any) -> Any:
    """A value for JSON, where infinity (no limit) becomes null."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if value == math.inf else value


def read_card(path: Path) -> Card:
    """The card of the weight file at `path`."""
    card = path.with_suffix(".json")
    try:
        return Card(**json.loads(card.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise DataError(f"{card}: the card of {path.name} is missing.") from None
    except (ValueError, TypeError) as error:
        raise DataError(f"{card}: not a card of this version ({error}).") from error


def read_weights(model: nn.Module, path: Path, *, sha256: str | None = None) -> nn.Module:
    """Load the weights at `path` into `model`; all names must match, and the file must have the hash, if given.

    >>> read_weights(nn.Linear(2, 3), Path("absent.safetensors"))
    Traceback (most recent call last):
    ...
    deepfool.errors.DataError: absent.safetensors: no such file.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path}: no such file.") from None
    found = hashlib.sha256(content).hexdigest()
    if sha256 is not None and found != sha256:
        raise DataError(
            f"{path}: expected sha256 {sha256}, as its card says, got {found}.",
            hint="the file is damaged or does not belong to this card; install or train it again",
        )
    try:
        model.load_state_dict(safetensors.torch.load(content))
    except SafetensorError as error:
        raise DataError(f"{path}: not a safetensors file ({error}).") from error
    except RuntimeError as error:  # torch lists what is missing, unexpected or of another shape
        raise DataError(f"{path}: {' '.join(str(error).split())}") from error
    return model
