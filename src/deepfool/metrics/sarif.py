"""Verdicts as SARIF 2.1.0 (OASIS), which code scanning shows beside the code: a result for each condition not met."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from deepfool import __version__
from deepfool.metrics.conditions import Verdict
from deepfool.runs.records import MANIFEST

ABOUT: Mapping[str, str] = {
    "complete": "Every sample of the run has a row, and no row is damaged.",
    "min-samples": "The run has enough samples.",
    "max-cautioned": "Few enough rows come with a caution.",
    "audit": "The audit of the run did not fail.",
    "repeatable": "The model gives the same scores for the same input.",
    "verified": "The stored perturbations match the rows.",
    "measured": "The run was measured as agreed.",
    "min-rho": "rho_adv is large enough.",
    "max-fooled": "Few enough decisions change.",
    "min-accuracy": "The accuracy is large enough.",
    "baseline": "The model is not less robust than the baseline.",
}
"""What each condition is about, for the list of rules."""


def to_sarif(verdicts: Sequence[Verdict], folder: str | Path) -> str:
    """The verdicts on the run in `folder` as SARIF. What was met is in the list of rules only.

    >>> found = json.loads(to_sarif([Verdict("min-rho", False, "0.1 < 0.2"), Verdict("audit", True, "")], "runs/new"))
    >>> run = found["runs"][0]
    >>> [rule["id"] for rule in run["tool"]["driver"]["rules"]], [result["ruleId"] for result in run["results"]]
    (['min-rho', 'audit'], ['min-rho'])
    >>> run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    'runs/new/manifest.json'
    """
    rules = list(dict.fromkeys(verdict.name for verdict in verdicts))
    driver = {
        "name": "deepfool", "semanticVersion": __version__,
        "rules": [
            {
                "id": name, "shortDescription": {"text": ABOUT.get(name, name)},
                "defaultConfiguration": {"level": "error"},
            }
            for name in rules
        ],
    }  # fmt: skip
    place = [{"physicalLocation": {"artifactLocation": {"uri": _locate(folder)}, "region": {"startLine": 1}}}]
    results = [
        {
            "ruleId": verdict.name, "ruleIndex": rules.index(verdict.name), "level": "error",
            "message": {"text": verdict.sentence}, "locations": place,
            "partialFingerprints": {"condition/v1": f"{verdict.name}: {verdict.required}"},
            "properties": {"outcome": verdict.outcome},
        }
        for verdict in verdicts
        if not verdict.passed
    ]  # fmt: skip
    log: dict[str, Any] = {"version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}
    return json.dumps(log, indent=1)


def _locate(folder: str | Path) -> str:
    """The manifest of the run, relative to the current folder where that is possible: code scanning wants that."""
    path = Path(folder) / MANIFEST
    if path.is_absolute():
        inside = Path(os.path.relpath(path))
        if inside.parts[:1] == ("..",):
            return path.as_uri()
        path = inside
    return quote(path.as_posix())
