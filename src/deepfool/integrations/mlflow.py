"""Runs in MLflow (`pip install mlflow`; mlflow-skinny is enough)."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from deepfool.errors import require
from deepfool.integrations.figures import list_figures, list_files, list_settings, with_prefix
from deepfool.metrics import summarize
from deepfool.runs.records import Run


def log_run(run: Run, *, step: int | None = None, prefix: str = "robustness", artifacts: bool = True) -> None:
    """Log a run to the active MLflow run; if there is none, to a new one with the name of the folder.

    Figures become metrics, settings become tags (unlike parameters, those may change from step to step), and the
    manifest, the rows, the summary and the report become artifacts.

    Args:
        run: the run.
        step: the epoch or step of a training that it belongs to.
        prefix: the group of the names.
        artifacts: whether to store the files too.

    ```python
    with mlflow.start_run():
        deepfool.integrations.mlflow.log_run(deepfool.evaluate(model, data))
    ```
    """
    mlflow: Any = require("mlflow", extra="mlflow", purpose="logging to MLflow")
    records = run.records()
    with nullcontext() if mlflow.active_run() else mlflow.start_run(run_name=run.folder.name):
        mlflow.log_metrics(with_prefix(prefix, list_figures(run, records)), step=step)
        mlflow.set_tags(
            {name.replace("/", "."): text for name, text in with_prefix(prefix, list_settings(run)).items()}
        )
        if artifacts:
            place = "/".join(part for part in (prefix, "" if step is None else f"step-{step}") if part)
            for file in list_files(run):
                mlflow.log_artifact(str(file), artifact_path=place or None)
            mlflow.log_dict(summarize(run), f"{place}/summary.json" if place else "summary.json")
