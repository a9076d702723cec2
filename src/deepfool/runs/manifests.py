"""The manifest of a run: its identity, which must be the same when the run is resumed, and its history.

`identity` holds everything that the rows depend on: the hashes of model and data, the samples, the attack with all its
knobs, the norm, the precision, the seed, the version of this package. The rest of a manifest says where model and data
came from, and lists the sessions: each time the run was started, on which machine, with which versions.

JSON has no infinity: in a manifest it is written as the text "inf" (p = inf is common); NaN as "nan".
"""

from __future__ import annotations

import json
import math
import os
import platform
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import numpy as np

from deepfool import __version__
from deepfool.errors import InputError
from deepfool.values import as_whole, check_count

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 1
"""Increased when the layout of a run folder changes."""


def describe_value(value: Any) -> Any:
    """A knob as JSON: plain values as they are, tensors by their hash, functions by their name.

    >>> describe_value({"p": math.inf, "bounds": (0, 1)})
    {'p': 'inf', 'bounds': [0, 1]}
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): describe_value(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [describe_value(each) for each in value]
    if isinstance(value, np.generic):
        return describe_value(value.item())
    import torch  # not at the top: manifests are read without it

    if isinstance(value, torch.Tensor | np.ndarray):
        return _describe_array(torch.as_tensor(value))
    if callable(value):
        return f"{getattr(value, '__module__', '?')}:{getattr(value, '__qualname__', type(value).__qualname__)}"
    raise InputError(f"a knob must be a plain value, a tensor or a function, got {type(value).__name__}.")


def _describe_array(value: Tensor) -> Any:
    if value.ndim == 0:
        return describe_value(value.item())
    from deepfool.datasets.data import hash_tensors

    return {"shape": list(value.shape), "sha256": hash_tensors(value)}


def read_number(value: Any) -> float:
    """A number from a manifest.

    >>> read_number("inf"), read_number(2)
    (inf, 2.0)
    """
    return float(value)


def format_indices(indices: Iterable[int]) -> str:
    """Indices as text, with consecutive ones joined, in the given order.

    >>> format_indices([0, 1, 2, 7, 9, 10])
    '0-2,7,9-10'
    """
    parts: list[str] = []
    start = last = None
    for index in map(int, indices):
        if last is not None and start is not None and index == last + 1:
            last = index
            continue
        if start is not None:
            parts.append(str(start) if start == last else f"{start}-{last}")
        start = last = index
    if start is not None:
        parts.append(str(start) if start == last else f"{start}-{last}")
    return ",".join(parts)


def parse_indices(text: str, *, count: int | None = None) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Indices from text such as `0-99,205`; with `count`, indices that are too large are refused.

    >>> parse_indices("0-2,7").tolist()
    [0, 1, 2, 7]
    >>> parse_indices("0-")
    Traceback (most recent call last):
    ...
    deepfool.errors.InputError: indices must look like 0-99,205, got '0-'.
    >>> parse_indices("0-99999999999", count=10)
    Traceback (most recent call last):
    ...
    deepfool.errors.InputError: indices must lie in 0..9, got 10.
    """
    parts: list[np.ndarray[Any, np.dtype[np.int64]]] = []
    for part in text.split(",") if text else []:
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        # At most 18 digits, which fit in an int64.
        whole = all(each.isdecimal() and len(each) <= 18 for each in (first, last))
        if not whole or int(last) < int(first):
            raise InputError(f"indices must look like 0-99,205, got {text!r:.80}.")
        start, stop = int(first), int(last) + 1
        if count is not None and stop > count:  # before a range too large for memory is created
            raise _outside(max(start, count), count)
        parts.append(np.arange(start, stop, dtype=np.int64))
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _outside(index: int, count: int) -> InputError:
    return InputError(f"indices must lie in 0..{count - 1}, got {index}.")


def select(
    count: int,
    *,
    limit: int | None = None,
    indices: Sequence[int] | str | None = None,
    shard: tuple[int, int] | None = None,
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Which of `count` samples to use: `indices` (or all), the first `limit` of them, and shard i of n of those.

    Shards are counted from 1. Each holds consecutive samples; together they cover the selection without overlap.

    >>> select(10, limit=7, shard=(2, 3)).tolist()
    [3, 4]
    """
    if indices is None:
        chosen = np.arange(count, dtype=np.int64)
    else:
        given = parse_indices(indices, count=count) if isinstance(indices, str) else _read_whole(indices, count)
        _, firsts = np.unique(given, return_index=True)
        chosen = given[np.sort(firsts)]  # each sample once, even if it is listed twice
    if limit is not None:
        chosen = chosen[: check_count(limit, "limit")]
    if shard is not None:
        i, n = _read_shard(shard)
        size, longer = divmod(len(chosen), n)  # the first shards have one more
        start = (i - 1) * size + min(i - 1, longer)
        chosen = chosen[start : start + size + (i <= longer)]
    if not len(chosen):
        raise InputError("no sample is left to measure.", hint=f"the data has {count} samples.")
    return chosen


def _read_shard(shard: Any) -> tuple[int, int]:
    whole = [as_whole(part) for part in shard] if isinstance(shard, tuple | list) else []
    if len(whole) != 2 or whole[0] is None or whole[1] is None or not 1 <= whole[0] <= whole[1]:
        shown = "/".join(map(str, shard)) if isinstance(shard, tuple | list) else shard
        raise InputError(f"a shard must be i/n with 1 <= i <= n, got {shown!s:.80}.")
    return whole[0], whole[1]


def _read_whole(indices: Sequence[int], count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Indices from a list or an array; fractions are refused, not rounded."""
    try:
        given = np.asarray(indices)
    except (TypeError, ValueError, RuntimeError):  # ragged, or on another device
        given = np.zeros((), object)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise InputError(f"indices must be a list of whole numbers, got {indices!r:.80}.")
    outside = given[(given < 0) | (given >= count)]
    if outside.size:
        raise _outside(int(outside[0]), count)
    return given.astype(np.int64)


_KINDS: dict[str, type | tuple[type, ...]] = {
    "identity.model.sha256": str, "identity.data.sha256": str, "identity.data.samples": int, "identity.indices": str,
    "identity.attack.name": str, "identity.attack.knobs": dict, "identity.p": (int, float, str),
    "identity.dtype": str, "identity.seed": int, "identity.perturbations": bool, "samples": int,
    "model.spec": (str, type(None)), "model.arch": (str, type(None)), "data.spec": (str, type(None)),
    "data.name": (str, type(None)), "data.split": str, "data.size": (int, type(None)), "data.classes": list,
    "sessions": list,
}  # fmt: skip
"""The entries that readers of a manifest need, and their types."""


def find_gap(manifest: Mapping[str, Any]) -> str:
    """What is missing or wrong in a manifest; an empty text if nothing is.

    >>> find_gap({"format": 1, "samples": "many"})
    'identity.model.sha256 is missing'
    """
    for place, kind in _KINDS.items():
        value: Any = manifest
        for key in place.split("."):
            if not isinstance(value, Mapping) or key not in value:
                return f"{place} is missing"
            value = value[key]
        if not isinstance(value, kind):
            return f"{place} is {value!r:.40}"
    try:
        read_number(manifest["identity"]["p"])
    except ValueError:
        return f"identity.p is {manifest['identity']['p']!r:.40}"
    return ""


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Where two identities differ, one line each.

    >>> differences({"seed": 0, "attack": {"name": "deepfool"}}, {"seed": 1, "attack": {"name": "deepfool"}})
    ['seed: 0 in the folder, 1 now']
    """
    old, new = dict(_flatten(there)), dict(_flatten(here))
    return [
        f"{key}: {_show(old, key)} in the folder, {_show(new, key)} now"
        for key in dict.fromkeys((*old, *new))
        if old.get(key) != new.get(key) or (key in old) != (key in new)
    ]


def continues(there: Mapping[str, Any], here: Mapping[str, Any]) -> bool:
    """Whether a run is the one in a folder, or that one with more samples after those it has.

    >>> continues({"seed": 0, "indices": "0-9"}, {"seed": 0, "indices": "0-99"})
    True
    >>> continues({"seed": 0, "indices": "0-9"}, {"seed": 1, "indices": "0-99"})
    False
    >>> continues({"seed": 0, "indices": "0-99"}, {"seed": 0, "indices": "0-9"})
    False
    """
    here = json.loads(json.dumps(here))  # the one in the folder went through JSON
    if differences({**there, "indices": ""}, {**here, "indices": ""}):
        return False
    if there["indices"] == here["indices"]:
        return True
    new = parse_indices(here["indices"])
    try:
        old = parse_indices(there["indices"], count=int(new.max(initial=-1)) + 1)
    except InputError:  # beyond the new ones
        return False
    return bool(np.array_equal(old, new[: len(old)]))


def count_indices(text: str) -> int:
    """How many samples some indices name.

    >>> count_indices("0-99,205")
    101
    """
    return len(parse_indices(text))


def _flatten(tree: Mapping[str, Any], above: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _show(flat: Mapping[str, Any], key: str) -> str:
    if key not in flat:
        return "nothing"
    text = str(flat[key])
    return text if len(text) <= 72 else f"{text[:69]}..."


def describe_session(**facts: Any) -> dict[str, Any]:
    """Where and how this session runs; facts from the caller (device, engine, ...) are added as they are.

    >>> sorted(describe_session(device="cpu"))[:3]
    ['command', 'cpus', 'deepfool']
    """
    import torch

    return {
        "started": now(),
        "command": shlex.join(sys.argv),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "deepfool": __version__,
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        **facts,
    }


def now() -> str:
    """The current time in UTC, to the second.

    >>> now()[-6:]
    '+00:00'
    """
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
