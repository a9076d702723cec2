"""A large records file, decoded by two processes: this one takes the first half, a helper the second.

The helper only saves time. If it cannot be started, or fails at anything, its half is decoded here, which also says
what is wrong with a row.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np

from deepfool.runs.columns import AT_ONCE, Decoded, Part, UnusualRowsError, decode, finish, join, read_part

LARGE = 2**26
"""Bytes of rows from which on two processes are used: about 160,000 rows, which take 1.3 s to decode. A helper takes
0.4 s to start."""

_HELPER = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from deepfool.runs import halves; halves.help()"
"""Isolated from the folder it is started in and from the environment: it imports what this process would."""


def read_in_two(path: Path, p: float, start: int = 0, see: Callable[[bytes], None] = lambda _: None) -> Part:
    """As `read_part`, in about half the time where the file is large and there are two cores."""
    if path.stat().st_size - start < LARGE or count_cores() < 2:
        return read_part(path, p, start, see)
    middle = _find_middle(path, start)
    with TemporaryFile() as answer:
        helper = _start_helper(path, middle, answer)
        if helper is None:
            return read_part(path, p, start, see)
        with helper:
            try:
                first = decode(path, start, see, middle)
                helper.wait()
            except BaseException:
                helper.kill()
                raise
        if helper.returncode:
            second = decode(path, middle, see)
        else:
            second, read, digest = _load(answer)
            if _hash_between(path, middle, read, see) != digest:  # it changed in between
                raise UnusualRowsError
    return finish(_join(first, second), p, start)


def count_cores() -> int:
    """How many cores this process may use.

    >>> count_cores() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _find_middle(path: Path, start: int) -> int:
    """Where the second half of the lines begins."""
    with path.open("rb") as stream:
        stream.seek((start + path.stat().st_size) // 2)
        stream.readline()
        return stream.tell()


def _start_helper(path: Path, start: int, answer: IO[bytes]) -> subprocess.Popen[bytes] | None:
    """A process that decodes from `start` on; its answer goes to a file, which nobody has to hold in memory."""
    command = [sys.executable, "-I", "-c", _HELPER, json.dumps(sys.path), str(path.absolute()), str(start)]
    with suppress(OSError):
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=answer, stderr=subprocess.DEVNULL)
    return None


def help() -> None:
    """What the helper does: decode from an offset on, and hand the columns back."""
    digest = hashlib.sha256()
    path, start = Path(sys.argv[2]), int(sys.argv[3])
    _dump(decode(path, start, digest.update), start, digest, sys.stdout.buffer)


def _dump(found: Decoded, start: int, digest: Any, to: IO[bytes]) -> None:
    """As an archive of arrays; a column that is the same everywhere has one entry."""
    ends = found.columns["end"]
    read = int(ends[-1]) if len(ends) else start
    about = {"rows": len(ends), "read": read, "sha256": digest.hexdigest(), "reasons": found.reasons}
    small: dict[str, Any] = {
        name: column[:1] if column.strides == (0,) else column for name, column in found.columns.items()
    }
    np.savez(to, about=np.frombuffer(json.dumps(about).encode(), np.uint8), **small)


def _load(answer: IO[bytes]) -> tuple[Decoded, int, str]:
    """What was decoded, up to which offset, and the hash of what was read."""
    answer.seek(0)
    with np.load(answer) as file:
        columns = {name: file[name] for name in file.files}
    about = json.loads(columns.pop("about").tobytes())
    rows = about["rows"]
    whole = {name: each if len(each) == rows else np.broadcast_to(each, (rows,)) for name, each in columns.items()}
    return Decoded(whole, tuple(about["reasons"])), about["read"], about["sha256"]


def _hash_between(path: Path, start: int, stop: int, see: Callable[[bytes], None]) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        stream.seek(start)
        while block := stream.read(min(AT_ONCE, stop - stream.tell())):
            digest.update(block)
            see(block)
    return digest.hexdigest()


def _join(first: Decoded, second: Decoded) -> Decoded:
    """The rows of both, with one list of reasons."""
    codes = {reason: code for code, reason in enumerate(first.reasons)}
    places = np.array([*(codes.setdefault(reason, len(codes)) for reason in second.reasons), -1])
    second.columns["reason"] = places[second.columns["reason"]]
    # Each column is let go as soon as it is joined: memory for both and the whole is never needed at once.
    names = [*first.columns]
    return Decoded({name: join([first.columns.pop(name), second.columns.pop(name)]) for name in names}, tuple(codes))
