"""Runs in Weights & Biases (`pip install wandb`)."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from deepfool.errors import InputError, require
from deepfool.integrations.figures import list_figures, list_files, list_settings, with_prefix
from deepfool.metrics import accuracy_curve, write_words
from deepfool.runs.audit.checklist import read_audit
from deepfool.runs.records import Run
from deepfool.runs.rows import Records


def log_run(
    run: Run, *, to: Any = None, step: int | None = None, prefix: str = "robustness", artifacts: bool = True
) -> None:
    """Log a run to a W&B run: figures, settings, the distribution of the distances, the curve, the verdict and files.

    Args:
        run: the run.
        to: the W&B run; None for the one that `wandb.init` began.
        step: the step of a training that it belongs to; None for the next one.
        prefix: the group of the names.
        artifacts: whether to store manifest, rows and report as an artifact of type `robustness-run`.

    ```python
    with wandb.init(project="digits") as tracked:
        deepfool.integrations.wandb.log_run(deepfool.evaluate(model, data), to=tracked)
    ```
    """
    wandb = require("wandb", extra="wandb", purpose="logging to Weights & Biases")
    to = wandb.run if to is None else to
    if to is None:
        raise InputError("there is no W&B run to log to.", hint="call wandb.init(...) first, or give it as `to`.")
    records = run.records()
    to.config.update(with_prefix(prefix, list_settings(run)), allow_val_change=True)
    charts = _draw(wandb, records) if records.fooled.any() else {}
    to.log(with_prefix(prefix, {**list_figures(run, records), **charts}), step=step)
    words = write_words(run, records, read_audit(run, len(records)))
    to.summary.update(with_prefix(prefix, {"verdict": " ".join(words.all)}))
    if artifacts:
        name = re.sub(r"[^\w.-]+", "_", run.folder.resolve().name)[:120]  # W&B allows no other characters, and 128
        kept = wandb.Artifact(name, type="robustness-run", metadata=list_settings(run))
        for file in list_files(run):
            kept.add_file(str(file))
        to.log_artifact(kept)


def _draw(wandb: Any, records: Records) -> dict[str, Any]:
    """The distribution of the distances that were found, and the accuracy against eps."""
    found, curve = records.ratio("p"), accuracy_curve(records)
    table = wandb.Table(columns=["eps", "accuracy"], data=np.stack([curve.eps, curve.accuracy], 1).tolist())
    return {
        "relative": wandb.Histogram(found[np.isfinite(found)].tolist()),
        "curve": wandb.plot.line(table, "eps", "accuracy", title=f"accuracy within eps (l{records.p:g}), at most"),
    }
