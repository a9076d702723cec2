"""The command line: one file per command (or group of commands), collected here.

Data goes to stdout, messages to stderr. Command modules import torch and other heavy packages inside their functions,
so that `deepfool --help` is fast.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand

from deepfool import __version__
from deepfool.cli import (
    attack,
    attacks,
    audit,
    certify,
    check,
    compare,
    data,
    doctor,
    evaluate,
    figure,
    finetune,
    live,
    merge,
    models,
    report,
    reproduce,
    show,
    spectrum,
    table,
    train,
    universal,
    verify,
)
from deepfool.cli.options import WithCertify
from deepfool.cli.output import echo

app = typer.Typer(
    name="deepfool",
    help="Measure how robust a classifier is: the smallest perturbation that changes each decision.",
    epilog="Example: deepfool evaluate --model lenet-mnist --data mnist-sample. Help on one command: deepfool "
    "evaluate --help. What is installed: deepfool doctor.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: its tables cut the names of options off where the terminal is narrow
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _add(name: str, command: Callable[..., None], example: str, kind: type[TyperCommand] | None = None) -> None:
    """Add a command with an example at the end of its help."""
    app.command(name, cls=kind, epilog=f"\b\nExample: {example}")(command)


_add("evaluate", evaluate.evaluate_model, "deepfool evaluate --model lenet-mnist --data mnist-sample", WithCertify)
_add("attack", attack.attack_image, "deepfool attack photo.jpg --model efficientnet-lite0 --compare fgsm")
_add("attacks", attacks.list_attacks, "deepfool attacks smallest")
_add("live", live.serve_page, "deepfool live --model lenet-mnist --data mnist-sample")
_add("show", show.show_run, "deepfool show runs/lenet-mnist-mnist-sample-deepfool-p2")
_add("report", report.report_runs, "deepfool report runs/before runs/after -o both.html")
_add("table", table.print_table, "deepfool table runs/before runs/after --format latex")
_add("figure", figure.draw_run, "deepfool figure runs/before runs/after curve -o curve.pdf")
_add("compare", compare.compare_runs, "deepfool compare runs/before runs/after")
_add("check", check.check_run, "deepfool check runs/candidate --min-rho 0.1 --max-fooled 0.5@eps=0.3")
_add("verify", verify.verify_run, "deepfool verify runs/with-perturbations")
_add("certify", certify.certify_folder, "deepfool certify runs/mlp-mnist-small-mnist-sample-deepfool-p2 --seconds 5")
_add("audit", audit.audit_run, "deepfool audit runs/lenet-mnist-mnist-sample-deepfool-p2")
_add(
    "universal",
    universal.find_universal,
    "deepfool universal --model lenet-cifar10 --data cifar10-sample --xi 10/255 --bounds 0,1",
)
_add("spectrum", spectrum.show_spectrum, "deepfool spectrum --model lenet-mnist --data mnist-sample -o spectrum.svg")
_add("merge", merge.merge_runs, "deepfool merge runs/part-1 runs/part-2 -o runs/whole")
app.add_typer(data.app, name="data")
app.add_typer(models.app, name="models")
_add("reproduce", reproduce.reproduce_paper, "deepfool reproduce --scale default --only table1")
_add("train", train.train_network, "deepfool train lenet-mnist --epochs 2 --out lenet.safetensors")
_add(
    "finetune",
    finetune.finetune_model,
    "deepfool finetune --model lenet-mnist --data mnist --judge deepfool --judge smallest --out runs/hard",
)
_add("doctor", doctor.diagnose, "deepfool doctor --json")


def _print_version(wanted: bool) -> None:
    if wanted:
        echo(f"deepfool {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    """Measure how robust a classifier is: the smallest perturbation that changes each decision."""


def _say_warnings() -> None:
    """Show our own warnings on one line; leave other warnings to Python."""
    others = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **where: Any) -> None:
        if category.__module__.partition(".")[0] == "deepfool":
            typer.secho(f"warning: {message}", err=True, fg="yellow")
        else:
            others(message, category, *place, **where)

    warnings.showwarning = show


def main() -> None:
    """Run the command line. Our own errors and system errors end in one line and exit code 2, not a traceback."""
    from deepfool.errors import DeepFoolError, is_out_of_memory

    _say_warnings()
    try:
        app()
    except DeepFoolError as error:
        echo(f"error: {error}", err=True, fg="red")
    except OSError as error:  # for example no permission, a full disk, or a name that is too long
        where = f"{error.filename}: " if error.filename else ""
        echo(f"error: {where}{error.strerror or error}.", err=True, fg="red")
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        echo("error: this machine does not have enough memory for that.", err=True, fg="red")
    else:
        return
    sys.exit(2)
