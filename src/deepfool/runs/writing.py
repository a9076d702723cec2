"""Writing a run folder: only one process does it, and what it has written survives a kill."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import filelock
import numpy as np
import safetensors.numpy

from deepfool.errors import RunError
from deepfool.runs import manifests
from deepfool.runs.records import MANIFEST, RECORDS, SHARDS, Ledger, read_groups, read_manifest, shard_path
from deepfool.runs.rows import Bools, Group, Ints, Row, encode_row, find_fault

LOCK = ".lock"

DERIVED = ("audit.json", "gallery.safetensors", "report.html")
"""Files that are made from the rows of a complete run."""

_LEFTOVER = f".{MANIFEST}.partial"
"""A manifest that was being written when the process was killed."""

_SHARD = re.compile(r"r-\d{9,}\.safetensors|\.r-\d{9,}\.safetensors\.partial")
"""The files this module writes into `SHARDS`, finished or not."""


class RunWriter:
    """Writes a run: opens the folder, repairs it, appends rows, closes it.

    `on_row` is called with each row that exists already when the run is opened.
    """

    def __init__(
        self,
        folder: Path,
        identity: Mapping[str, Any],
        *,
        selection: Ints,
        story: Mapping[str, Any],
        session: Mapping[str, Any],
        on_row: Callable[[Row], None] = lambda _: None,
    ) -> None:
        self.folder = folder
        self.rows = 0
        self._identity = identity
        self._selection = selection
        self._ledger = Ledger(folder / RECORDS, selection)
        self._story = story
        self._session = dict(session)
        self._on_row = on_row
        self._lock = filelock.FileLock(folder / LOCK, timeout=0)
        self._stream: Any = None
        self._end = 0

    @property
    def done(self) -> Bools:
        """By index: which samples have a row."""
        return self._ledger.done

    def __enter__(self) -> RunWriter:
        try:
            _refuse_foreign(self.folder)  # before anything is touched
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        except filelock.Timeout:
            raise RunError(
                f"another process is writing to {self.folder}.", hint="wait for it, or choose another folder."
            ) from None
        except (OSError, NotImplementedError) as error:
            raise unwritable(self.folder, error) from error
        try:
            self._open()
        except BaseException:
            self._close()
            raise
        return self

    def _open(self) -> None:
        try:
            self._manifest = self._find_manifest()
            (self.folder / _LEFTOVER).unlink(missing_ok=True)
            self._repair()
            self._session["rows_before"] = self.rows
            self._manifest["sessions"].append(self._session)
            self._write_manifest()
            self._stream = (self.folder / RECORDS).open("ab", buffering=0)
        except OSError as error:
            raise unwritable(self.folder, error) from error

    def _find_manifest(self) -> dict[str, Any]:
        """The manifest in the folder, if it is of this run or a shorter one; a new one if there is none, or no rows."""
        new = {
            "format": manifests.FORMAT, "identity": dict(self._identity), "samples": len(self._selection),
            **self._story, "sessions": [],
        }  # fmt: skip
        if not (self.folder / MANIFEST).exists():
            return new
        there = read_manifest(self.folder)
        # The written one went through JSON, so the new one must too before they are compared.
        lines = manifests.differences(there["identity"], json.loads(json.dumps(self._identity)))
        if not lines:
            return there
        if next(read_groups(self.folder / RECORDS), None) is None:
            return new
        if manifests.continues(there["identity"], self._identity):
            return self._extend(there)
        raise _refuse_other(self.folder, there, self._identity, lines)

    def _extend(self, there: Mapping[str, Any]) -> dict[str, Any]:
        """The manifest of the run in the folder with more samples; the session says what was there before."""
        self._session["extended"] = {
            "indices_before": there["identity"]["indices"], "samples_before": there["samples"],
            "samples": len(self._selection),
        }  # fmt: skip
        for name in DERIVED:  # they describe the shorter run, and are made again when this one is complete
            (self.folder / name).unlink(missing_ok=True)
        return {**there, "identity": dict(self._identity), "samples": len(self._selection)}

    def _repair(self) -> None:
        """Cut off an unfinished batch at the end, and delete perturbations without rows."""
        heads: set[str] = set()
        for group, end in read_groups(self.folder / RECORDS):
            heads.add(shard_path(self.folder, group).name)
            for row in group:
                self._ledger.take(row["index"])
                self._on_row(row)
            self.rows += len(group)
            self._end = end
        if (self.folder / RECORDS).exists():
            os.truncate(self.folder / RECORDS, self._end)
        for shard in (self.folder / SHARDS).glob("*"):
            if shard.name not in heads and _SHARD.fullmatch(shard.name) and shard.is_file():
                shard.unlink()

    def append(self, group: Group) -> None:
        """Write a batch so that it survives a kill: perturbations first, then rows."""
        rows = [{**row, "batch": len(group.rows)} for row in group.rows]
        for row in rows:
            if fault := find_fault(row):
                raise RunError(f"the attack gave a row for sample {row.get('index')} that is not valid: {fault}.")
        lines = b"".join(map(encode_row, rows))
        try:
            if group.r is not None:
                (self.folder / SHARDS).mkdir(exist_ok=True)
                index = np.array([row["index"] for row in group.rows], np.int64)
                shard = safetensors.numpy.save({"r": np.ascontiguousarray(group.r), "index": index})
                _write_whole(shard_path(self.folder, group.rows), shard)
            write_all(self._stream, lines)
        except OSError as error:
            with suppress(OSError):  # if this fails too, it is cut off when the run is resumed
                os.truncate(self.folder / RECORDS, self._end)
            raise unwritable(self.folder, error) from error
        self._end += len(lines)
        for row in rows:
            self._ledger.take(row["index"])
        self.rows += len(group.rows)

    def note(self, **facts: Any) -> None:
        """Add facts about this session to the manifest."""
        self._session.update(facts)
        self._write_manifest()

    def _write_manifest(self) -> None:
        text = json.dumps(self._manifest, indent=1, allow_nan=False)
        try:
            _write_whole(self.folder / MANIFEST, text.encode())
        except OSError as error:
            raise unwritable(self.folder, error) from error

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._lock.release()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()


def _refuse_other(
    folder: Path, there: Mapping[str, Any], identity: Mapping[str, Any], lines: Sequence[str]
) -> RunError:
    """The error for a folder that holds another run: how it differs, and what to do."""
    if manifests.continues(identity, there["identity"]):
        return RunError(
            f"{folder} holds this run with {there['samples']} samples already; "
            f"{manifests.count_indices(identity['indices'])} were asked for.",
            hint="a run can get more samples, not fewer: give at least as many, or choose another folder (--out).",
        )
    return RunError(
        f"{folder} holds another run:\n" + "\n".join(f"  {line}" for line in lines) + "\n",
        hint="choose another folder (--out), or rerun the command that started this run.",
    )


def _refuse_foreign(folder: Path) -> None:
    """Refuse a folder that is neither empty nor a run: its files belong to somebody else.

    A process that was killed at the very start leaves only its lock and an unfinished manifest.
    """
    if not folder.is_dir():
        return
    there = set(os.listdir(folder))
    if MANIFEST in there:
        read_manifest(folder)  # an error if it is not of a run
        return
    if RECORDS in there:
        raise RunError(
            f"{folder} has {RECORDS} but no {MANIFEST}: what was measured is unknown.",
            hint="choose another --out.",
        )
    own = {_LEFTOVER, LOCK}
    if LOCK in there and (folder / LOCK).stat().st_size:
        own.remove(LOCK)  # ours are empty
    if foreign := sorted(there - own):
        raise RunError(
            f"{folder} is not a run and not empty: it holds {foreign[0]!r}.",
            hint="choose a new folder, or an empty one (--out).",
        )


def write_all(stream: Any, content: bytes) -> None:
    """Write every byte and flush it to disk; an unbuffered write may write only a part."""
    view = memoryview(content)
    while view:
        view = view[stream.write(view) :]
    os.fsync(stream.fileno())


def _write_whole(path: Path, content: bytes) -> None:
    """Write a file in full or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb", buffering=0) as stream:
            write_all(stream, content)
        partial.replace(path)
    except OSError:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def unwritable(place: Path, error: Exception) -> RunError:
    """The error for a folder or file that cannot be written."""
    why = getattr(error, "strerror", None) or error
    return RunError(
        f"{place} cannot be written: {why}.",
        hint="finished samples are kept: free some space or choose another folder, then rerun the command to resume.",
    )
