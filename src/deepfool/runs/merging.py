"""Several runs on different samples of the same data, joined into one."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deepfool.errors import RunError
from deepfool.runs import manifests
from deepfool.runs.records import MANIFEST, RECORDS, SHARDS, Run, shard_path
from deepfool.runs.rows import encode_row
from deepfool.runs.writing import unwritable


def merge(runs: Sequence[Run], out: str | Path) -> Run:
    """Join runs on different samples of the same data into one run.

    Incomplete runs can be merged too; the result can be resumed like any other run.

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
            raise RunError(f"{run.folder} cannot be merged with {runs[0].folder}, because they differ:\n{told}")
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
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise unwritable(out, error) from error
    try:
        _fill_merged(partial, runs, manifest)
        partial.replace(out)
    except OSError as error:
        raise unwritable(out, error) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Run(out)


def _fill_merged(folder: Path, runs: Sequence[Run], manifest: Mapping[str, Any]) -> None:
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1, allow_nan=False))
    with (folder / RECORDS).open("wb") as stream:
        for run in runs:
            for group in run.groups():
                stream.writelines(encode_row(row) for row in group)
                if manifest["identity"]["perturbations"]:
                    (folder / SHARDS).mkdir(exist_ok=True)
                    shutil.copyfile(shard_path(run.folder, group), shard_path(folder, group))
