"""The results behind a page, in one file beside it: a page can be made again, or a part of it measured anew, where the
folder that the results were written to is gone.

The file maps the path of each result to what stands in it, a line each. Numbers are kept to six digits.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = "results"
DIGITS = 6


def pack(work: Path, file: Path) -> None:
    """Write all results under `work` to one file."""
    found = {path.relative_to(work).as_posix(): json.loads(path.read_text()) for path in work.rglob("*.json")}
    lines = [f"{json.dumps(path)}: {json.dumps(_rounded(found[path]))}" for path in sorted(found)]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def unpack(file: Path, work: Path, unless: Callable[[Any], bool] = lambda result: False) -> None:
    """Put the results of such a file under `work`, where they are missing; `unless` says which ones to leave out."""
    for path, result in json.loads(file.read_text()).items() if file.exists() else ():
        if not (work / path).exists() and not unless(result):
            (work / path).parent.mkdir(parents=True, exist_ok=True)
            (work / path).write_text(json.dumps(result))


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return {key: _rounded(each) for key, each in value.items()} if isinstance(value, dict) else value
