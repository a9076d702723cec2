"""`evaluate` and `finetune` as `deepfool` exports them: a progress bar in notebooks, and runs that show themselves.

A caller who gives `on_progress` draws the progress, and there is no bar.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from typing_extensions import ParamSpec

from deepfool.interactive.progress import Bar, drawing, in_notebook
from deepfool.interactive.runs import Run
from deepfool.reporting.times import tell_progress
from deepfool.runs import evaluation, records
from deepfool.runs.evaluation import Interrupted
from deepfool.runs.evaluation import Progress as Measuring
from deepfool.training import finetuning
from deepfool.training.results import FineTuned
from deepfool.training.results import Progress as Tuning

P = ParamSpec("P")


def _showing_runs(measure: Callable[P, records.Run]) -> Callable[P, Run]:
    @functools.wraps(measure)
    def evaluate(*args: P.args, **kwargs: P.kwargs) -> Run:
        try:
            if "on_progress" in kwargs or not in_notebook():
                return Run.of(measure(*args, **kwargs))
            with drawing() as bar:
                kwargs["on_progress"] = lambda now: _draw_measuring(bar, now)
                run = Run.of(measure(*args, **kwargs))
                bar.end(f"{run.expected:,} samples measured; they are in {run.folder}.")
                return run
        except Interrupted as stopped:
            stopped.run = Run.of(stopped.run)
            raise

    return evaluate


def _draw_measuring(bar: Bar, now: Measuring) -> None:
    if now.auditing:
        bar.show(now.total, now.total, "auditing a few samples")
        return
    bar.show(now.done, now.total, f"samples, {tell_progress(now)}")


def _showing_epochs(tune: Callable[P, FineTuned]) -> Callable[P, FineTuned]:
    @functools.wraps(tune)
    def finetune(*args: P.args, **kwargs: P.kwargs) -> FineTuned:
        if "on_progress" in kwargs or not in_notebook():
            return tune(*args, **kwargs)
        with drawing() as bar:
            kwargs["on_progress"] = lambda now: _draw_tuning(bar, now)
            tuned = tune(*args, **kwargs)
            epochs = len(tuned.epochs) - 1
            bar.end(f"{epochs} epoch{'' if epochs == 1 else 's'} on {tuned.samples:,} samples.")
            return tuned

    return finetune


def _draw_tuning(bar: Bar, now: Tuning) -> None:
    name = f" by {now.name}" if now.name else ""
    bar.show(now.done, now.total, f"{now.stage}{name}, epoch {now.epoch} of {now.epochs}")


evaluate = _showing_runs(evaluation.evaluate)
finetune = _showing_epochs(finetuning.finetune)
