"""`deepfool evaluate`: from a model and data to a run folder."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from deepfool.cli.options import (
    ARCH,
    ATTACK,
    GOAL,
    KNOB,
    MEAN,
    MODEL,
    NORM,
    SCHEMA,
    STD,
    SUBSPACE,
    WEIGHTS,
    add_preprocessing,
)
from deepfool.cli.output import echo, make_console
from deepfool.cli.progress import drawing, drawing_fetch, say

if TYPE_CHECKING:
    from rich.console import Console

    from deepfool.cli.progress import Bar
    from deepfool.runs.evaluation import Progress
    from deepfool.runs.records import Run


def evaluate_model(
    model: str = MODEL,
    data: str = typer.Option(..., metavar="DATA", help="mnist, cifar10, mnist-sample, folder:DIR, npz:FILE, hf:NAME"),
    attack: str = ATTACK,
    p: str = NORM,
    bounds: str | None = typer.Option(None, metavar="LOW,HIGH", help="Keep x + r within bounds (default: none)."),
    goal: str | None = GOAL,
    weights: str | None = WEIGHTS,
    subspace: str | None = SUBSPACE,
    schema: str | None = SCHEMA,
    knob: list[str] = KNOB,
    out: str | None = typer.Option(None, metavar="DIR", help="The run folder (default: in runs/, named by the run)."),
    limit: int | None = typer.Option(None, metavar="N", help="Only the first N samples; a larger N extends the run."),
    indices: str | None = typer.Option(None, metavar="0-99,205", help="Only these samples."),
    shard: str | None = typer.Option(None, metavar="3/16", help="Only the 3rd of 16 parts; see `deepfool merge`."),
    split: str | None = typer.Option(None, metavar="NAME", help="Split of the data, if it has any (default: test)."),
    size: int | None = typer.Option(None, metavar="PIXELS", help="Resize folder: and hf: images to this side length."),
    mean: str | None = MEAN,
    std: str | None = STD,
    arch: str | None = ARCH,
    batch_size: str = typer.Option("auto", metavar="N", help="Samples per batch; auto halves it if memory runs out."),
    device: str = typer.Option("auto", metavar="NAME", help="cpu, cuda, cuda:1, mps; auto uses a GPU if there is one."),
    dtype: str = typer.Option("float32", metavar="TYPE", help="float16, bfloat16, float32 or float64."),
    seed: int = typer.Option(0, metavar="N", help="For attacks that use random numbers."),
    workers: int | None = typer.Option(None, metavar="N", help="Number of processes (or Ray actors)."),
    engine: str = typer.Option("local", metavar="NAME", help="local, or ray (a Ray cluster)."),
    ray_address: str | None = typer.Option(None, metavar="HOST:PORT", help="The Ray cluster (default: start one)."),
    compile_model: bool = typer.Option(False, "--compile", help="Run the model through torch.compile; for long runs."),
    save_perturbations: bool = typer.Option(False, "--save-perturbations", help="Store r, for `deepfool verify`."),
    skip_misclassified: bool = typer.Option(False, "--skip-misclassified", help="Do not attack misclassified samples."),
    audit: bool = typer.Option(True, "--audit/--no-audit", help="Check a few samples at the end (of 200 or more)."),
    certify: float | None = typer.Option(
        None, "--certify", metavar="[SECONDS]", help="Prove lower bounds too, so long for each sample (if empty: 1)."
    ),
    report: bool = typer.Option(True, "--report/--no-report", help="Write report.html into the run folder."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="Print only warnings and errors."),
    as_json: bool = typer.Option(False, "--json", help="Print the summary as JSON to stdout."),
) -> None:
    """Measure a model: find the smallest perturbation of each sample. If it is stopped, rerun the command to resume."""

    from deepfool.datasets import load
    from deepfool.runs.evaluation import Interrupted, evaluate
    from deepfool.runs.execution import keep_freed_memory

    keep_freed_memory()
    model = add_preprocessing(model, mean, std)
    console = make_console(stderr=True, quiet=quiet)
    folder = None if out is None else read_folder(out)
    split = read_split(split, data, "test")
    with drawing_fetch(console, data) as on_fetch:
        samples = load(data, split=split, size=size, on_progress=on_fetch)
    try:
        with _drawing(console) as draw:
            run = evaluate(
                model, data, attack, out=folder, p=read_p(p), bounds=read_bounds(bounds), goal=goal, arch=arch,
                split=split, size=size, limit=limit, indices=indices, shard=read_shard(shard),
                batch_size=batch_size if batch_size == "auto" else _read_whole(batch_size, "--batch-size"),
                device=device, dtype=dtype, seed=seed, workers=workers, engine=engine, ray_address=ray_address,
                compile=compile_model, save_perturbations=save_perturbations, skip_misclassified=skip_misclassified,
                audit=audit, certify=certify, on_start=lambda folder: say(console, f"run folder: {folder}"),
                on_progress=draw, on_stop=lambda: _say_stopping(console), loaded=samples,
                **read_knobs(knob, evaluate, WHERE), **read_where(weights, subspace, schema),
            )  # fmt: skip
    except Interrupted as stopped:
        echo(str(stopped), err=True)
        raise typer.Exit(130) from None
    tell_results(console, run, report=report, as_json=as_json)


def tell_results(console: Console, run: Run, *, report: bool, as_json: bool) -> None:
    """What a run shows, at the end of a command that made or changed it."""
    from deepfool.cli.show import draw_summary
    from deepfool.metrics import summarize

    summary = summarize(run)
    draw_summary(console, summary)
    if report:
        _write_page(console, run)
    if as_json:
        echo(json.dumps(summary, allow_nan=False))


def _write_page(console: Console, run: Run) -> None:
    """Write the report. If that fails, say so; the measurement itself is done."""
    from deepfool.errors import DeepFoolError
    from deepfool.reporting.page import write_report

    try:
        path = write_report([run])
    except DeepFoolError as error:
        echo(f"no report: {error}", err=True, fg="yellow")
        return
    say(console, f"report: {path}")


def read_folder(text: str) -> Path:
    """A folder by its name; an empty name would mean the working directory.

    >>> read_folder("runs/a").name
    'a'
    """
    from deepfool.errors import InputError

    if not text.strip():
        raise InputError("--out must name a folder, got an empty text.", hint="leave it out to use the default.")
    return Path(text)


def read_where(weights: str | None, subspace: str | None, schema: str | None = None) -> dict[str, Any]:
    """The knobs that say where an attack may go, and what each feature counts.

    >>> read_where("1,2", None)
    {'weights': [1.0, 2.0]}
    """
    from deepfool.runs.asking import read_weights

    given = {"weights": None if weights is None else read_weights(weights), "subspace": subspace, "schema": schema}
    return {name: value for name, value in given.items() if value is not None}


def read_p(text: str) -> float:
    """The norm: a number, or inf.

    >>> read_p("inf")
    inf
    """
    from deepfool.norms import check_p

    return check_p(text)  # type: ignore[arg-type]


def _read_whole(text: str, name: str) -> int:
    from deepfool.errors import InputError

    try:
        return int(text)
    except ValueError:
        raise InputError(f"{name} must be a whole number or auto, got {text!r}.") from None


def read_bounds(text: str | None) -> tuple[float, float] | None:
    """LOW,HIGH as numbers.

    >>> read_bounds("0,1"), read_bounds("none")
    ((0.0, 1.0), None)
    """
    from deepfool.errors import InputError

    if text is None or text.lower() == "none":
        return None
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"bounds must be two numbers such as 0,1, got {text!r}.") from None
    return low, high


def read_shard(text: str | None) -> tuple[int, int] | None:
    """i/n as two numbers.

    >>> read_shard("3/16")
    (3, 16)
    """
    from deepfool.errors import InputError

    if text is None:
        return None
    match = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    if match is None:
        raise InputError(f"a shard must look like 3/16, got {text!r}.")
    return int(match[1]), int(match[2])


def read_split(given: str | None, data: str, usual: str) -> str:
    """The split to load: the given one or the usual one; data without splits is loaded whole.

    >>> read_split(None, "mnist", "train"), read_split(None, "npz:x.npz", "train")
    ('train', 'test')
    """
    from deepfool.datasets.loading import has_splits
    from deepfool.errors import InputError

    if has_splits(data):
        return given or usual
    if given is not None:
        raise InputError(f"{data!r} has no splits to choose from, got {given!r}.", hint="leave the split out.")
    return "test"  # the whole data


HAVE_NO_OPTION = (
    "x", "labels", "source", "recipe", "cache", "checkpoint", "on_start", "on_progress", "on_stop", "loaded",
)  # fmt: skip
"""Arguments of the functions behind the commands that only the command may set."""


WHERE = ("weights", "subspace", "schema")
"""Arguments of attacks that have an option of `deepfool evaluate`."""


def read_knobs(texts: list[str], behind: Callable[..., Any] | None = None, also: Sequence[str] = ()) -> dict[str, Any]:
    """NAME=VALUE as JSON values if possible, else as text; `behind` is the function that the command calls.

    Its own arguments are not knobs: they are options of the command, as are those named in `also`.

    >>> read_knobs(["max_iter=10", "levels=[1, 2]", "kind=fast", "eps=inf"])
    {'max_iter': 10, 'levels': [1, 2], 'kind': 'fast', 'eps': inf}
    """
    from deepfool.errors import InputError

    own = {"model", "p", "bounds", "goal", *also, *(inspect.signature(behind).parameters if behind else ())} - {
        "threshold",
        "outputs",
    }
    knobs: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"a knob must be NAME=VALUE, got {text!r}.")
        if name in HAVE_NO_OPTION:
            raise InputError(f"{name} is not a knob: the command sets it.")
        if name in own:
            raise InputError(f"{name} has its own option: --{name.replace('_', '-')}.")
        if name in knobs:
            raise InputError(f"the knob {name} was given twice.")
        try:
            knobs[name] = json.loads(value)
        except (ValueError, RecursionError):
            odd = {"inf": float("inf"), "-inf": float("-inf"), "none": None, "None": None, "True": True, "False": False}
            knobs[name] = odd.get(value, value)
    return knobs


@contextmanager
def _drawing(console: Console) -> Iterator[Callable[[Progress], None]]:
    """The samples done, with rate, time left and the current rho_adv."""
    from deepfool.reporting.times import tell_progress

    # Our own rate and time left: the bar would count the rows of earlier sessions.
    with drawing(console, times=False) as bar:

        def draw(progress: Progress) -> None:
            if progress.auditing:
                bar.say("auditing a few samples (--no-audit leaves that out)")
                return
            if progress.certifying is not None:
                show_certifying(bar, *progress.certifying)
                return
            bar.show("", progress.done, progress.total, tell_progress(progress))
            line = f"{progress.done}/{progress.total} samples, {tell_progress(progress)}"
            bar.log("", line, always=progress.done == progress.total)

        yield draw


def show_certifying(bar: Bar, done: int, total: int) -> None:
    """How many samples have their certificate."""
    bar.show("certifying", done, total)
    bar.log("certifying", f"certified {done}/{total} samples", always=done == total)


def _say_stopping(console: Console) -> None:
    # A signal may arrive in the middle of a write to the same stream. Python then raises an error that can be ignored.
    with suppress(RuntimeError):
        say(console, "finishing the batch; press Ctrl-C again to stop at once")
