"""RECORDS: a run is a folder, and everything after the measurement reads only that folder.

    manifest.json          what was measured (see `deepfool.runs.manifests`)
    records.jsonl          one row per sample (see `deepfool.runs.rows`), in the order in which batches finished
    perturbations/         r itself, one safetensors file per batch, if it was asked for
    certificates.jsonl     certificates that were added later (see `deepfool.runs.proofs`); the rows stay as they are
    columns.safetensors    the rows of a large run as columns, to read them faster (see `deepfool.runs.kept`)

Rows are checked when they are read. A row with a wrong type, a sample that is not part of the run, or a second row for
the same sample is an error.

`batch` is the number of samples that were attacked and written together, so the file itself shows where a batch ends.
A process that is killed leaves at most one unfinished batch at the end of the file. It is cut off when the run is
resumed, and re-run in the same batch as in an uninterrupted run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from deepfool.errors import InputError, RunError
from deepfool.runs import manifests
from deepfool.runs.columns import UnusualRowsError
from deepfool.runs.kept import read_records
from deepfool.runs.proofs import join, read_certificates
from deepfool.runs.rows import Bools, Ints, Records, Row, decode_row, join_columns
from deepfool.runs.weighing import find_weights
from deepfool.values import check_path

MANIFEST = "manifest.json"
RECORDS = "records.jsonl"
SHARDS = "perturbations"


@dataclass(frozen=True, eq=False)
class Run:
    """A run folder, for reading. A batch that is still being written is left out.

    >>> Run("no/such/folder")
    Traceback (most recent call last):
    ...
    deepfool.errors.RunError: no/such/folder is not a run: it has no manifest.json. Hint: ...
    """

    folder: Path
    manifest: Mapping[str, Any] = field(repr=False)

    def __init__(self, folder: str | Path) -> None:
        object.__setattr__(self, "folder", check_path(folder, "folder"))
        object.__setattr__(self, "manifest", read_manifest(self.folder))

    @property
    def identity(self) -> Mapping[str, Any]:
        """What the rows depend on."""
        identity: Mapping[str, Any] = self.manifest["identity"]
        return identity

    @property
    def p(self) -> float:
        """The norm of the attack."""
        return manifests.read_number(self.identity["p"])

    @property
    def unit(self) -> str:
        """What p = 0 counts, "feature" or "pixel"; empty where a norm was measured."""
        return str(self.identity["attack"]["knobs"].get("unit") or "feature") if self.p == 0 else ""

    @property
    def weighted(self) -> bool:
        """Whether features count differently in the norms."""
        return find_weights(self.identity["attack"]["knobs"]) is not None

    @property
    def norm(self) -> str:
        """The norm of the attack in words: l2, or weighted l2."""
        return f"{'weighted ' * self.weighted}l{self.p:g}"

    @property
    def expected(self) -> int:
        """How many rows the run has when it is complete."""
        return int(self.manifest["samples"])

    @property
    def selection(self) -> Ints:
        """The indices of the samples in the run."""
        try:
            chosen = manifests.parse_indices(self.identity["indices"], count=self.identity["data"]["samples"])
        except InputError as error:
            raise RunError(f"{self.folder / MANIFEST} is damaged: {error}") from error
        if len(chosen) != self.expected:
            raise RunError(
                f"{self.folder / MANIFEST} is damaged: it names {len(chosen)} samples and counts {self.expected}."
            )
        return chosen

    @property
    def complete(self) -> bool:
        """Whether every sample has a row."""
        return self.count == self.expected

    @property
    def count(self) -> int:
        """How many rows there are so far."""
        return len(self.records())

    def groups(self) -> Iterator[list[Row]]:
        """The rows of each finished batch, checked: samples of this run only, each at most once.

        They have what `certificates.jsonl` adds to them, if there is one.
        """
        ledger = Ledger(self.folder / RECORDS, self.selection)
        proofs = read_certificates(self.folder, self.identity)
        for group, _ in read_groups(self.folder / RECORDS):
            for row in group:
                ledger.take(row["index"])
            yield [join(row, proofs.get(row["index"])) for row in group] if proofs else group

    def rows(self) -> Iterator[Row]:
        """The rows, in the order of the file."""
        for group in self.groups():
            yield from group

    def records(self) -> Records:
        """All rows as columns, sorted by index."""
        try:
            found = read_records(self.folder / RECORDS, self.p)
            _check_samples(found.index, self.selection)
        except UnusualRowsError:  # one by one: slower, and an error says what is wrong where
            found = Records.of(self.rows(), self.p)
            return found.pick(np.argsort(found.index, kind="stable"))
        return join_columns(found, read_certificates(self.folder, self.identity))

    def perturbations(self) -> Iterator[tuple[list[Row], np.ndarray[Any, Any]]]:
        """The rows of each batch with their perturbations."""
        if not self.identity["perturbations"]:
            raise RunError(
                f"{self.folder} holds no perturbations.", hint="measure with --save-perturbations to store them."
            )
        for group in self.groups():
            yield group, read_shard(self.folder, group)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a run folder, or an error that says what is wrong with it."""
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise RunError(
            f"{folder} is not a run: it has no {MANIFEST}.", hint="`deepfool evaluate --out DIR` makes one."
        ) from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}.") from error
    if not isinstance(manifest, dict) or manifest.get("format") != manifests.FORMAT:
        got = manifest.get("format") if isinstance(manifest, dict) else None
        raise RunError(
            f"{path} has format {got!r}, expected {manifests.FORMAT}: another version of deepfool wrote it.",
            hint="measure again into another folder.",
        )
    if lacking := manifests.find_gap(manifest):
        raise RunError(f"{path} is damaged: {lacking}.")
    return manifest


def refuse_code(run: Run) -> None:
    """Refuse the model of a run if the manifest names code for it.

    A run folder may come from anywhere, and importing a module runs it. This is called before the model of a run
    (`py:package.module:factory`) is built, unless the user allowed that.
    """
    about = run.manifest["model"]
    code = next((str(about[key]) for key in ("spec", "arch") if str(about[key] or "").startswith("py:")), None)
    if code is not None:
        raise RunError(
            f"the model is code ({code}), named by {run.folder / MANIFEST}, which is not run without permission.",
            hint="if you trust it, use --run-code (may_run_code=True in Python).",
        )


def read_groups(path: Path) -> Iterator[tuple[list[Row], int]]:
    """The finished batches of a records file, each with the offset of its end.

    An unfinished batch at the end is ignored; any other damage is an error. The caller checks that the samples belong
    to the run.
    """
    if not path.exists():
        return
    group: list[Row] = []
    end = 0
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if not line.endswith(b"\n"):
                return  # cut off: only the last line can be
            end += len(line)
            try:
                row = decode_row(line)
                size = row["batch"]
                if group and group[0]["batch"] != size:
                    raise ValueError("it starts a batch inside another one")
            except (ValueError, RecursionError) as error:
                raise RunError(
                    f"{path}, line {number} is damaged: {error}.",
                    hint="cut the file off before the batch that holds that line, then rerun the command to resume.",
                ) from error
            group.append(row)
            if len(group) == size:
                yield group, end
                group = []


class Ledger:
    """The samples of a run, and which of them have a row."""

    def __init__(self, place: Path, selection: Ints) -> None:
        self._place = place
        self._marks = bytearray(int(selection.max(initial=-1)) + 1)  # faster than an array for single entries
        self._seen = np.frombuffer(self._marks, np.uint8)
        self._seen[selection] = _WANTED

    @property
    def done(self) -> Bools:
        """By index: which samples have a row."""
        return np.asarray(self._seen == _DONE)

    def take(self, index: int) -> None:
        """Mark a sample as done; an error if it is not part of the run, or done already."""
        mark = self._marks[index] if index < len(self._marks) else 0
        if mark != _WANTED:
            why = "twice" if mark == _DONE else "which is not part of this run"
            raise RunError(f"{self._place} is damaged: it holds sample {index}{' ' if mark else ', '}{why}.")
        self._marks[index] = _DONE


_WANTED, _DONE = 1, 2


def _check_samples(index: Ints, selection: Ints) -> None:
    """As a `Ledger`, for sorted indices: samples of the run only, each at most once."""
    wanted = np.zeros(int(selection.max(initial=-1)) + 2, bool)
    wanted[selection] = True
    if len(index) and (index[-1] >= len(wanted) or not wanted[index].all() or not (np.diff(index) > 0).all()):
        raise UnusualRowsError


def read_shard(folder: Path, group: Sequence[Row]) -> np.ndarray[Any, Any]:
    """The perturbations of one batch, checked to belong to its rows."""
    path = shard_path(folder, group)
    try:
        found = safetensors.numpy.load_file(path)
        index, r = found["index"], found["r"]
    except (OSError, KeyError, SafetensorError) as error:
        raise RunError(f"{path} cannot be read: {error}.") from error
    if index.tolist() != [row["index"] for row in group] or len(r) != len(index):
        raise RunError(f"{path} does not hold the samples that {RECORDS} lists.")
    return r


def shard_path(folder: Path, group: Sequence[Row]) -> Path:
    """The file of a batch, named by its first sample, which is in no other batch."""
    return folder / SHARDS / f"r-{group[0]['index']:09d}.safetensors"
