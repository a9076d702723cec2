"""Runs in TensorBoard, through any writer with the methods of `torch.utils.tensorboard.SummaryWriter`."""

from __future__ import annotations

from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from deepfool.errors import require
from deepfool.integrations.figures import list_figures, list_settings, with_prefix
from deepfool.metrics import write_words
from deepfool.runs.audit.checklist import read_audit
from deepfool.runs.records import Run


def log_run(run: Run, writer: Any, *, step: int = 0, prefix: str = "robustness") -> None:
    """Log a run: figures as scalars, the distribution of the distances, the verdict and the settings as text.

    Args:
        run: the run.
        writer: a `SummaryWriter`, or the folder for a new one.
        step: the epoch or step of a training that it belongs to.
        prefix: the group of the names.

    ```python
    deepfool.integrations.tensorboard.log_run(deepfool.evaluate(model, data), "logs")   # tensorboard --logdir logs
    ```
    """
    records = run.records()
    words = write_words(run, records, read_audit(run, len(records)))
    rows = "\n".join(f"| {name} | `{text}` |" for name, text in list_settings(run).items())
    with _open(writer) as out:
        for name, value in with_prefix(prefix, list_figures(run, records)).items():
            out.add_scalar(name, value, step)
        ratios = records.ratio("p")
        if np.isfinite(ratios).any():
            out.add_histogram(f"{prefix}/relative".lstrip("/"), ratios[np.isfinite(ratios)], step)
        out.add_text(f"{prefix}/verdict".lstrip("/"), "\n\n".join(words.all), step)
        out.add_text(f"{prefix}/settings".lstrip("/"), f"| | |\n|---|---|\n{rows}", step)


def _open(writer: Any) -> Any:
    """The writer, which stays open, or a new one that is closed."""
    if not isinstance(writer, str | Path):
        return nullcontext(writer)
    require("tensorboard", extra="tensorboard", purpose="logging to TensorBoard")
    from torch.utils.tensorboard import SummaryWriter

    return closing(SummaryWriter(str(writer)))
