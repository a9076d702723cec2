"""`deepfool audit`: how far to trust a run, or what would be measured on a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from deepfool.cli.evaluate import read_bounds, read_knobs, read_p, read_split
from deepfool.cli.options import GOAL, RUN_CODE
from deepfool.cli.output import echo, make_console

if TYPE_CHECKING:
    from rich.console import Console

    from deepfool.runs.audit.checklist import Audit

COLOURS = {"pass": "green", "caution": "yellow", "fail": "red"}


def audit_run(
    run: Path | None = typer.Argument(None, help="A run folder; without one, give --model and --data."),
    model: str | None = typer.Option(None, help="The model, as in `evaluate`; of a run, if its manifest names none."),
    data: str | None = typer.Option(None, help="The data, as in `evaluate`; of a run, if its manifest names none."),
    attack: str | None = typer.Option(None, help="The attack to audit on the model (default: smallest)."),
    p: str | None = typer.Option(None, "--p", "-p", help="The norm: 1, 2 or inf (default: 2)."),
    bounds: str | None = typer.Option(None, metavar="LOW,HIGH", help="Keep x + r within bounds (default: none)."),
    goal: str | None = GOAL,
    knob: list[str] = typer.Option([], metavar="NAME=VALUE", help="Any other argument of the attack; may be repeated."),
    arch: str | None = typer.Option(None, help="The architecture, for file: models."),
    split: str | None = typer.Option(None, help="The split, for data sets that have splits (default: test)."),
    size: int | None = typer.Option(None, help="Resize folder: and hf: images to this side length."),
    limit: int | None = typer.Option(None, help="Choose among the first N samples only."),
    samples: int = typer.Option(8, min=1, help="How many samples to audit."),
    device: str = typer.Option("cpu", help="cpu, cuda, cuda:1, mps or auto."),
    strict: bool = typer.Option(False, "--strict", help="Exit with code 1 on a caution too."),
    run_code: bool = RUN_CODE,
    as_json: bool = typer.Option(False, "--json", help="Print the checklist as JSON."),
) -> None:
    """Check how far to trust the numbers of a run, on a few samples: each line is pass, caution or fail.

    The checklist is kept in the run folder, and the report shows it. Exit code 1 if a check fails.
    """
    from deepfool.errors import InputError
    from deepfool.runs.audit.auditing import audit
    from deepfool.runs.audit.checklist import Verdict
    from deepfool.runs.records import Run

    if run is not None:
        own = {"--attack": attack, "--p": p, "--bounds": bounds, "--goal": goal, "--knob": knob or None, "--arch": arch,
               "--split": split, "--size": size, "--limit": limit}  # fmt: skip
        if given := [name for name, value in own.items() if value is not None]:
            raise InputError(f"a run has its own {', '.join(given)}.", hint="leave it out, or leave out the run.")
        found = audit(Run(run), data, model=model, samples=samples, device=device, may_run_code=run_code)
    elif model is None or data is None:
        raise InputError("an audit needs a run folder, or --model and --data.")
    else:
        found = audit(
            model, data, attack or "smallest", p=read_p(p or "2"), bounds=read_bounds(bounds), arch=arch,
            split=read_split(split, data, "test"), size=size, limit=limit, samples=samples, device=device,
            **(read_knobs(knob, audit) | ({} if goal is None else {"goal": goal})),
        )  # fmt: skip
    if as_json:
        echo(json.dumps(found.as_dict(), allow_nan=False))
    else:
        draw_audit(make_console(width=120), found)
    if found.verdict is Verdict.FAIL or (strict and found.verdict is not Verdict.PASS):
        raise typer.Exit(1)


def draw_audit(console: Console, audit: Audit) -> None:
    """The checklist as a table, in words and colours."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from deepfool.cli.output import plain

    table = Table("", "check", "what was found", box=box.SIMPLE_HEAD, title="Audit")
    for check in audit.checks:
        word = check.verdict.value
        table.add_row(Text(word, style=COLOURS[word]), Text(plain(check.name)), Text(plain(check.sentence)))
    console.print(table)
    style = COLOURS[audit.verdict.value]
    console.print(f"audit: {audit.headline}", style=style, soft_wrap=True, highlight=False, markup=False)
