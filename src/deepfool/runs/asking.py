"""Where an attack may go, in runs: weights, schemas and subspaces as plain values, which manifests keep."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from deepfool.attacks.shared.arguments import check_weights
from deepfool.errors import InputError
from deepfool.schemas import read_schema
from deepfool.subspaces import Subspace, read_subspace

UNPROVED = ("weights", "subspace", "schema")
"""Knobs that `certify` knows nothing of: its radii are those of all directions, in the plain norm."""


def make_plain(knobs: Mapping[str, Any], x: Tensor, p: float) -> dict[str, Any]:
    """Knobs whose weights, schema and subspace are plain values, checked against samples like x.

    >>> import torch
    >>> make_plain({"weights": torch.tensor([1.0, 2.0]), "max_iter": 9}, torch.zeros(1, 2), 2)
    {'weights': [1.0, 2.0], 'max_iter': 9}
    """
    plain = dict(knobs)
    if plain.get("weights") is not None:
        plain["weights"] = check_weights(plain["weights"], x, p).tolist()
    if plain.get("schema") is not None:
        schema = read_schema(plain["schema"])
        if schema.columns != x[0].numel():
            raise InputError(f"the schema describes {schema.columns} columns, but the samples have {x[0].numel()}.")
        plain["schema"] = schema.as_dict()
    subspace = plain.get("subspace")
    if isinstance(subspace, Subspace):
        raise InputError(
            f"a run names its subspace, which it cannot do for {subspace.name!r} as an object.",
            hint="give a text (band:1/8, random:50, resolution:4, channel:0) or an orthonormal basis (d, m).",
        )
    if isinstance(subspace, str):
        read_subspace(subspace, x.shape[1:])
    return plain


def refuse_proof(knobs: Mapping[str, Any]) -> None:
    """An error where certificates would be about another question than the attack's.

    >>> refuse_proof({"weights": [1.0, 2.0]})
    Traceback (most recent call last):
    ...
    deepfool.errors.InputError: certificates do not go with weights: what is proved holds for all directions, in the
    plain norm. Hint: leave certify out.
    """
    for name in UNPROVED:
        if knobs.get(name) is not None:
            raise InputError(
                f"certificates do not go with {name}: what is proved holds for all directions, in the plain norm.",
                hint="leave certify out.",
            )


def read_weights(text: str) -> list[float]:
    """Weights as `--weights` takes them: numbers, or a file with numbers (.npy, .json or text).

    >>> read_weights("1,0.5,2")
    [1.0, 0.5, 2.0]
    """
    path = Path(text)
    if path.is_file():
        try:
            if path.suffix == ".npy":
                return [float(each) for each in np.load(path, allow_pickle=False).reshape(-1).tolist()]
            written = path.read_text(encoding="utf-8")
            if path.suffix == ".json":
                return [float(each) for each in json.loads(written)]
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"{path} holds no list of weights: {error}") from error
    elif re.fullmatch(r"[-+.,\d\seE]+", text):
        written = text
    else:
        raise InputError(f"there is no file of weights {text!r:.80}.", hint="or numbers: --weights 1,0.5,2.")
    try:
        return [float(each) for each in re.split(r"[,\s]+", written.strip())]
    except ValueError:
        raise InputError(f"weights must be numbers such as 1,0.5,2, got {written!r:.80}.") from None
