"""What `deepfool verify` found, kept in the run folder for the report and for gates."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from deepfool import cache
from deepfool.errors import DataError
from deepfool.runs.manifests import now
from deepfool.runs.records import RECORDS, Run

VERIFICATION = "verification.json"
"""In the run folder."""


def keep_verification(run: Run, found: Mapping[str, Any]) -> None:
    """Store an outcome in the run folder; a folder that cannot be written is not an error."""
    outcome = {
        "verified": now(), "model": run.identity["model"]["sha256"], "records": hash_records(run), **found,
    }  # fmt: skip
    with suppress(DataError):
        cache.write(run.folder / VERIFICATION, json.dumps(outcome, allow_nan=False).encode())


def read_verification(run: Run, rows: int) -> dict[str, Any] | None:
    """The result of `deepfool verify`, if it covers all current rows."""
    try:
        found: dict[str, Any] = json.loads((run.folder / VERIFICATION).read_bytes())
        fits = found["rows"] == rows and found["model"] == run.identity["model"]["sha256"]
        whole = {"trials", "fooled", "wrong_norms", "wrong_labels", "holds"} <= found.keys()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return found if fits and whole else None


def hash_records(run: Run) -> str | None:
    """The SHA-256 of the rows as they are stored; None if there are none."""
    path = run.folder / RECORDS
    if not path.exists():
        return None
    total = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(2**20):
            total.update(block)
    return total.hexdigest()
