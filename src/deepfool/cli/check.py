"""`deepfool check`: use a run as a test in CI."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from deepfool.cli.output import echo, make_console

if TYPE_CHECKING:
    from deepfool.metrics.conditions import Verdict

MARKS = {"met": ("green", "met"), "not met": ("red", "NOT MET"), "not known": ("yellow", "NOT KNOWN")}


def check_run(
    run: Path = typer.Argument(..., help="A run folder."),
    min_rho: float | None = typer.Option(
        None, help="The smallest rho_adv, in the norm of the attack: the lower end of its interval must reach it."
    ),
    min_certified_rho: float | None = typer.Option(
        None, help="The smallest rho_adv that is proved; the run has to be certified (deepfool certify)."
    ),
    point: bool = typer.Option(False, "--point", help="Compare --min-rho with the mean, not with the lower end."),
    max_fooled: list[str] = typer.Option(
        [], metavar="SHARE@eps=EPS", help="The largest share of changed decisions; may be repeated."
    ),
    min_accuracy: list[str] = typer.Option(
        [], metavar="SHARE[@eps=EPS]", help="The smallest (robust) accuracy; may be repeated."
    ),
    min_samples: int | None = typer.Option(None, min=1, help="The fewest samples (default: 20)."),
    max_cautioned: int | None = typer.Option(
        None, min=0, help="How many rows may come with a caution (default: 0): no answer, or not found by gradients."
    ),
    baseline: Path | None = typer.Option(
        None, metavar="RUN", help="A run on the same samples that this one must not be less robust than, beyond chance."
    ),
    max_drop: str | None = typer.Option(
        None, metavar="DROP", help="Also fail if rho_adv is smaller than in the baseline by more: 0.01, or 5% of it."
    ),
    require_verified: bool = typer.Option(False, "--require-verified", help="`deepfool verify` must hold."),
    require_audit: bool = typer.Option(False, "--require-audit", help="There must be an audit, and it must not fail."),
    criteria: Path | None = typer.Option(
        None, metavar="FILE", help="Take the conditions from a file (criteria.toml) instead of from options."
    ),
    junit: Path | None = typer.Option(None, metavar="FILE", help="Write the results as JUnit XML."),
    sarif: Path | None = typer.Option(None, metavar="FILE", help="Write what was not met as SARIF, for code scanning."),
    as_json: bool = typer.Option(False, "--json", help="Print the verdicts as JSON."),
) -> None:
    """Check conditions on a run; exit with code 1 if one is not met, or not known.

    Some conditions always hold: the run is complete and not damaged, has enough samples, no rows with cautions, no
    audit that failed, and a model that gives the same scores twice.
    """
    from deepfool.errors import InputError
    from deepfool.metrics.criteria import read_criteria
    from deepfool.metrics.gates import check
    from deepfool.metrics.junit import to_junit
    from deepfool.metrics.sarif import to_sarif

    given: dict[str, Any] = {
        "min_rho": min_rho, "min_certified_rho": min_certified_rho, "point": point or None,
        "max_fooled": max_fooled or None, "min_accuracy": min_accuracy or None, "min_samples": min_samples,
        "max_cautioned": max_cautioned,
        "baseline": baseline, "max_drop": max_drop, "require_verified": require_verified or None,
        "require_audit": require_audit or None,
    }  # fmt: skip
    conditions = {name: value for name, value in given.items() if value is not None}
    if criteria is not None:
        if conditions:
            also = ", ".join(f"--{name.replace('_', '-')}" for name in conditions)
            raise InputError(f"--criteria holds all conditions; {also} would change them.", hint="write them there.")
        conditions = dict(read_criteria(criteria).conditions)
    verdicts = check(run, **conditions)
    for file, text in ((junit, to_junit(verdicts, str(run))), (sarif, to_sarif(verdicts, run))):
        if file is not None:
            _write(file, text)
    failed = [verdict for verdict in verdicts if not verdict.passed]
    if as_json:
        found = {"run": str(run), "passed": not failed, "verdicts": [verdict.as_dict() for verdict in verdicts]}
        echo(json.dumps(found, allow_nan=False))
    else:
        _draw(verdicts)
    if failed:
        names = ", ".join(f"{verdict.name} ({verdict.outcome})" for verdict in failed)
        echo(f"failed: {names}", err=True, fg="red")
        raise typer.Exit(1)
    echo(f"passed: {len(verdicts)} conditions", err=True, fg="green")


def _draw(verdicts: Sequence[Verdict]) -> None:
    """One condition per row: the outcome, what was found and what was required."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from deepfool.cli.output import plain

    console = make_console(width=120)
    narrow = console.width < 80
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for head, ratio in (("", None), ("condition", None), ("found", 2), ("required", 1))[: 3 if narrow else 4]:
        table.add_column(head, overflow="fold", ratio=ratio)
    for verdict in verdicts:
        colour, word = MARKS[verdict.outcome]
        cells = [Text(word, style=colour), Text(verdict.name)]
        texts = (verdict.sentence,) if narrow else (verdict.why, verdict.required)
        table.add_row(*cells, *(Text(plain(text)) for text in texts))
    console.print(table)


def _write(file: Path, text: str) -> None:
    from deepfool.errors import RunError

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunError(f"{file} cannot be written: {error.strerror or error}.") from error
