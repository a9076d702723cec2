"""RECORDS: a run is a folder, and everything after the measurement reads only that folder.

    manifest.json          what was measured (see `deepfool.runs.manifests`)
    records.jsonl          one row per sample, in the order in which batches were finished
    perturbations/         r itself, a safetensors file per batch, when it was asked for

A row has `index`, `label` (predicted, the one to leave), `true_label` (null where unknown), `adv_label`, `status`,
`iterations`, `r_p` and `x_p` (the norms of r and of x in the norm of the attack), `r_l1`, `r_l2`, `r_linf`, `x_l1`,
`x_l2`, `x_linf`, `forwards`, `backwards`, `seconds` (its share of the time of its batch), `batch`, and `reason` where
it was not fooled, or where the attack has a remark. JSON has no infinity: the norms of r are null where no perturbation
was found. Rows are checked when they are read: one that is not well-typed, names a sample that is not part of the run,
or one that has a row already, is damage, and an error.

`batch` is the number of samples that were attacked and written together, so the file says by itself where a batch
ends. A process that dies leaves at most one unfinished batch at the end of the file; it is cut off when the run is
opened to go on, and measured again in the same company as in an unbroken run.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import filelock
import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from deepfool.runs import manifests
from deepfool.attacks.shared.adversarial import Status
from deepfool.attacks.shared.arguments import check_path
from deepfool.attacks.shared.registry import ATTACKS
from deepfool.errors import InputError, RunError

Row = dict[str, Any]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

MANIFEST = "manifest.json"
RECORDS = "records.jsonl"
SHARDS = "perturbations"
LOCK = ".lock"

NORMS = ("p", "l1", "l2", "linf")
"""The norms that rows hold; "p" is the one of the attack."""

TIMING = ("seconds",)
"""What differs from run to run, by nature."""

_LEFTOVER = f".{MANIFEST}.partial"
"""A manifest that was being written when the process was killed."""

_SHARD = re.compile(r"r-\d{9,}\.safetensors|\.r-\d{9,}\.safetensors\.partial")
"""What this module writes into `SHARDS`, finished or not."""

_GO_ON = "what was measured is kept: make room or choose another folder, and give the same command to go on."


@dataclass(frozen=True)
class Group:
    """The rows of one batch, with their perturbations where those are kept."""

    rows: Sequence[Row]
    r: np.ndarray[Any, Any] | None = None


@dataclass(frozen=True)
class Records:
    """The rows as columns, which is what metrics are made of.

    >>> row = {"index": 3, "label": 7, "adv_label": 9, "status": "FOOLED", "r_p": 1.0, "x_p": 10.0}
    >>> records = Records.of([row, {"index": 4, "label": 1, "status": "STUCK", "x_p": 8.0}], p=2)
    >>> len(records), records.ratio("p").tolist(), records.censored.tolist()
    (2, [0.1, inf], [False, True])
    """

    index: Ints
    label: Ints
    true_label: Ints
    """-1 where unknown."""
    adv_label: Ints
    status: Ints
    iterations: Ints
    forwards: Ints
    backwards: Ints
    seconds: Floats
    r: dict[str, Floats]
    """The norms of r by name (`NORMS`); infinite where no perturbation was found."""
    x: dict[str, Floats]
    p: float

    @staticmethod
    def of(rows: Iterable[Row], p: float) -> Records:
        """Columns out of rows; a row may leave out what is not needed."""
        whole = {name: array("q") for name in _WHOLE}
        real = {f"{side}_{norm}": array("d") for side in "rx" for norm in NORMS} | {"seconds": array("d")}
        status = whole["status"]
        # What is looked up once is not looked up for each of a million rows.
        fill: list[tuple[str, float, Callable[[Any], None]]] = [
            (name, _WHOLE[name], column.append) for name, column in whole.items() if column is not status
        ]
        fill += [(name, math.inf if name.startswith("r_") else math.nan, real[name].append) for name in real]
        for row in rows:
            status.append(_CODES[row["status"]])
            for name, default, append in fill:
                value = row.get(name)
                append(default if value is None else value)
        ints = {name: np.array(column, np.int64) for name, column in whole.items()}
        floats = {name: np.array(column, np.float64) for name, column in real.items()}
        return Records(
            **ints,
            seconds=floats["seconds"],
            r={norm: floats[f"r_{norm}"] for norm in NORMS},
            x={norm: floats[f"x_{norm}"] for norm in NORMS},
            p=p,
        )

    def __len__(self) -> int:
        return len(self.index)

    @property
    def fooled(self) -> Bools:
        return np.asarray(self.status == Status.FOOLED)

    @property
    def censored(self) -> Bools:
        """Searched without success: the distance is not known to be small, and not known to be large."""
        return np.asarray((self.status == Status.STUCK) | (self.status == Status.EXHAUSTED))

    @property
    def misclassified(self) -> Bools:
        """Wrong to begin with, where the true label is known."""
        return np.asarray(
            ((self.true_label >= 0) & (self.true_label != self.label)) | (self.status == Status.MISCLASSIFIED)
        )

    def ratio(self, norm: str = "p") -> Floats:
        """||r|| / ||x|| per sample; infinite where nothing was found, NaN where x is zero."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = self.r[norm] / self.x[norm]
        return np.where(self.x[norm] > 0, ratios, math.nan)

    def pick(self, chosen: Bools | Ints) -> Records:
        """Some of the rows."""
        return Records(
            **{name: getattr(self, name)[chosen] for name in (*_WHOLE, "seconds")},
            r={norm: column[chosen] for norm, column in self.r.items()},
            x={norm: column[chosen] for norm, column in self.x.items()},
            p=self.p,
        )


_CODES = {status.name: int(status) for status in Status}
_WHOLE = {
    "index": 0, "label": -1, "true_label": -1, "adv_label": -1, "status": 0, "iterations": 0, "forwards": 0,
    "backwards": 0,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Run:
    """A run folder, for reading. A batch that is still being written is not seen.

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
    def expected(self) -> int:
        """How many rows the run has when it is complete."""
        return int(self.manifest["samples"])

    @property
    def selection(self) -> Ints:
        """The samples that the run is about."""
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
        """Whether every sample has its row."""
        return self.count == self.expected

    @property
    def count(self) -> int:
        """How many rows there are by now."""
        return sum(len(group) for group in self.groups())

    def groups(self) -> Iterator[list[Row]]:
        """The rows of each finished batch, checked to be rows of this run, each sample once at most."""
        ledger = _Ledger(self.folder / RECORDS, self.selection)
        for group, _ in read_groups(self.folder / RECORDS):
            for row in group:
                ledger.take(row["index"])
            yield group

    def rows(self) -> Iterator[Row]:
        """The rows, one after the other, as they stand in the file."""
        for group in self.groups():
            yield from group

    def records(self) -> Records:
        """All rows as columns, sorted by index."""
        found = Records.of(self.rows(), self.p)
        return found.pick(np.argsort(found.index, kind="stable"))

    def perturbations(self) -> Iterator[tuple[list[Row], np.ndarray[Any, Any]]]:
        """The rows of each batch with their perturbations."""
        if not self.identity["perturbations"]:
            raise RunError(
                f"{self.folder} holds no perturbations.", hint="measure with --save-perturbations to keep them."
            )
        for group in self.groups():
            yield group, read_shard(self.folder, group)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a run folder, or an error that says why there is none."""
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


def refuse_code(run: Run, part: str) -> None:
    """Refuse the model, or the attack, of a run if it is code that somebody's manifest names.

    A run folder may come from anywhere, and to import a module is to run it. Every reader that would build the model
    of a run (`py:package.module:factory`) or find its attack (`module:function`) asks here first, unless its caller
    has allowed it.
    """
    if part == "model":
        about = run.manifest["model"]
        code = next((str(about[key]) for key in ("spec", "arch") if str(about[key] or "").startswith("py:")), None)
    else:
        name = str(run.identity["attack"]["name"])
        code = name if name not in ATTACKS else None
    if code is not None:
        raise RunError(
            f"the {part} is code ({code}), named by {run.folder / MANIFEST}, which is not run unasked.",
            hint="if you trust it, --run-code (may_run_code=True in Python) allows it.",
        )


def read_groups(path: Path) -> Iterator[tuple[list[Row], int]]:
    """The finished batches of a records file, each with the offset at which it ends.

    What follows the last finished batch is left alone; damage before it is an error. Whether the samples are those of
    the run is for the caller to check, who knows which ones they are.
    """
    if not path.exists():
        return
    group: list[Row] = []
    end = 0
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if not line.endswith(b"\n"):
                return  # torn: only ever the last one
            end += len(line)
            try:
                row = _DECODER.decode(line.decode())
                if fault := _find_fault(row):
                    raise ValueError(fault)
                size = row["batch"]
                if group and group[0]["batch"] != size:
                    raise ValueError("it begins a batch inside another one")
            except (ValueError, RecursionError) as error:
                raise RunError(
                    f"{path}, line {number} is damaged: {error}.",
                    hint="cut the file off before the batch that holds that line, and give the same command to go on.",
                ) from error
            group.append(row)
            if len(group) == size:
                yield group, end
                group = []


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not a number in JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)  # made once: json.loads would make one for each row


_COUNTS = ("index", "label", "iterations", "forwards", "backwards", "batch")
_R_NORMS = tuple(f"r_{name}" for name in NORMS)
_SIZES = (*(f"x_{name}" for name in NORMS), "seconds")
_NUMBERS = (float, int)  # and not bool, which isinstance would take for a number
_LARGEST, _INFINITY = 2**63 - 1, math.inf


def _find_fault(row: Any) -> str:
    """What is wrong with a row by itself; an empty text if nothing is. Plain tests: it is asked a million times."""
    if type(row) is not dict:
        return "it is not a row"
    try:
        for name in _COUNTS:
            value = row[name]
            if type(value) is not int or not 0 <= value <= _LARGEST:
                return f"{name} must be a whole number >= 0, got {value!r:.40}"
        for name in _SIZES:
            value = row[name]
            if type(value) not in _NUMBERS or not 0 <= value < _INFINITY:
                return f"{name} must be a finite number >= 0, got {value!r:.40}"
        return _find_wrong_word(row) or _find_wrong_outcome(row)
    except KeyError as error:
        return f"it has no {error.args[0]}"


def _find_wrong_word(row: Row) -> str:
    true_label, adv_label = row["true_label"], row["adv_label"]
    if true_label is not None and (type(true_label) is not int or not 0 <= true_label <= _LARGEST):
        return f"true_label must be a whole number >= 0 or null, got {true_label!r:.40}"
    if type(row.get("reason", "")) is not str:
        return f"reason must be a text, got {row['reason']!r:.40}"
    if type(adv_label) is not int or not -1 <= adv_label <= _LARGEST:
        return f"adv_label must be a whole number, got {adv_label!r:.40}"
    return ""


def _find_wrong_outcome(row: Row) -> str:
    """A norm of r belongs to a perturbation that was found, and to no other."""
    status = row["status"]
    if type(status) is not str or status not in _CODES:
        return f"status must be one of {', '.join(_CODES)}, got {status!r:.40}"
    for name in _R_NORMS:
        value = row[name]
        if value is None:
            if status == "FOOLED":
                return f"{name} must be a finite number >= 0 where the status is FOOLED, got null"
        elif status in ("STUCK", "EXHAUSTED"):
            return f"{name} must be null where the status is {status}, got {value!r:.40}"
        elif type(value) not in _NUMBERS or not 0 <= value < _INFINITY:
            return f"{name} must be a finite number >= 0, got {value!r:.40}"
    if status == "FOOLED" and row["adv_label"] < 0:
        return "adv_label must be a whole number >= 0 where the status is FOOLED"
    return ""


class _Ledger:
    """Which samples a run is about, and which of them have their row."""

    def __init__(self, place: Path, selection: Ints) -> None:
        self._place = place
        self._marks = bytearray(int(selection.max(initial=-1)) + 1)  # quicker than an array, one by one
        self._seen = np.frombuffer(self._marks, np.uint8)
        self._seen[selection] = _WANTED

    @property
    def done(self) -> Bools:
        """By index: which samples have their row."""
        return np.asarray(self._seen == _DONE)

    def take(self, index: int) -> None:
        """Note the row of a sample; raises if it is not one of the run's, or has a row."""
        mark = self._marks[index] if index < len(self._marks) else 0
        if mark != _WANTED:
            why = "twice" if mark == _DONE else "which is not part of this run"
            raise RunError(f"{self._place} is damaged: it holds sample {index}{' ' if mark else ', '}{why}.")
        self._marks[index] = _DONE


_WANTED, _DONE = 1, 2


def read_shard(folder: Path, group: Sequence[Row]) -> np.ndarray[Any, Any]:
    """The perturbations of one batch, checked to be those of its rows."""
    path = _shard_path(folder, group)
    try:
        found = safetensors.numpy.load_file(path)
        index, r = found["index"], found["r"]
    except (OSError, KeyError, SafetensorError) as error:
        raise RunError(f"{path} cannot be read: {error}.") from error
    if index.tolist() != [row["index"] for row in group] or len(r) != len(index):
        raise RunError(f"{path} does not hold the samples that {RECORDS} says it does.")
    return r


def _shard_path(folder: Path, group: Sequence[Row]) -> Path:
    """A sample has one row, so its index names the batch that it heads."""
    return folder / SHARDS / f"r-{group[0]['index']:09d}.safetensors"


class RunWriter:
    """The one process that writes a run: opened, repaired, appended to, closed.

    `on_row` is given each row that is there already when the run is opened.
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
        self._ledger = _Ledger(folder / RECORDS, selection)
        self._story = story
        self._session = dict(session)
        self._on_row = on_row
        self._lock = filelock.FileLock(folder / LOCK, timeout=0)
        self._stream: Any = None
        self._end = 0

    @property
    def done(self) -> Bools:
        """By index: which samples have their row."""
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
            raise _unwritable(self.folder, error) from error
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
            raise _unwritable(self.folder, error) from error

    def _find_manifest(self) -> dict[str, Any]:
        """The manifest of the run that is here, if it is this one; a new one if there is none, or none to lose."""
        new = {
            "format": manifests.FORMAT, "identity": dict(self._identity), "samples": len(self._selection),
            **self._story, "sessions": [],
        }  # fmt: skip
        if not (self.folder / MANIFEST).exists():
            return new
        there = read_manifest(self.folder)
        # What was written went through JSON; so must what it is compared with.
        lines = manifests.differences(there["identity"], json.loads(json.dumps(self._identity)))
        if lines and next(read_groups(self.folder / RECORDS), None) is not None:
            raise RunError(
                f"{self.folder} holds another run:\n" + "\n".join(f"  {line}" for line in lines) + "\n",
                hint="choose another folder (--out), or give the command that this run was started with.",
            )
        return new if lines else there

    def _repair(self) -> None:
        """Cut off the unfinished batch at the end, and drop perturbations without rows."""
        heads: set[str] = set()
        for group, end in read_groups(self.folder / RECORDS):
            heads.add(_shard_path(self.folder, group).name)
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
        """Write the rows of a batch so that they survive whatever comes next: perturbations first, then rows."""
        rows = [{**row, "batch": len(group.rows)} for row in group.rows]
        for row in rows:
            if fault := _find_fault(row):
                raise RunError(f"the attack gave a row for sample {row.get('index')} that cannot be kept: {fault}.")
        lines = b"".join(map(_encode, rows))
        try:
            if group.r is not None:
                (self.folder / SHARDS).mkdir(exist_ok=True)
                index = np.array([row["index"] for row in group.rows], np.int64)
                shard = safetensors.numpy.save({"r": np.ascontiguousarray(group.r), "index": index})
                _write_whole(_shard_path(self.folder, group.rows), shard)
            _write_all(self._stream, lines)
        except OSError as error:
            with suppress(OSError):  # if even this fails, the next opening will cut it off
                os.truncate(self.folder / RECORDS, self._end)
            raise _unwritable(self.folder, error) from error
        self._end += len(lines)
        for row in rows:
            self._ledger.take(row["index"])
        self.rows += len(group.rows)

    def note(self, **facts: Any) -> None:
        """Add facts to what the manifest says of this session."""
        self._session.update(facts)
        self._write_manifest()

    def _write_manifest(self) -> None:
        text = json.dumps(self._manifest, indent=1, allow_nan=False)
        try:
            _write_whole(self.folder / MANIFEST, text.encode())
        except OSError as error:
            raise _unwritable(self.folder, error) from error

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._lock.release()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()


def _refuse_foreign(folder: Path) -> None:
    """Refuse a folder that holds something and is not a run: what is in it is somebody else's.

    A process that was killed at the very start leaves its lock and a manifest that is not whole, and no more.
    """
    if not folder.is_dir():
        return
    there = set(os.listdir(folder))
    if MANIFEST in there:
        read_manifest(folder)  # that of a run, or an error
        return
    if RECORDS in there:
        raise RunError(
            f"{folder} has {RECORDS} but no {MANIFEST}: it cannot be told what was measured.",
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


def merge(runs: Sequence[Run], out: str | Path) -> Run:
    """Put runs on different samples of the same data together; the result is the run that measured all of them.

    Runs that are not complete can be merged too: the result then goes on like any other.

    >>> import tempfile, torch
    >>> from deepfool import evaluate
    >>> model, data = torch.nn.Linear(4, 3), (torch.rand(8, 4), torch.zeros(8, dtype=torch.long))
    >>> with tempfile.TemporaryDirectory() as here:
    ...     parts = [evaluate(model, data, out=f"{here}/{i}", shard=(i, 2)) for i in (1, 2)]
    ...     merge(parts, f"{here}/both").count
    8
    """
    out = Path(out)
    if out.exists():
        raise RunError(f"{out} exists already.", hint="choose a new folder.")
    if not runs:
        raise RunError("there is nothing to merge.")
    first = dict(runs[0].identity)
    seen: set[int] = set()
    for run in runs:
        if lines := manifests.differences(first | {"indices": ""}, dict(run.identity) | {"indices": ""}):
            told = "\n".join(f"  {line.replace('in the folder', 'there').replace('now', 'here')}" for line in lines)
            raise RunError(f"{run.folder} cannot be merged with {runs[0].folder}, they differ:\n{told}")
        indices = run.selection.tolist()
        if twice := seen.intersection(indices):
            raise RunError(
                f"{run.folder} measures samples that another run has, such as {min(twice)}.",
                hint="merge parts that do not overlap: --shard 1/2 and --shard 2/2.",
            )
        seen.update(indices)
    manifest = {
        **runs[0].manifest,
        "identity": first | {"indices": manifests.format_indices(sorted(seen))},
        "samples": len(seen),
        "sessions": [session for run in runs for session in run.manifest["sessions"]],
        "merged": [str(run.folder) for run in runs],
    }
    passing = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        passing.mkdir(parents=True)
    except OSError as error:
        raise _unwritable(out, error) from error
    try:
        _fill_merged(passing, runs, manifest)
        passing.replace(out)
    except OSError as error:
        raise _unwritable(out, error) from error
    finally:
        shutil.rmtree(passing, ignore_errors=True)
    return Run(out)


def _fill_merged(folder: Path, runs: Sequence[Run], manifest: Mapping[str, Any]) -> None:
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1, allow_nan=False))
    with (folder / RECORDS).open("wb") as stream:
        for run in runs:
            for group in run.groups():
                stream.writelines(_encode(row) for row in group)
                if manifest["identity"]["perturbations"]:
                    (folder / SHARDS).mkdir(exist_ok=True)
                    shutil.copyfile(_shard_path(run.folder, group), _shard_path(folder, group))


def _encode(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def _write_all(stream: Any, content: bytes) -> None:
    """Every byte, then down to the disk; an unbuffered write may take less than it is given."""
    view = memoryview(content)
    while view:
        view = view[stream.write(view) :]
    os.fsync(stream.fileno())


def _write_whole(path: Path, content: bytes) -> None:
    """A file that is there in full or not at all."""
    passing = path.with_name(f".{path.name}.partial")
    try:
        with passing.open("wb", buffering=0) as stream:
            _write_all(stream, content)
        passing.replace(path)
    except OSError:
        with suppress(OSError):
            passing.unlink(missing_ok=True)
        raise


def _unwritable(place: Path, error: Exception) -> RunError:
    why = getattr(error, "strerror", None) or error
    return RunError(f"{place} cannot be written: {why}.", hint=_GO_ON)
