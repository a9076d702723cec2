"""`deepfool finetune`: a few more epochs on perturbed images, and their effect on test error and robustness."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from deepfool.cli.output import echo, make_console
from deepfool.cli.progress import drawing, drawing_fetch, say

if TYPE_CHECKING:
    from rich.console import Console

    from deepfool.training.results import Epoch, FineTuned, Progress

WEIGHTS, FIGURES, CHECKPOINT, PICTURE = "model.safetensors", "finetuning.json", "checkpoint.pt", "finetuning.svg"


def finetune_model(
    model: str = typer.Option(..., help="A network of the zoo, or timm:NAME, py:module:factory, file:FILE, ..."),
    data: str = typer.Option(..., help="What to train on: mnist, cifar10, folder:DIR, npz:FILE, hf:NAME, ..."),
    test: str | None = typer.Option(None, help="What to test and judge on (default: --data, if it has splits)."),
    out: Path = typer.Option(..., metavar="DIR", help="Folder for the weights, card, figures and checkpoint."),
    perturb: str = typer.Option("deepfool", help="clean, fgsm, an attack by name, or module:function."),
    epochs: int = typer.Option(5, min=0, help="Extra epochs."),
    lr_scale: float = typer.Option(0.5, help="Multiply the learning rate by this; the paper halves it."),
    learning_rate: float | None = typer.Option(None, help="What --lr-scale is relative to (default: the recipe's)."),
    magnify: float = typer.Option(1.0, help="Lengthen the perturbations by this factor (alpha of the paper)."),
    fresh: bool = typer.Option(False, "--fresh", help="Perturb again before each epoch."),
    mix: float = typer.Option(0.0, help="Share of images that are left clean."),
    judge: list[str] = typer.Option(
        ["deepfool"], help="What measures rho_adv: deepfool, smallest, fgsm, ...; may be repeated."
    ),
    judged: int = typer.Option(1000, min=1, help="Number of test samples to judge on; the test error uses all."),
    limit: int | None = typer.Option(None, min=1, help="Use only the first this many training samples."),
    batch_size: int | None = typer.Option(None, min=1, help="Samples per step, over all processes."),
    seed: int = typer.Option(0, min=0, help="Seed of the order, dropout, and random attacks."),
    p: str = typer.Option("2", help="The norm, a number >= 1, or inf."),
    bounds: str | None = typer.Option(
        None, metavar="LOW,HIGH", help="Keep x + r inside (default: no bounds, as in the paper)."
    ),
    knob: list[str] = typer.Option([], metavar="NAME=VALUE", help="Any other knob of the attack; may be repeated."),
    arch: str | None = typer.Option(None, help="The architecture of a file: model."),
    split: str | None = typer.Option(None, help="Split of --data, if it has splits (default: train)."),
    test_split: str | None = typer.Option(None, help="Split of --test, if it has splits (default: test)."),
    size: int | None = typer.Option(None, help="Resize and crop folder: and hf: images to this side."),
    device: str = typer.Option("auto", help="cpu, cuda, mps; auto takes a GPU if there is one."),
    workers: int | None = typer.Option(None, help="Worker processes (or Ray actors) for the attacks."),
    engine: str = typer.Option("local", help="Where attacks run: local, or ray (a cluster)."),
    ray_address: str | None = typer.Option(None, help="The Ray cluster (default: start Ray on this machine)."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="Print only errors."),
    as_json: bool = typer.Option(False, "--json", help="Print the figures as JSON."),
) -> None:
    """Harden a model with a few more epochs on perturbed images. The same command resumes where it stopped.

    Example: deepfool finetune --model lenet-mnist --data mnist --limit 5000 --judge deepfool --judge smallest --out
    runs/hard

    On several devices: accelerate launch -m deepfool finetune ...
    """

    from deepfool.cli.evaluate import read_bounds, read_knobs, read_split
    from deepfool.datasets import load
    from deepfool.norms import check_p
    from deepfool.runs.execution import keep_freed_memory
    from deepfool.training.finetuning import finetune
    from deepfool.training.processes import find_team

    keep_freed_memory()
    team = find_team()
    console = make_console(stderr=True, quiet=quiet or not team.is_main)
    test = test or data
    split, test_split = read_split(split, data, "train"), read_split(test_split, test, "test")
    for spec, part in ((data, split), (test, test_split)):
        with drawing_fetch(console, spec) as draw_fetch:
            load(spec, split=part, size=size, on_progress=draw_fetch)
    try:
        with _drawing(console, out) as draw:
            tuned = finetune(
                model, data, test=test, perturb=perturb, epochs=epochs, lr_scale=lr_scale, learning_rate=learning_rate,
                magnify=magnify, fresh=fresh, mix=mix, judges=judge, judged=judged, seed=seed,
                p=check_p(p),  # type: ignore[arg-type]
                bounds=read_bounds(bounds), arch=arch, split=split, test_split=test_split, size=size, limit=limit,
                batch_size=batch_size, device=device, engine=engine, workers=workers, ray_address=ray_address,
                checkpoint=out / CHECKPOINT, on_progress=draw, **read_knobs(knob, finetune),
            )  # fmt: skip
    except KeyboardInterrupt:
        echo("stopped; run the same command to resume after the last complete epoch", err=True)
        raise typer.Exit(130) from None
    if team.is_main:
        figures = _write(tuned, out, name=arch or model, data=data, data_sha256=_hashes(tuned))
        _draw_picture(console, tuned, out / PICTURE)
        if as_json:
            echo(json.dumps(figures, allow_nan=False))
        else:
            _draw_table(tuned, f"{model}, {perturb}", quiet)
            echo(out / WEIGHTS)
        for remark in make_remarks(tuned):
            console.print(remark, style="yellow", soft_wrap=True, highlight=False, markup=False)
    team.leave()


def _hashes(tuned: FineTuned) -> dict[str, str]:
    return {"train": tuned.settings["data"], "test": tuned.settings["test"]}


def _write(tuned: FineTuned, out: Path, **about: Any) -> dict[str, Any]:
    """Write the weights with their card, and the figures; each file is written completely or not at all."""
    import shlex
    import sys
    from dataclasses import asdict

    import torch

    from deepfool import cache
    from deepfool.models.cards import write_weights
    from deepfool.runs import manifests

    settings = tuned.settings
    write_weights(
        tuned.model, out / WEIGHTS, recipe=settings["recipe"], seed=settings["seed"], epochs=len(tuned.epochs) - 1,
        test_error=tuned.epochs[-1].test_error, command=shlex.join(["deepfool", *sys.argv[1:]]),
        torch=torch.__version__, **about,
    )  # fmt: skip
    figures: dict[str, Any] = manifests.describe_value({
        "epochs": [asdict(each) for each in tuned.epochs], "samples": tuned.samples, "left_clean": tuned.left_clean,
        "learning_rate": tuned.learning_rate, "perturbed": None if tuned.perturbed is None else str(tuned.perturbed),
        "settings": dict(settings), "session": manifests.describe_session(),
    })  # fmt: skip
    cache.write(out / FIGURES, (json.dumps(figures, indent=1, allow_nan=False) + "\n").encode())
    return figures


def _draw_picture(console: Console, tuned: FineTuned, path: Path) -> None:
    """Draw the curves, if the plotting package is installed."""
    from deepfool.errors import MissingExtraError
    from deepfool.reporting.epochs import draw_epochs

    try:
        draw_epochs({"": tuned.epochs}, path)
    except MissingExtraError as error:
        console.print(f"no figure: {error}", soft_wrap=True, highlight=False, markup=False)


def _draw_table(tuned: FineTuned, title: str, quiet: bool) -> None:
    from rich import box
    from rich.table import Table

    if quiet:
        return
    judges = list(tuned.epochs[0].rho)
    table = Table(box=box.SIMPLE_HEAD, title=title)
    table.add_column("extra epochs", justify="right")
    table.add_column("test error", justify="right")
    for judge in judges:
        table.add_column(f"rho_adv by {judge}", justify="right")
    for each in tuned.epochs:
        cells = [_format_rho(each, judge) for judge in judges]
        table.add_row(str(each.epoch), f"{100 * each.test_error:.2f} %", *cells)
    if len(tuned.epochs) > 1:
        first, last = tuned.epochs[0], tuned.epochs[-1]
        gains = [_format_gain(first.rho[judge], last.rho[judge]) for judge in judges]
        table.add_section()
        table.add_row("change", f"{100 * (last.test_error - first.test_error):+.2f} points", *gains)
    make_console(width=100).print(table)


def _format_rho(epoch: Epoch, judge: str) -> str:
    """
    >>> from deepfool.training.results import Epoch
    >>> _format_rho(Epoch(1, 0.1, {"deepfool": 0.12345}), "deepfool")
    '0.1235'
    >>> _format_rho(Epoch(1, 0.1, {"deepfool": float("nan")}, {"deepfool": 3}), "deepfool")
    'not known (3 not fooled)'
    """
    lost = epoch.censored.get(judge)
    return f"not known ({lost} not fooled)" if lost else f"{epoch.rho[judge]:.4f}"


def _format_gain(before: float, after: float) -> str:
    return f"{100 * (after / before - 1):+.1f} %" if before > 0 and after < float("inf") else "-"


def make_remarks(tuned: FineTuned) -> list[str]:
    """Warnings that belong with the figures.

    >>> from deepfool.training.results import Epoch, FineTuned
    >>> rows = Epoch(0, 0.1, {"deepfool": 0.1, "smallest": 0.1}), Epoch(1, 0.1, {"deepfool": 0.2, "smallest": 0.11})
    >>> make_remarks(FineTuned(None, rows, None))
    ['deepfool sees a gain of 100 %, smallest one of 10 %: rely on the latter only.']
    """
    remarks = []
    if tuned.left_clean:
        remarks.append(f"{tuned.left_clean} of {tuned.samples} training samples were not fooled and stayed clean.")
    first, last = tuned.epochs[0].rho, tuned.epochs[-1].rho
    gains = {judge: last[judge] / first[judge] - 1 for judge in first if first[judge] > 0}
    real = gains.pop("smallest", None)
    for judge, gain in gains.items():
        if real is None and gain > 0 and judge != "fgsm":
            remarks.append(
                f"the gain was measured by {judge} alone, which the model may have learned to mislead; "
                "check it with --judge smallest."
            )
        elif real is not None and gain > 0 and real < 0.8 * gain:
            remarks.append(
                f"{judge} sees a gain of {100 * gain:.0f} %, smallest one of {100 * real:.0f} %: "
                "rely on the latter only."
            )
    return remarks


@contextmanager
def _drawing(console: Console, out: Path) -> Iterator[Callable[[Progress], None]]:
    """The current stage, and a line per epoch."""
    say(console, f"folder: {out}")
    if (out / CHECKPOINT).exists():
        say(console, "resuming from the checkpoint")
    with drawing(console) as bar:

        def draw(progress: Progress) -> None:
            stage = _name_stage(progress)
            bar.show(stage, progress.done, progress.total)
            if progress.result is not None:
                _say_result(console, progress)
            elif progress.stage != "training":
                bar.log(stage, f"{stage}: {progress.done}/{progress.total}")

        yield draw


def _name_stage(progress: Progress) -> str:
    if progress.stage == "training":
        return f"epoch {progress.epoch}/{progress.epochs}, training"
    if progress.stage == "perturbing":
        return f"epoch {progress.epoch}/{progress.epochs}, perturbing by {progress.name}"
    return f"epoch {progress.epoch}/{progress.epochs}, judging by {progress.name}"


def _say_result(console: Console, progress: Progress) -> None:
    result = progress.result
    if result is None:
        return
    rho: Mapping[str, float] = result.rho
    robustness = "".join(f", rho_adv {_format_rho(result, judge)} by {judge}" for judge in rho)
    say(console, f"epoch {result.epoch}/{progress.epochs}: test error {100 * result.test_error:.2f} %{robustness}")
