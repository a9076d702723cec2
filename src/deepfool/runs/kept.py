"""`columns.safetensors`: the columns of a large run, kept beside its records so that they are decoded only once.

It holds the rows up to some byte of `records.jsonl`, and the SHA-256 of the file up to there. It is used only if that
hash is still right, so it is never stale, whatever the clock or the size of the file says; rows that were appended
later are read and added. Its own content has a hash too: a file that was damaged is read no further than that. It may
be deleted at any time. What it holds can be read from the records; nothing that checks a run against its
perturbations (`deepfool verify`) reads it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from safetensors import SafetensorError

from deepfool import cache
from deepfool.errors import DataError
from deepfool.runs.columns import AT_ONCE, Column, Part, join
from deepfool.runs.halves import read_in_two
from deepfool.runs.rows import REAL, WHOLE, Records

COLUMNS = "columns.safetensors"

FROM = 20_000
"""So many rows are decoded in about 0.2 s, as fast as anyone asks for them: only more than that are kept."""

_FORMAT = 1
"""Increased when what is kept changes, or how rows are checked."""


def read_records(path: Path, p: float) -> Records:
    """All finished batches of a records file, sorted by index.

    An `UnusualRowsError` if they have to be read one by one.
    """
    if not path.exists():
        return Records.of((), p)
    beside = path.with_name(COLUMNS)
    there = _load(beside, path, p)
    known, digest = there or (Part(Records.of((), p), 0, 0), hashlib.sha256())
    more = read_in_two(path, p, known.end, digest.update)
    records = _sort(_append(known.records, more.records))
    if len(more.records) >= FROM:
        with suppress(DataError):  # a folder that cannot be written is decoded each time
            cache.write(beside, *_encode(Part(records, more.end, more.read), digest.hexdigest()))
    return records


def _sort(records: Records) -> Records:
    index = records.index
    return records if (index[1:] > index[:-1]).all() else records.pick(np.argsort(index, kind="stable"))


def _append(first: Records, then: Records) -> Records:
    """The rows of both, with one list of reasons."""
    if not len(first) or not len(then):
        return first if len(first) else then
    codes = {reason: code for code, reason in enumerate(first.reasons)}
    places = np.array([*(codes.setdefault(reason, len(codes)) for reason in then.reasons), -1])
    mine, theirs = first.columns, then.columns | {"reason": places[then.reason]}
    return Records.of_columns({name: join([mine[name], theirs[name]]) for name in mine}, first.p, tuple(codes))


def _encode(part: Part, read: str) -> list[Any]:
    """The file: each different column once, and a single number for a column that is the same everywhere.

    In parts, since `safetensors.numpy.save` would hold all of it in memory twice.
    """
    columns: dict[str, Column] = {}
    same: dict[str, str] = {}
    for name, column in part.records.columns.items():
        column = np.ascontiguousarray(column[:1] if column.strides == (0,) else column)
        twin = next((other for other, each in columns.items() if _are_same(each, column)), None)
        if twin is None:
            columns[name] = column
        else:
            same[name] = twin
    about = {
        "format": _FORMAT, "rows": len(part.records), "end": part.end, "read": part.read, "sha256": read,
        "reasons": part.records.reasons, "same": same, "columns": _hash_columns(columns),
    }  # fmt: skip
    order = sorted(columns, key=lambda name: -columns[name].itemsize)  # so that each begins at a multiple of its size
    header: dict[str, Any] = {"__metadata__": {"about": json.dumps(about)}}
    end = 0
    for name in order:
        start, end = end, end + columns[name].nbytes
        kind = f"{columns[name].dtype.kind.upper()}{8 * columns[name].itemsize}"
        header[name] = {"dtype": kind, "shape": list(columns[name].shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little"), text, *(columns[name].data for name in order)]


def _are_same(one: Column, other: Column) -> bool:
    bits = f"i{one.itemsize}"
    return one.dtype == other.dtype and np.array_equal(one.view(bits), other.view(bits))


def _hash_columns(columns: Mapping[str, Column]) -> str:
    digest = hashlib.sha256()
    for name in sorted(columns):
        digest.update(f"{name} {columns[name].dtype} {columns[name].shape};".encode())
        digest.update(columns[name].data)
    return digest.hexdigest()


def _load(path: Path, records: Path, p: float) -> tuple[Part, Any] | None:
    """What is kept, and the hash of the file up to the end of it; None if there is nothing of use."""
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            about = json.loads((file.metadata() or {})["about"])
            if about["format"] != _FORMAT:
                return None
            digest = _hash_up_to(records, about["end"], about["read"], about["sha256"])
            if digest is None:
                return None
            columns = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dictionary)
        if _hash_columns(columns) != about["columns"]:
            return None
        rows, reasons = about["rows"], tuple(map(str, about["reasons"]))
        whole = {name: _spread(columns[about["same"].get(name, name)], rows, name) for name in (*WHOLE, *REAL)}
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if rows and not -1 <= whole["reason"].min() <= whole["reason"].max() < len(reasons):
        return None
    return Part(Records.of_columns(whole, p, reasons), about["end"], about["read"]), digest


def _spread(column: Column, rows: int, name: str) -> Column:
    """A column at its full length, in a type it may have."""
    if column.dtype not in ((np.int32, np.int64) if name in WHOLE else (np.float64,)):
        raise ValueError(f"{name} has type {column.dtype}")
    if column.shape not in ((1,), (rows,)):
        raise ValueError(f"{name} has shape {column.shape}")
    return column if len(column) == rows else np.broadcast_to(column, (rows,))


def _hash_up_to(path: Path, end: int, read: int, wanted: str) -> Any:
    """The hash of a file up to `end`, to go on with; None if its first `read` bytes do not have the `wanted` hash."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        for place in (end, read):
            while block := stream.read(min(AT_ONCE, place - stream.tell())):
                digest.update(block)
            if stream.tell() != place:
                return None  # the file is shorter now
            if place == end:
                at_end = digest.copy()
    return at_end if digest.hexdigest() == wanted else None
