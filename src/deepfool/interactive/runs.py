"""A run that sums itself up, writes its report, answers conditions and shows itself in notebooks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from deepfool.interactive import frames, showing
from deepfool.metrics import summarize
from deepfool.metrics.gates import Verdict, check
from deepfool.reporting.page import write_report
from deepfool.runs import records


class Summary(dict[str, Any]):
    """All figures of a run by name, ready for JSON; it prints as the few that matter most."""

    def __repr__(self) -> str:
        return showing.write_summary(self)

    def _repr_html_(self) -> str:
        return showing.show_summary(self)


class Verdicts(list[Verdict]):
    """A verdict for each condition. Unlike a plain list it is true only if all of them are met: `assert run.check(...)`
    does what it says.

    >>> bool(Verdicts([Verdict("min-rho", True, "enough"), Verdict("complete", False, "8 of 9")]))
    False
    """

    def __init__(self, found: Iterable[Verdict] = ()) -> None:
        super().__init__(found)

    @property
    def passed(self) -> bool:
        """Whether there are conditions, and all of them are met."""
        return len(self) > 0 and all(verdict.passed for verdict in self)

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        return showing.write_verdicts(self)

    def _repr_html_(self) -> str:
        return showing.show_verdicts(self)


class Run(records.Run):
    """A run folder: `evaluate` returns one, and `Run(folder)` opens one again. Everything is read from the folder.

    The last line of a notebook cell shows it: the verdict, the most important figures and the curve.

    >>> import tempfile, torch
    >>> from deepfool import evaluate
    >>> model, data = torch.nn.Linear(4, 3), (torch.rand(30, 4), torch.zeros(30, dtype=torch.long))
    >>> with tempfile.TemporaryDirectory() as here:
    ...     run = evaluate(model, data, out=f"{here}/run")
    ...     summary, frame, page, verdicts = run.summary(), run.to_pandas(), run.report(), run.check(min_rho=1e-6)
    >>> summary["status"]["FOOLED"], len(frame), page.name, verdicts.passed
    (30, 30, 'report.html', True)
    """

    @classmethod
    def of(cls, run: records.Run) -> Run:
        """The same run, with these methods."""
        return run if isinstance(run, cls) else cls(run.folder)

    def summary(self, **how: Any) -> Summary:
        """All figures of the run, as `deepfool show --json` prints them.

        Args:
            **how: arguments of `deepfool.metrics.summarize`, such as `confidence`.
        """
        return Summary(summarize(self, **how))

    def report(self, out: str | Path | None = None, *, gallery: bool = True) -> Path:
        """Write the report, one HTML file that needs nothing else, and return its path.

        Args:
            out: the file; by default `report.html` in the run folder.
            gallery: whether to show samples.
        """
        return write_report([self], out, gallery=gallery)

    def to_pandas(self) -> Any:
        """The rows as a pandas data frame, one per sample (extra `pandas`); see `deepfool.interactive.frames`."""
        return frames.to_pandas(self)

    def check(self, **conditions: Any) -> Verdicts:
        """Whether the run meets some conditions, as `deepfool check` asks them: `assert run.check(min_rho=0.1)`.

        Args:
            **conditions: arguments of `deepfool.metrics.gates.check`, such as `min_rho` and `min_accuracy`.
        """
        return Verdicts(check(self, **conditions))

    def _repr_html_(self) -> str:
        return showing.show_run(self)
