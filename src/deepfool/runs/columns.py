"""A records file as columns, fast: blocks of rows are decoded and checked together.

The checks are those of `deepfool.runs.rows.find_fault`, on arrays. A block that is unusual in any way, damaged or only
written by another hand, is refused (`UnusualRowsError`), and the caller reads row by row, which says what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from deepfool.outcomes import Status
from deepfool.runs.rows import (
    COUNTS,
    EVIDENCE,
    R_NORMS,
    REAL,
    SIZES,
    STATUS,
    WHOLE,
    Bools,
    Ints,
    Records,
    Row,
    find_fault,
    refuse_constant,
)

AT_ONCE = 2**21
"""Bytes that are decoded together: few enough that the rows of a block, as dictionaries, stay in a few megabytes."""

TOGETHER = 32
"""Blocks that are joined early: the memory of many small arrays is not given back, that of a few large ones is."""

Column = np.ndarray[Any, Any]


class UnusualRowsError(ValueError):
    """These rows have to be read one by one."""


@dataclass(frozen=True)
class Part:
    """The finished batches of a records file, from some offset on."""

    records: Records
    end: int
    """The offset of their end."""
    read: int
    """The offset up to which the file was read: the lines of an unfinished batch may follow."""


@dataclass(frozen=True)
class Decoded:
    """Rows as columns, with what else is known of them: `batch`, and the offset of the `end` of each."""

    columns: dict[str, Column]
    reasons: tuple[str, ...]


def read_part(path: Path, p: float, start: int = 0, see: Callable[[bytes], None] = lambda _: None) -> Part:
    """The finished batches from `start` on, where a batch begins; `see` gets all that is read, in its order.

    An `UnusualRowsError` if they have to be read one by one.
    """
    return finish(decode(path, start, see), p, start)


def decode(path: Path, start: int, see: Callable[[bytes], None], stop: int | None = None) -> Decoded:
    """All rows from `start` on, or up to `stop`; each is the offset of a line."""
    parts: list[dict[str, Column]] = []
    blocks: list[dict[str, Column]] = []
    reasons: dict[str, int] = {}
    for rows, ends in _read_blocks(path, start, see, stop):
        proved = any("proof" in row or "lower" in row or "proof_upper" in row or "proof_seconds" in row for row in rows)
        block = (_read_proved if proved else _read_usual)(rows, reasons) | {"end": ends}
        blocks.append({name: shrink(column) for name, column in block.items()})
        if len(blocks) == TOGETHER:
            parts.append(_join_blocks(blocks))
            blocks = []
    whole = _join_blocks([*parts, _join_blocks(blocks)] if blocks or not parts else parts)
    return Decoded(whole, tuple(reasons))


def finish(found: Decoded, p: float, start: int) -> Part:
    """The finished batches of what was decoded from `start` on."""
    whole = dict(found.columns)
    ends, kept = whole.pop("end"), _count_finished(whole.pop("batch"))
    records = Records.of_columns(whole, p, found.reasons)
    records = records if kept == len(records) else records.pick(np.arange(kept))
    return Part(records, int(ends[kept - 1]) if kept else start, int(ends[-1]) if len(ends) else start)


def _join_blocks(blocks: Sequence[dict[str, Column]]) -> dict[str, Column]:
    return {name: join([block.pop(name) for block in blocks]) for name in (*WHOLE, *REAL, "batch", "end")}


def join(parts: Sequence[Column]) -> Column:
    """Columns one after another, as small as they get.

    >>> join([np.zeros(2, np.int64), np.array([7])]).tolist(), join([]).tolist()
    ([0, 0, 7], [])
    """
    return shrink(np.concatenate([*parts]) if parts else np.zeros(0, np.int64))


def shrink(column: Column) -> Column:
    """The same numbers in less memory: one that is everywhere takes the place of one, whole numbers 4 bytes each.

    >>> small = shrink(np.full(1000, 2**40))
    >>> small.strides, shrink(np.arange(3)).dtype.name, small[999].item() == 2**40
    ((0,), 'int32', True)
    """
    if not len(column):
        return column
    bits = column if column.dtype.kind == "i" else column.view(np.int64)  # NaN is not equal to itself
    if column.strides == (0,) or (bits == bits[0]).all():
        return np.broadcast_to(column[:1], column.shape)
    if column.dtype == np.int64 and column.min() >= -(2**31) and column.max() < 2**31:
        return column.astype(np.int32)
    return column


def _count_finished(batch: Column) -> int:
    """How many rows are in finished batches: the last one may lack some."""
    if not len(batch):
        return 0
    if batch.min() < 1:
        raise UnusualRowsError
    starts = np.flatnonzero(np.diff(batch, prepend=0))  # a stretch of batches of one size
    lacking = np.diff(starts, append=len(batch)) % batch[starts]
    if lacking[:-1].any():
        raise UnusualRowsError
    return len(batch) - int(lacking[-1])


def _read_blocks(
    path: Path, start: int, see: Callable[[bytes], None], stop: int | None
) -> Iterator[tuple[list[Row], Ints]]:
    """Rows, and the offset of the end of each. A line that is cut off at the end of the file is left out."""
    with path.open("rb") as stream:
        stream.seek(start)
        while lines := stream.readlines(AT_ONCE) if stop is None else _read_up_to(stream, stop):
            if not lines[-1].endswith(b"\n"):
                lines.pop()
            see(b"".join(lines))
            try:
                rows = _decode(lines)
            except (ValueError, RecursionError) as error:
                raise UnusualRowsError from error
            if rows:
                ends = start + np.cumsum([len(line) for line in lines], dtype=np.int64)
                yield rows, ends
                start = int(ends[-1])


def _read_up_to(stream: BinaryIO, stop: int) -> list[bytes]:
    """The next lines up to `stop`, where a line ends: `readlines` would take one more."""
    left = stop - stream.tell()
    block = stream.read(min(AT_ONCE, left))
    return BytesIO(block if len(block) == left else block + stream.readline()).readlines()


def _decode(lines: Sequence[bytes]) -> list[Row]:
    """A row per line. As one list they are decoded faster, if no value of a row can reach into the next line."""
    text = b",".join(lines).decode("ascii")
    flat = "[" not in text and text.count("{") == len(lines) and all(line[:1] == b"{" for line in lines)
    rows: list[Row]
    if flat:
        rows = _DECODER.decode(f"[{text}]")
    else:  # a reason may have brackets
        rows = [_DECODER.decode(line.decode("ascii")) for line in lines]
    if len(rows) != len(lines) or any(type(row) is not dict for row in rows):
        raise UnusualRowsError
    return rows


_DECODER = json.JSONDecoder(parse_constant=refuse_constant)


def _read_proved(rows: Sequence[Row], reasons: dict[str, int]) -> dict[str, Column]:
    """Rows with certificates, one by one: proving them took far longer."""
    if any(map(find_fault, rows)):
        raise UnusualRowsError
    found = Records.of(rows, 0.0)
    codes = np.array([*(reasons.setdefault(each, len(reasons)) for each in found.reasons), -1])
    return {**found.columns, "reason": codes[found.reason], "batch": np.array([row["batch"] for row in rows])}


def _read_usual(rows: Sequence[Row], reasons: dict[str, int]) -> dict[str, Column]:
    try:
        texts = dict(zip(_NEEDED, zip(*map(_GET, rows), strict=True), strict=True))
        found = {name: _read_whole(texts[name], 0) for name in COUNTS}
        found |= {name: _read_real(texts[name]) for name in SIZES}
        found |= {"adv_label": _read_whole(texts["adv_label"], -1), "true_label": _read_label(texts["true_label"])}
        found["status"] = _translate(texts["status"], STATUS)
        for name in R_NORMS:
            found[name] = _read_norm(texts[name], found["status"])
        _require((found["status"] != Status.FOOLED) | (found["adv_label"] >= 0))
        found["evidence"] = _translate([row.get("evidence", _ABSENT) for row in rows], _EVIDENCE)
        found["converged"] = _translate([row.get("converged", _ABSENT) for row in rows], _CONVERGED)
        found["reason"] = _read_reasons([row.get("reason", "") for row in rows], reasons)
    except (KeyError, TypeError, OverflowError) as error:
        raise UnusualRowsError from error
    unproved = ("lower", "proof", "proof_seconds", "proof_upper")
    return found | {name: np.full(len(rows), (WHOLE | REAL)[name]) for name in unproved}


_NEEDED = (*COUNTS, *SIZES, "adv_label", "true_label", "status", *R_NORMS)
_GET = itemgetter(*_NEEDED)
_ABSENT = object()
_EVIDENCE: dict[Any, int] = {**EVIDENCE, _ABSENT: -1}
_CONVERGED: dict[Any, int] = {_ABSENT: -1, False: 0, True: 1}
_NONE = type(None)


def _require(holds: Bools) -> None:
    if not holds.all():
        raise UnusualRowsError


def _check_types(values: Sequence[Any], *types: type) -> None:
    if not set(map(type, values)).issubset(types):
        raise UnusualRowsError


def _read_whole(values: Sequence[Any], least: int) -> Column:
    _check_types(values, int)
    found = np.array(values, np.int64)
    _require(found >= least)
    return found


def _read_label(values: Sequence[Any]) -> Column:
    """Whole numbers >= 0, and -1 for null."""
    if None not in values:
        return _read_whole(values, 0)
    _read_whole([value for value in values if value is not None], 0)
    return np.array([-1 if value is None else value for value in values], np.int64)


def _read_real(values: Sequence[Any]) -> Column:
    _check_types(values, float, int)
    found = np.array(values, np.float64)
    _require((found >= 0) & np.isfinite(found))
    return found


def _read_norm(values: Sequence[Any], status: Column) -> Column:
    """Infinite for null, which stands where no perturbation was found and nowhere else."""
    _check_types(values, float, int, _NONE)
    found = np.array(values, np.float64)  # null as NaN, which JSON does not have
    none = np.isnan(found)
    _require(none | ((found >= 0) & np.isfinite(found)))
    _require(np.where(none, status != Status.FOOLED, (status == Status.FOOLED) | (status == Status.MISCLASSIFIED)))
    found[none] = np.inf
    return found


def _translate(values: Sequence[Any], codes: Mapping[Any, int]) -> Column:
    _check_types(values, str, bool, object)  # 1 == True, but JSON tells them apart
    return np.array([codes[value] for value in values], np.int64)


def _read_reasons(values: Sequence[Any], codes: dict[str, int]) -> Column:
    _check_types(values, str)
    if not any(values):
        return np.full(len(values), -1)
    return np.array([codes.setdefault(value, len(codes)) if value else -1 for value in values], np.int64)
