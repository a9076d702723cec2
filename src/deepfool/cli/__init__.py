"""The command line: one file per command (or family of commands), put together here.

Data goes to stdout, talk to stderr. Command modules import torch and the rest inside their functions, so that
`deepfool --help` answers at once.
"""

from __future__ import annotations

import sys

import typer

from deepfool import __version__
from deepfool.cli import (
    attack,
    check,
    compare,
    data,
    evaluate,
    figure,
    finetune,
    merge,
    models,
    report,
    show,
    table,
    train,
    verify,
)

app = typer.Typer(
    name="deepfool",
    help="Measure how robust a classifier is: the smallest perturbation that changes each decision.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("evaluate")(evaluate.evaluate_model)
app.command("attack")(attack.attack_image)
app.command("show")(show.show_run)
app.command("report")(report.report_runs)
app.command("table")(table.print_table)
app.command("figure")(figure.draw_run)
app.command("compare")(compare.compare_runs)
app.command("check")(check.check_run)
app.command("verify")(verify.verify_run)
app.command("merge")(merge.merge_runs)
app.add_typer(data.app, name="data")
app.add_typer(models.app, name="models")
app.command("train")(train.train_network)
app.command("finetune")(finetune.finetune_model)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"deepfool {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    """Measure how robust a classifier is: the smallest perturbation that changes each decision."""


def main() -> None:
    """Run the command line; errors of ours end in one line and exit code 2, without a traceback."""
    from deepfool.errors import DeepFoolError

    try:
        app()
    except DeepFoolError as error:
        typer.secho(f"error: {error}", err=True, fg="red")
        sys.exit(2)
