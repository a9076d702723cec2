"""Which images are used to find v, and which are kept out to judge it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from deepfool.datasets import Data
from deepfool.errors import InputError
from deepfool.values import check_count, check_optional_count

USUAL = 1000
"""Images to use, and images to judge on, where there are that many."""


@dataclass(frozen=True)
class Selection:
    """Two sets of images that have none in common."""

    data: Data
    used: list[int]
    test: Data
    held_out: list[int]
    twins: int
    """Images that were left out of the second set because the first holds the same picture."""


def select(data: Data, test: Data | None, *, used: int | None, held_out: int, seed: int) -> Selection:
    """Draw both sets at random. Of one data set, at most half is used unless a number is given.

    >>> from deepfool.datasets import load
    >>> found = select(load("mnist-sample"), None, used=None, held_out=100, seed=0)
    >>> len(found.used), len(found.held_out), set(found.used) & set(found.held_out)
    (500, 100, set())
    """
    used, held_out = check_optional_count(used, "used"), check_count(held_out, "held_out")
    order = _shuffle(len(data), seed)
    if test is None or test.fingerprint() == data.fingerprint():
        if len(data) < 2:
            raise InputError("at least two images are needed, one to find v and one to judge it.")
        if used is not None and used >= len(data):
            raise InputError(
                f"used must leave images to judge on, got {used} of {len(data)}.", hint="give test= other data."
            )
        count = min(USUAL, len(data) // 2) if used is None else used
        chosen, test, rest = order[:count], data, order[count:]
    else:
        chosen, rest = order[: used or USUAL], _shuffle(len(test), seed + 1)
    known = set(_hash(data, chosen))
    kept: list[int] = []
    twins = 0
    for start in range(0, len(rest), 500):  # hashed only as far as they are needed
        some = rest[start : start + 500]
        for index, digest in zip(some, _hash(test, some), strict=True):
            if digest in known:
                twins += 1
            elif len(kept) < held_out:
                kept.append(index)
        if len(kept) == held_out:
            break
    if not kept:
        raise InputError("every image to judge on was used to find v as well.", hint="give test= other data.")
    return Selection(data, chosen, test, kept, twins)


def _shuffle(count: int, seed: int) -> list[int]:
    found: list[int] = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    return found


def _hash(data: Data, indices: Sequence[int]) -> list[bytes]:
    """The content of each image, shortened; read in parts, so that large images fit in memory."""
    found = []
    for start in range(0, len(indices), 50):
        for x in data.batch(list(indices[start : start + 50])):
            found.append(hashlib.blake2b(x.contiguous().numpy().tobytes(), digest_size=16).digest())
    return found
