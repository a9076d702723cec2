"""A row: what was measured for one sample. Its checks, and the rows as columns.

A row has `index`, `label` (the predicted class, which the attack leaves), `true_label` (null if unknown), `adv_label`,
`status`, `iterations`, `r_p` and `x_p` (the norms of r and x, in the norm of the attack), `r_l1`, `r_l2`, `r_linf`,
`x_l1`, `x_l2`, `x_linf`, `forwards`, `backwards`, `seconds` (its share of the time of its batch), `batch` (the size of
that batch), and `reason` if it was not fooled or the attack has a remark. A row that was fooled also has `evidence`
(what it was found by: gradients, repaired, scores or decisions) and `converged` (true or false); rows of older runs
have neither, and theirs is unknown. JSON has no infinity: the norms of r are null where no perturbation was found.
Rows that were certified also have `proof` and `lower`; see `deepfool.runs.proofs`.
"""

from __future__ import annotations

import json
import math
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from deepfool.attacks.shared.registry import ATTACKS, END_WITH_THE_FIRST
from deepfool.outcomes import Evidence, Status
from deepfool.runs.proofs import PROOFS, find_wrong_proof, join, read_lower

Row = dict[str, Any]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.signedinteger[Any]]]
"""Whole numbers; columns of a large run have 4 bytes each where that is enough."""
Bools = np.ndarray[Any, np.dtype[np.bool_]]

NORMS = ("p", "l1", "l2", "linf")
"""The norms in a row; "p" is the norm of the attack."""

TIMING = ("seconds", "proof_seconds")
"""What differs every time a run is repeated."""


@dataclass(frozen=True)
class Group:
    """The rows of one batch, with their perturbations if those are stored."""

    rows: Sequence[Row]
    r: np.ndarray[Any, Any] | None = None


@dataclass(frozen=True)
class Records:
    """The rows as columns, for the metrics.

    >>> row = {"index": 3, "label": 7, "adv_label": 9, "status": "FOOLED", "r_p": 1.0, "x_p": 10.0}
    >>> records = Records.of([row, {"index": 4, "label": 1, "status": "STUCK", "x_p": 8.0}], p=2)
    >>> len(records), records.ratio("p").tolist(), records.censored.tolist()
    (2, [0.1, inf], [False, True])
    """

    index: Ints
    label: Ints
    true_label: Ints
    """-1 if unknown."""
    adv_label: Ints
    status: Ints
    iterations: Ints
    forwards: Ints
    backwards: Ints
    evidence: Ints
    """An `Evidence`; -1 if unknown, as in older runs, or not fooled."""
    converged: Ints
    """1 if the search had converged, 0 if not; -1 if unknown, or not fooled."""
    proof: Ints
    """A `Proof`; -1 if the sample was not certified."""
    seconds: Floats
    proof_seconds: Floats
    lower: Floats
    """No smaller perturbation changes the decision, in the norm of the attack: 0 where nothing is proved, infinite
    where none at all does."""
    proof_upper: Floats
    """The perturbation that the proof found where it is smaller than the attack's, which stays in `r`; infinite
    elsewhere."""
    r: dict[str, Floats]
    """The norms of r by name (`NORMS`); infinite where no perturbation was found."""
    x: dict[str, Floats]
    p: float
    reason: Ints
    """The place of the reason in `reasons`; -1 if the row gives none."""
    reasons: tuple[str, ...] = ()

    @staticmethod
    def of(rows: Iterable[Row], p: float) -> Records:
        """Columns from rows; a row may leave out fields that are not needed."""
        columns: dict[str, array[Any]] = {name: array("q" if name in WHOLE else "d") for name in (*WHOLE, *REAL)}
        status, evidence, proof = columns["status"], columns["evidence"], columns["proof"]
        reasons: dict[str, int] = {}
        # Look these up once, not for each of a million rows.
        fill: list[tuple[str, float, Callable[[Any], None]]] = [
            (name, (WHOLE | REAL)[name], column.append) for name, column in columns.items() if name not in _TRANSLATED
        ]
        for row in rows:
            status.append(STATUS[row["status"]])
            evidence.append(EVIDENCE.get(row.get("evidence", ""), -1))
            proof.append(PROOFS.get(row.get("proof", ""), -1))
            columns["reason"].append(reasons.setdefault(row["reason"], len(reasons)) if row.get("reason") else -1)
            columns["lower"].append(read_lower(row))
            for name, default, append in fill:
                value = row.get(name)
                append(default if value is None else value)
        return Records.of_columns({name: np.frombuffer(each, each.typecode) if len(each) else np.zeros(0, each.typecode)
                                   for name, each in columns.items()}, p, tuple(reasons))  # fmt: skip

    @staticmethod
    def of_columns(columns: Mapping[str, Any], p: float, reasons: tuple[str, ...]) -> Records:
        """From the arrays that `columns` gives."""
        own = {name: columns[name] for name in (*WHOLE, *REAL) if name[:2] not in ("r_", "x_")}
        r, x = ({norm: columns[f"{side}_{norm}"] for norm in NORMS} for side in "rx")
        return Records(**own, r=r, x=x, p=p, reasons=reasons)

    @property
    def columns(self) -> dict[str, Any]:
        """All arrays by name."""
        norms = {f"{side}_{norm}": getattr(self, side)[norm] for side in "rx" for norm in NORMS}
        return {name: norms[name] if name in norms else getattr(self, name) for name in (*WHOLE, *REAL)}

    def __len__(self) -> int:
        return len(self.index)

    @property
    def fooled(self) -> Bools:
        return np.asarray(self.status == Status.FOOLED)

    @property
    def censored(self) -> Bools:
        """The search failed: the distance is unknown."""
        return np.asarray((self.status == Status.STUCK) | (self.status == Status.EXHAUSTED))

    @property
    def misclassified(self) -> Bools:
        """Misclassified before the attack, if the true label is known."""
        return np.asarray(
            ((self.true_label >= 0) & (self.true_label != self.label)) | (self.status == Status.MISCLASSIFIED)
        )

    @property
    def certified(self) -> Bools:
        """Certificates were asked for; `proof` says what they gave."""
        return np.asarray(self.proof >= 0)

    @property
    def upper(self) -> Floats:
        """The smallest perturbation that is known, in the norm of the attack: the attack's, or one of the proof."""
        return np.minimum(self.r["p"], self.proof_upper)

    def ratio(self, norm: str = "p") -> Floats:
        """||r|| / ||x|| per sample; infinite if no perturbation was found, NaN if x is zero."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = self.r[norm] / self.x[norm]
        return np.where(self.x[norm] > 0, ratios, math.nan)

    def pick(self, chosen: Bools | Ints) -> Records:
        """Some of the rows; these records themselves if a mask chooses all of them."""
        if chosen.dtype == np.bool_ and chosen.all():
            return self
        taken: dict[int, Any] = {}  # each column once: a run in l2 has the same one as r["p"] and r["l2"]
        columns = self.columns
        for column in columns.values():
            if id(column) not in taken:
                taken[id(column)] = _take(column, chosen)
        picked = {name: taken[id(column)] for name, column in columns.items()}
        return Records.of_columns(picked, self.p, self.reasons)

    def count_reasons(self, chosen: Bools) -> dict[str, int]:
        """How often each reason is given in some of the rows, the most common first; "" for rows without one.

        >>> rows = [{"status": "STUCK", "reason": "flat"}, {"status": "STUCK"}, {"status": "STUCK", "reason": "flat"}]
        >>> records = Records.of(rows, p=2)
        >>> records.count_reasons(records.censored)
        {'flat': 2, '': 1}
        """
        counts = np.bincount(self.reason[chosen] + 1, minlength=1)
        order = sorted(np.flatnonzero(counts).tolist(), key=lambda code: (-counts[code], code))
        return {("", *self.reasons)[code]: int(counts[code]) for code in order}


def _take(column: Any, chosen: Bools | Ints) -> Any:
    """Part of a column; one that holds a single number everywhere stays as small as it is."""
    if column.strides == (0,) and len(column):
        count = int(chosen.sum()) if chosen.dtype == np.bool_ else len(chosen)
        return np.broadcast_to(column[:1], (count,))
    return column[chosen]


def join_columns(records: Records, proofs: Mapping[int, Row]) -> Records:
    """Records sorted by index, with the better of their own certificates and those of `proofs`, which are by index.

    >>> row = {"index": 3, "status": "FOOLED", "r_p": 2.0}
    >>> join_columns(Records.of([row], p=2), {3: {"index": 3, "proof": "CERTIFIED", "lower": 1.5}}).lower.tolist()
    [1.5]
    """
    if not proofs:
        return records
    columns, names = records.columns, {code: name for name, code in PROOFS.items()}
    new = {name: np.array(columns[name]) for name in ("proof", "lower", "proof_seconds", "proof_upper")}
    for index, other in proofs.items():
        i = int(np.searchsorted(records.index, index))
        if i == len(records) or records.index[i] != index:
            continue
        row: Row = {"r_p": _finite(records.r["p"][i])}
        if records.proof[i] >= 0:
            row |= {"proof": names[int(records.proof[i])], "lower": _finite(records.lower[i])}
            known = {"proof_seconds": records.proof_seconds[i], "proof_upper": records.proof_upper[i]}
            row |= {name: float(value) for name, value in known.items() if np.isfinite(value)}
        joined = join(row, other)
        new["proof"][i], new["lower"][i] = PROOFS[joined["proof"]], read_lower(joined)
        for name in ("proof_seconds", "proof_upper"):
            new[name][i] = joined.get(name, REAL[name])
    return Records.of_columns(columns | new, records.p, records.reasons)


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def says_convergence(attack: str, records: Records) -> bool:
    """Whether `converged` means something in rows of this attack.

    It does not for attacks that end with their first answer, in older runs, and if an attack of your own left it out.

    >>> rows = [{"status": "FOOLED", "converged": False}]
    >>> [says_convergence(name, Records.of(rows, p=2)) for name in ("smallest", "deepfool", "my:attack")]
    [True, False, False]
    """
    if attack in END_WITH_THE_FIRST:
        return False
    return bool((records.converged >= (0 if attack in ATTACKS else 1)).any())


STATUS = {status.name: int(status) for status in Status}
EVIDENCE = {evidence.name.lower(): int(evidence) for evidence in Evidence}
WHOLE = {
    "index": 0, "label": -1, "true_label": -1, "adv_label": -1, "status": 0, "iterations": 0, "forwards": 0,
    "backwards": 0, "evidence": -1, "converged": -1, "proof": -1, "reason": -1,
}  # fmt: skip
"""The columns of whole numbers, and what stands where a row has none."""
REAL = {
    "seconds": math.nan, "proof_seconds": math.nan, "lower": 0.0, "proof_upper": math.inf,
    **{f"r_{norm}": math.inf for norm in NORMS}, **{f"x_{norm}": math.nan for norm in NORMS},
}  # fmt: skip
"""The other columns."""
_TRANSLATED = ("status", "evidence", "proof", "reason", "lower")
"""The columns that do not hold what the row says as it is."""


COUNTS = ("index", "label", "iterations", "forwards", "backwards", "batch")
R_NORMS = tuple(f"r_{name}" for name in NORMS)
SIZES = (*(f"x_{name}" for name in NORMS), "seconds")
_NUMBERS = (float, int)  # not bool, which isinstance would accept as an int
_LARGEST, _LARGEST_REAL = 2**63 - 1, sys.float_info.max  # JSON has whole numbers beyond both


def find_fault(row: Any) -> str:
    """What is wrong with a row; an empty text if nothing is. Simple tests only: it is called a million times."""
    if type(row) is not dict:
        return "it is not a row"
    try:
        for name in COUNTS:
            value = row[name]
            if type(value) is not int or not 0 <= value <= _LARGEST:
                return f"{name} must be a whole number >= 0, got {value!r:.40}"
        for name in SIZES:
            value = row[name]
            if type(value) not in _NUMBERS or not 0 <= value <= _LARGEST_REAL:
                return f"{name} must be a finite number >= 0, got {value!r:.40}"
        return _find_wrong_word(row) or _find_wrong_outcome(row) or (find_wrong_proof(row) if "proof" in row else "")
    except KeyError as error:
        return f"it has no {error.args[0]}"


def _find_wrong_word(row: Row) -> str:
    true_label, adv_label = row["true_label"], row["adv_label"]
    if true_label is not None and (type(true_label) is not int or not 0 <= true_label <= _LARGEST):
        return f"true_label must be a whole number >= 0 or null, got {true_label!r:.40}"
    if type(row.get("reason", "")) is not str:
        return f"reason must be a text, got {row['reason']!r:.40}"
    if "evidence" in row and (type(row["evidence"]) is not str or row["evidence"] not in EVIDENCE):
        return f"evidence must be one of {', '.join(EVIDENCE)}, got {row['evidence']!r:.40}"
    if type(row.get("converged", False)) is not bool:
        return f"converged must be true or false, got {row['converged']!r:.40}"
    if type(adv_label) is not int or not -1 <= adv_label <= _LARGEST:
        return f"adv_label must be a whole number, got {adv_label!r:.40}"
    return ""


def _find_wrong_outcome(row: Row) -> str:
    """There are norms of r if, and only if, a perturbation was found."""
    status = row["status"]
    if type(status) is not str or status not in STATUS:
        return f"status must be one of {', '.join(STATUS)}, got {status!r:.40}"
    for name in R_NORMS:
        value = row[name]
        if value is None:
            if status == "FOOLED":
                return f"{name} must be a finite number >= 0 where the status is FOOLED, got null"
        elif status in ("STUCK", "EXHAUSTED"):
            return f"{name} must be null where the status is {status}, got {value!r:.40}"
        elif type(value) not in _NUMBERS or not 0 <= value <= _LARGEST_REAL:
            return f"{name} must be a finite number >= 0, got {value!r:.40}"
    if status == "FOOLED" and row["adv_label"] < 0:
        return "adv_label must be a whole number >= 0 where the status is FOOLED"
    return ""


def refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not a number in JSON")


_DECODER = json.JSONDecoder(parse_constant=refuse_constant)  # made once: json.loads would make one for each row


def encode_row(row: Mapping[str, Any]) -> bytes:
    """A row as a line of the records file."""
    return json.dumps(row, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def decode_row(line: bytes) -> Row:
    """A row from a line of the records file; a ValueError if it is not a valid row."""
    row: Row = _DECODER.decode(line.decode())
    if fault := find_fault(row):
        raise ValueError(fault)
    return row
