"""How a run was measured: settings, hashes, versions, and the command that repeats it."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from typing import Any

from deepfool.attacks.shared.aims import find_goal
from deepfool.metrics.setup import find_unusual
from deepfool.reporting.times import format_duration, format_moment
from deepfool.reporting.wording import name_norm
from deepfool.runs.records import Run
from deepfool.runs.verified import read_verification

__all__ = ["list_facts", "read_verification", "repeat_command"]


def repeat_command(run: Run) -> str | None:
    """The command that produces the same rows; None if the model or the data were objects in memory, or
    there is a schema, whose file is not known."""
    model, data, identity = run.manifest["model"], run.manifest["data"], run.identity
    spec = str(model["spec"])
    if data["spec"] is None or not _is_spec(spec) or identity["attack"]["knobs"].get("schema") is not None:
        return None
    words = ["deepfool", "evaluate", "--model", spec, "--data", str(data["spec"])]
    words += ["--attack", str(identity["attack"]["name"]), "--p", _plain(identity["p"])]
    if model["arch"]:
        words += ["--arch", str(model["arch"])]
    if data["split"] != "test":
        words += ["--split", str(data["split"])]
    if data["size"] is not None:
        words += ["--size", str(data["size"])]
    if (wanted := str(identity["indices"])) != f"0-{identity['data']['samples'] - 1}":
        words += ["--indices", wanted]
    words += _repeat_knobs(identity["attack"])
    if identity["dtype"] != "float32":
        words += ["--dtype", str(identity["dtype"])]
    if identity["seed"] != 0:
        words += ["--seed", str(identity["seed"])]
    words += ["--compile"] if identity.get("compile") else []
    words += ["--skip-misclassified"] if identity["skip_misclassified"] else []
    words += ["--save-perturbations"] if identity["perturbations"] else []
    return shlex.join(words)


def _is_spec(spec: str) -> bool:
    """Whether a model was given by name. For an object, the manifest has its class, such as package.module.Class."""
    return ":" in spec or "." not in spec


def _repeat_knobs(attack: Mapping[str, Any]) -> list[str]:
    """Options for the bounds, and for the knobs that differ from the attack's defaults."""
    bounds = attack["knobs"].get("bounds")
    words = ["--bounds", ",".join(_plain(each) for each in bounds)] if isinstance(bounds, list) else []
    if attack["knobs"].get("goal") is not None:
        words += ["--goal", str(attack["knobs"]["goal"])]
    for name, value in find_unusual(attack).items():
        if name == "goal":
            continue
        if name == "subspace" and isinstance(value, str):
            words += ["--subspace", value]
            continue
        if name == "weights":
            words += ["--weights", ",".join(map(repr, value))]
            continue
        words += ["--knob", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
    return words


def _plain(value: Any) -> str:
    number = float(value)
    return f"{number:g}" if math.isfinite(number) else str(number)


def list_facts(run: Run) -> list[tuple[str, str]]:
    """What the numbers depend on, then where and when they were measured."""
    identity, manifest = run.identity, run.manifest
    data = manifest["data"]
    skipped = "skipped" if identity["skip_misclassified"] else "measured from the predicted label"
    facts = [
        ("model", str(manifest["model"]["spec"])),
        ("model, SHA-256", str(identity["model"]["sha256"])),
        ("data", f"{data['name']}, split {data['split']}, samples {_shorten(str(identity['indices']))}"),
        ("data, SHA-256", str(identity["data"]["sha256"])),
        ("attack", str(identity["attack"]["name"])),
        ("norm", name_norm(run.p, run.unit, run.weighted)),
        *((f"knob {name}", _format_value(value)) for name, value in identity["attack"]["knobs"].items()),
        ("precision", str(identity["dtype"])),
        ("seed", str(identity["seed"])),
        *([("misclassified samples", skipped)] if find_goal(identity["attack"]["knobs"]).reads == "classes" else []),
        ("perturbations", "kept" if identity["perturbations"] else "not kept"),
    ]
    if manifest["sessions"]:
        facts += _list_session(manifest["sessions"])
    return facts


def _list_session(sessions: list[Mapping[str, Any]]) -> list[tuple[str, str]]:
    last = sessions[-1]
    versions = ", ".join(f"{name} {last[name]}" for name in ("deepfool", "torch", "numpy", "python") if name in last)
    seconds = sum(float(session.get("seconds", 0)) for session in sessions)
    return [
        ("versions", versions),
        ("machine", f"{last.get('platform', '?')}, {last.get('cpus', '?')} CPUs, device {last.get('device', '?')}"),
        ("measured", format_moment(last.get("finished") or last.get("stopped") or last.get("started") or "?")),
        ("time taken", format_duration(seconds) + (f" in {len(sessions)} sessions" if len(sessions) > 1 else "")),
    ]


def _format_value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, Mapping) and "feature" in value:
        return json.dumps(value["feature"])
    if isinstance(value, Mapping):
        return f"a tensor of shape {value.get('shape')}, SHA-256 {str(value.get('sha256'))[:16]}"
    return str(value)


def _shorten(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
