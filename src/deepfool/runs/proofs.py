"""What a certificate adds to a row: no perturbation smaller than `lower` changes the decision of that sample.

A row that was certified has `proof` (EXACT, CERTIFIED or NONE), `lower` (in the norm of the attack; null where no
perturbation at all changes the decision), `proof_seconds` (what it took), `proof_limit` (what it was allowed),
`proof_reason` where it is not exact, and `proof_upper` where the proof found a smaller perturbation than the attack.
The attack's own norms stay as they are: `proof_upper` stands beside them. A row without `proof` was not certified; its
lower bound is 0.

`evaluate(..., certify=SECONDS)` writes them into the rows (runs/proving.py). `certify_run` (runs/certifying.py) writes
them for rows that are there, into `certificates.jsonl` beside the records, which it leaves as they are; `Run` joins the
two.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from deepfool.errors import RunError, SoundnessError
from deepfool.outcomes import Proof

CERTIFICATES = "certificates.jsonl"
"""In the run folder: a line that says for which run, then one line per sample."""

KEYS = ("lower", "proof", "proof_limit", "proof_reason", "proof_seconds", "proof_upper")

EXACT = 1e-3
"""The two bounds meet if they differ by no more, relative to the upper one; as in `certify`."""

QUESTION = ("bounds", "mask", "target", "goal")
"""The knobs of an attack that say what is asked; `certify` takes them too."""

_NUMBERS = (float, int)  # not bool


def check_order(at_least: float, at_most: float, whose: str) -> None:
    """A lower bound above a perturbation that was found is a contradiction, and said to be.

    >>> check_order(2.0, 1.0, "sample 7")
    Traceback (most recent call last):
    ...
    deepfool.errors.SoundnessError: sample 7: the certified lower bound 2 is above a perturbation of 1 ...
    """
    if at_least > at_most * (1 + EXACT) + 1e-12:
        raise SoundnessError(
            f"{whose}: the certified lower bound {at_least:.6g} is above a perturbation of {at_most:.6g} that was "
            f"found. One of the two is wrong: this is a bug.",
            hint="please report it. Until then, do not use the certificates of this run.",
        )


def find_wrong_proof(row: Mapping[str, Any]) -> str:
    """What is wrong with the certificate in a row; an empty text if nothing is.

    >>> find_wrong_proof({"proof": "CERTIFIED", "lower": -1.0})
    'lower must be a finite number >= 0 or null, got -1.0'
    """
    if type(row["proof"]) is not str or row["proof"] not in PROOFS:
        return f"proof must be one of {', '.join(PROOFS)}, got {row['proof']!r:.40}"
    if type(row.get("proof_reason", "")) is not str:
        return f"proof_reason must be a text, got {row['proof_reason']!r:.40}"
    if row.get("lower", 0) is None and row["proof"] == Proof.NONE.name:
        return "lower must be a number where the proof is NONE, got null"
    for name in ("lower", "proof_seconds", "proof_limit", "proof_upper"):
        value = row.get(name, 0)
        if (type(value) not in _NUMBERS or not 0 <= value < math.inf) and not (value is None and name == "lower"):
            return f"{name} must be a finite number >= 0{' or null' if name == 'lower' else ''}, got {value!r:.40}"
    return ""


PROOFS = {proof.name: int(proof) for proof in Proof}


def read_lower(row: Mapping[str, Any]) -> float:
    """The lower bound of a row: 0 where there is none, infinite where no perturbation changes the decision.

    >>> read_lower({"proof": "EXACT", "lower": None}), read_lower({"status": "FOOLED"})
    (inf, 0.0)
    """
    if "proof" not in row:
        return 0.0
    value = row.get("lower", 0.0)
    return math.inf if value is None else float(value)


def join(row: dict[str, Any], other: Mapping[str, Any] | None) -> dict[str, Any]:
    """A row with the better of two certificates: the larger lower bound, and the smaller perturbation.

    >>> join({"index": 1, "proof": "NONE", "lower": 0.0}, {"index": 1, "proof": "CERTIFIED", "lower": 2.0})
    {'index': 1, 'proof': 'CERTIFIED', 'lower': 2.0}
    """
    if other is None:
        return row
    best = other if "proof" not in row or read_lower(other) > read_lower(row) else row
    joined = {key: value for key, value in row.items() if key not in KEYS}
    joined |= {key: best[key] for key in KEYS if key in best}
    for key, choose in (("proof_upper", min), ("proof_limit", max)):
        if values := [each[key] for each in (row, other) if key in each]:
            joined[key] = choose(values)
    known = min((each for each in (joined.get("r_p"), joined.get("proof_upper")) if each is not None), default=math.inf)
    if read_lower(joined) > 0 and read_lower(joined) >= (1 - EXACT) * known:
        joined["proof"] = Proof.EXACT.name
        joined.pop("proof_reason", None)
    return {key: joined[key] for key in dict.fromkeys((*row, *joined)) if key in joined}


def describe_question(identity: Mapping[str, Any]) -> dict[str, Any]:
    """What the certificates of a run depend on."""
    knobs = identity["attack"]["knobs"]
    # Without a goal it is left out: certificates from before there were goals are still those of their run.
    names = [name for name in (*QUESTION, "threshold", "outputs") if name != "goal" or knobs.get(name) is not None]
    return {
        "model": identity["model"]["sha256"], "data": identity["data"]["sha256"], "p": identity["p"],
        "dtype": identity["dtype"], "knobs": {name: knobs.get(name) for name in names},
    }  # fmt: skip


def read_certificates(folder: Path, identity: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """The certificates in `certificates.jsonl` by sample."""
    found: dict[int, dict[str, Any]] = {}
    for row, _ in _read_lines(folder / CERTIFICATES, identity):
        if "index" in row:
            index = row["index"]
            found[index] = join(found[index], row) if index in found else row
    return found


def find_end(folder: Path, identity: Mapping[str, Any]) -> int:
    """Where the last whole line of `certificates.jsonl` ends."""
    return max((end for _, end in _read_lines(folder / CERTIFICATES, identity)), default=0)


def _read_lines(path: Path, identity: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], int]]:
    """The lines, checked, and where each ends; one that is cut off at the end is left out."""
    if not path.exists():
        return
    asked = json.loads(json.dumps(describe_question(identity)))  # the written one went through JSON
    end = 0
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if not line.endswith(b"\n"):
                return
            end += len(line)
            try:
                row = json.loads(line)
                if fault := _find_fault(row, first=number == 1):
                    raise ValueError(fault)
            except (ValueError, RecursionError) as error:
                raise RunError(
                    f"{path}, line {number} is damaged: {error}.", hint="cut the file off before that line."
                ) from error
            if row.get("certificates", asked) != asked:
                raise RunError(
                    f"{path} belongs to another run: another model, data, norm or bounds.",
                    hint=f"move {path.name} away, and certify this run.",
                )
            yield row, end


def _find_fault(row: Any, *, first: bool) -> str:
    if type(row) is not dict or ("certificates" not in row and (first or type(row.get("index")) is not int)):
        return "it is out of place"
    if "certificates" in row:
        return ""
    return find_wrong_proof(row) if "proof" in row else "it has no proof"
