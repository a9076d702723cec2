"""The default folder of a run: its name holds what tells runs apart, and no two runs share one.

    runs/MODEL-DATA-ATTACK-pP[-bounds=0..1][-KNOB=VALUE ...][-seed=1] ...

What has its usual value is left out. So is the number of samples, because a run can be extended (`--limit`). A model or
data set without a name, such as a module in memory, is told apart by its hash. If the folder holds another run all the
same (the weights behind a name have changed, say), a short hash of the whole identity is added.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from deepfool.errors import RunError
from deepfool.models.zoo import ZOO
from deepfool.runs import manifests
from deepfool.runs.records import read_manifest

ROOT = Path("runs")
LONGEST_PART, LONGEST_NAME = 60, 200
"""In characters; file systems stop at 255 bytes, and some temporary files have longer names."""


def default_folder(
    identity: Mapping[str, Any],
    story: Mapping[str, Any],
    *,
    usual: Mapping[str, Any] | None = None,
    shard: tuple[int, int] | None = None,
    root: str | Path = ROOT,
) -> Path:
    """The folder for a run: the one it was started in, or a new one.

    Args:
        identity, story: what the rows depend on, and where model and data come from; as in the manifest.
        usual: the default values of the attack's knobs; those are left out of the name.
        shard: the i-th of n parts, if the run is one.
        root: the folder of all runs.

    >>> identity = {
    ...     "deepfool": "0.1.0", "model": {"sha256": "ab" * 32}, "data": {"sha256": "cd" * 32, "samples": 1000},
    ...     "indices": "0-99", "attack": {"name": "smallest", "knobs": {"budget": 50, "bounds": [0, 1]}}, "p": "inf",
    ...     "dtype": "float32", "seed": 0, "skip_misclassified": False, "perturbations": False,
    ... }
    >>> story = {
    ...     "model": {"spec": "lenet-mnist", "arch": None},
    ...     "data": {"spec": "mnist-sample", "name": "mnist-sample", "split": "test", "size": None},
    ... }
    >>> default_folder(identity, story, usual={"budget": 100, "bounds": None}, root="no/such/place").name
    'lenet-mnist-mnist-sample-smallest-pinf-bounds=0..1-budget=50'
    """
    name = name_run(identity, story, usual=usual or {}, shard=shard)
    for candidate in (name, f"{name}-{_hash(identity)}"):
        folder = Path(root) / candidate
        if may_hold(folder, identity):
            return folder
        if _holds_more(folder, identity):  # the same run with more samples
            return folder.with_name(f"{candidate}-first={manifests.count_indices(identity['indices'])}")
    raise RunError(
        f"{Path(root) / name} is taken by another run, and so is {folder.name}, which would tell this one apart.",
        hint="choose a folder with --out.",
    )


def may_hold(folder: Path, identity: Mapping[str, Any]) -> bool:
    """Whether a run can be written into a folder: it is new, or it holds this run or a shorter one that it extends."""
    there = _read_identity(folder)
    if there is not None:
        return manifests.continues(there, identity)
    # A process that was killed at the very start leaves hidden files only.
    return not folder.exists() or (folder.is_dir() and all(each.name.startswith(".") for each in folder.iterdir()))


def _holds_more(folder: Path, identity: Mapping[str, Any]) -> bool:
    there = _read_identity(folder)
    return there is not None and manifests.continues(identity, there)


def _read_identity(folder: Path) -> Mapping[str, Any] | None:
    try:
        identity: Mapping[str, Any] = read_manifest(folder)["identity"]
    except RunError:
        return None
    return identity


def name_run(
    identity: Mapping[str, Any],
    story: Mapping[str, Any],
    *,
    usual: Mapping[str, Any],
    shard: tuple[int, int] | None = None,
) -> str:
    """The name of a run, as text that is safe in a path."""
    parts = [_plain(part) for part in _list_parts(identity, story, usual, shard)]
    name = "-".join(parts)
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 9]}-{_hash(name)}"


def _list_parts(
    identity: Mapping[str, Any], story: Mapping[str, Any], usual: Mapping[str, Any], shard: tuple[int, int] | None
) -> Iterator[str]:
    model, data = story["model"], story["data"]
    if _is_named(str(model["spec"])):
        yield str(model["spec"])
    else:
        yield str(model["spec"]).rpartition(".")[2]
        yield str(identity["model"]["sha256"])[:8]
    if model.get("arch"):
        yield f"arch={model['arch']}"
    if data["spec"]:
        yield str(data["spec"])
    else:
        yield str(data["name"])
        yield str(identity["data"]["sha256"])[:8]
    if data["split"] != "test":
        yield str(data["split"])
    if data["size"]:
        yield f"size={data['size']}"
    yield str(identity["attack"]["name"])
    yield f"p{identity['p']:g}" if isinstance(identity["p"], float) else f"p{identity['p']}"
    knobs = identity["attack"]["knobs"]
    for knob in sorted(knobs, key=lambda knob: (knob != "bounds", knob)):
        if knob not in usual or knobs[knob] != manifests.describe_value(usual[knob]):
            yield f"{knob}={_write(knobs[knob])}"
    if identity["dtype"] != "float32":
        yield str(identity["dtype"])
    if identity["seed"]:
        yield f"seed={identity['seed']}"
    for switch in ("compile", "skip_misclassified", "perturbations"):
        if identity.get(switch):
            yield switch
    if shard is not None:
        yield f"{shard[0]}of{shard[1]}"
    elif not re.fullmatch(r"0(-\d+)?", str(identity["indices"])):  # otherwise a limit, which can be raised
        yield f"samples={identity['indices']}"


def _is_named(spec: str) -> bool:
    """Whether this is a spec and not the class of an object, which says little about the object."""
    return ":" in spec or spec in ZOO


def _write(value: Any) -> str:
    if isinstance(value, list) and len(value) == 2 and all(isinstance(each, int | float) for each in value):
        return f"{value[0]:g}..{value[1]:g}"
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _plain(part: str) -> str:
    """Without characters that a shell or a file system could mind; a long text is cut, and gets its hash.

    >>> _plain("npz:../some where/x.npz")
    'npz_.._some_where_x.npz'
    """
    plain = re.sub(r"[^\w.+=,-]+", "_", part).strip("_")
    return plain if len(plain) <= LONGEST_PART else f"{plain[: LONGEST_PART - 9]}~{_hash(part)}"


def _hash(value: str | Mapping[str, Any]) -> str:
    text = value if isinstance(value, str) else json.dumps({**value, "indices": ""}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]
