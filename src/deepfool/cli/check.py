"""`deepfool check`: use a run as a test in CI."""

from __future__ import annotations

from pathlib import Path

import typer

from deepfool.cli.output import echo


def check_run(
    run: Path = typer.Argument(..., help="A run folder."),
    min_rho: float | None = typer.Option(None, help="The smallest rho_adv, in the norm of the attack."),
    max_fooled: str | None = typer.Option(
        None, metavar="SHARE@eps=EPS", help="The largest share of changed decisions."
    ),
    min_accuracy: str | None = typer.Option(None, metavar="SHARE[@eps=EPS]", help="The smallest (robust) accuracy."),
    junit: Path | None = typer.Option(None, metavar="FILE", help="Write the results as JUnit XML."),
) -> None:
    """Check conditions on a run: if one is not met, print why in one line and exit with code 1."""
    from deepfool.errors import RunError
    from deepfool.metrics.gates import check, to_junit
    from deepfool.runs.records import Run

    verdicts = check(Run(run), min_rho=min_rho, max_fooled=max_fooled, min_accuracy=min_accuracy)
    if junit is not None:
        try:
            junit.write_text(to_junit(verdicts, str(run)), encoding="utf-8")
        except OSError as error:
            raise RunError(f"{junit} cannot be written: {error.strerror or error}.") from error
    failed = [f"{verdict.name}: {verdict.why}" for verdict in verdicts if not verdict.passed]
    if failed:
        echo(f"failed: {'; '.join(failed)}", err=True, fg="red")
        raise typer.Exit(1)
    echo(f"passed: {'; '.join(verdict.why for verdict in verdicts)}", err=True, fg="green")
