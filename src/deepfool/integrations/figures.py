"""What is logged of a run: figures and settings by name, the same in every tracker.

What an attack finds is an upper bound on the distance, and the names say so: `rho_at_most`. If a search had no answer,
rho_adv is not known. Then there is no `rho_at_most`, and a chart has a gap there instead of a point that is wrong;
`unanswered` counts those searches, and `rho_of_answered` is the mean of the others alone.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from deepfool.metrics import (
    accuracy_at_radii,
    clean_accuracy,
    describe_setup,
    quantile,
    relative_distances,
    rho_adv,
    rho_answered,
    share_fooled,
)
from deepfool.reporting.page import write_report
from deepfool.runs.records import MANIFEST, RECORDS, Run
from deepfool.runs.rows import Records


def list_figures(run: Run, records: Records | None = None) -> dict[str, float]:
    """The figures of a run that are known, by name.

    >>> import tempfile, torch
    >>> from deepfool import evaluate
    >>> with tempfile.TemporaryDirectory() as here:
    ...     run = evaluate(torch.nn.Linear(4, 3), (torch.rand(8, 4), torch.zeros(8, dtype=torch.long)), out=here)
    ...     figures = list_figures(run)
    >>> sorted(figures)[-5:], figures["unanswered"]
    (['rho_at_most', 'rho_high', 'rho_low', 'samples', 'unanswered'], 0)
    """
    records = run.records() if records is None else records
    rho = rho_adv(records, "p")
    figures = {
        "samples": len(records),
        "unanswered": int(records.censored.sum()),
        "accuracy": clean_accuracy(records).value,
        "fooled": share_fooled(records).value,
        "median_at_most": quantile(relative_distances(records, "p"), 0.5).value,
    }
    if rho.exact:
        figures |= {"rho_at_most": rho.value, "rho_low": rho.low, "rho_high": rho.high}
    else:
        figures["rho_of_answered"] = rho_answered(records, "p").value
    for each in accuracy_at_radii(run, records):
        figures[f"accuracy_at_most_eps_{each.text.replace('/', '_')}"] = each.accuracy.value
    return {name: value for name, value in figures.items() if math.isfinite(value)}


def list_settings(run: Run) -> dict[str, str]:
    """What was measured and how, by name, as text.

    >>> import tempfile, torch
    >>> from deepfool import evaluate
    >>> with tempfile.TemporaryDirectory() as here:
    ...     run = evaluate(torch.nn.Linear(4, 3), (torch.rand(8, 4), torch.zeros(8, dtype=torch.long)), out=here)
    ...     settings = list_settings(run)
    >>> settings["attack"], settings["norm"], settings["bounds"]
    ('deepfool', 'l2', 'none')
    """
    identity, setup = run.identity, describe_setup(run)
    return {
        "model": str(run.manifest["model"]["spec"]),
        "model_sha256": str(identity["model"]["sha256"]),
        "data": str(run.manifest["data"]["name"]),
        "data_sha256": str(identity["data"]["sha256"]),
        "samples": str(identity["indices"]),
        "attack": setup.attack,
        "norm": setup.norm,
        "bounds": "none" if setup.bounds is None else json.dumps(setup.bounds),
        "knobs": json.dumps(identity["attack"]["knobs"], sort_keys=True),
        "seed": str(identity["seed"]),
        "deepfool": str(identity["deepfool"]),
        "folder": str(run.folder),
    }


def list_files(run: Run) -> list[Path]:
    """The files of a run that are worth keeping elsewhere: what it is, its rows, and its report, written anew."""
    return [run.folder / MANIFEST, run.folder / RECORDS, write_report([run])]


def with_prefix(prefix: str, named: dict[str, Any]) -> dict[str, Any]:
    """The names behind a prefix, which trackers show as a group.

    >>> with_prefix("robustness", {"rho": 1}), with_prefix("", {"rho": 1})
    ({'robustness/rho': 1}, {'rho': 1})
    """
    return {f"{prefix}/{name}" if prefix else name: value for name, value in named.items()}
