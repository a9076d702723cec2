"""`deepfool train`: train a network of the zoo and write its weights and their card; resumable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from deepfool.cli.output import echo, make_console
from deepfool.cli.progress import drawing, drawing_fetch, say

if TYPE_CHECKING:
    from rich.console import Console

    from deepfool.training.sgd import Progress, Recipe


def train_network(
    name: str = typer.Argument(help="A network of the zoo that has a recipe, such as lenet-mnist."),
    epochs: int | None = typer.Option(None, min=1, help="Number of epochs (default: the recipe's)."),
    seed: int = typer.Option(0, min=0, help="Seed of the initial weights, the order, augmentation and dropout."),
    data: str | None = typer.Option(None, metavar="SPEC", help="Data to train on (default: the network's own)."),
    out: Path | None = typer.Option(
        None, metavar="FILE", help="Where to write the weights (.safetensors); the card goes beside."
    ),
    checkpoint: Path | None = typer.Option(None, metavar="DIR", help="Folder of the checkpoint."),
    fresh: bool = typer.Option(
        False, "--fresh/--resume", help="Start again, or resume from a checkpoint if there is one."
    ),
    threads: int | None = typer.Option(None, min=1, help="Processor threads."),
    device: str = typer.Option("cpu", help="Where to train: cpu, cuda, mps."),
) -> None:
    """Train a network of the zoo with SGD and momentum. The same command resumes a run that was killed."""
    from dataclasses import asdict, replace

    import torch

    from deepfool import cache, datasets
    from deepfool.cli.evaluate import read_split
    from deepfool.cli.models import describe_accuracy
    from deepfool.errors import InputError
    from deepfool.models.cards import write_weights
    from deepfool.models.zoo import ZOO
    from deepfool.runs.execution import keep_freed_memory
    from deepfool.training.recipes import RECIPES
    from deepfool.training.sgd import test_error, to_unit, train

    keep_freed_memory()
    entry = ZOO.get(name)
    recipe = RECIPES.get(name)
    if entry is None or recipe is None:
        raise InputError(f"no recipe to train {name!r}.", hint=f"one of {', '.join(RECIPES)}")
    if epochs is not None:
        recipe = replace(recipe, epochs=epochs)
    if threads is not None:
        torch.set_num_threads(threads)
    out = out or cache.home() / "models" / f"{name}.safetensors"
    if out.suffix != ".safetensors":
        raise InputError(f"--out must end in .safetensors, got {out}.")

    console = make_console(stderr=True)
    spec = data or entry.data
    with drawing_fetch(console, spec) as draw_data:
        train_set, test_set = (
            datasets.load(spec, split=read_split(None, spec, split), size=entry.input_shape[-1], on_progress=draw_data)
            for split in ("train", "test")
        )
    fingerprints = {"train": train_set.fingerprint(), "test": test_set.fingerprint()}
    test = test_set.images(), test_set.labels
    model = entry.build(seed).to(device)
    state = (checkpoint or cache.home() / "checkpoints") / f"{name}-{_key(recipe, seed, fingerprints['train'])}.pt"
    if fresh:
        state.unlink(missing_ok=True)

    say(console, f"{name}: {recipe.epochs} epochs on {data or entry.data}; checkpoint {state}")
    if state.exists():
        say(console, "resuming from the checkpoint; --fresh starts again")
    try:
        with _drawing(console, name, recipe.epochs) as draw:
            train(
                model, train_set.images(), train_set.labels, recipe,
                test=test, seed=seed, checkpoint=state, on_progress=draw,
            )  # fmt: skip
    except KeyboardInterrupt:
        say(console, "stopped; run the same command to resume after the last complete epoch")
        raise typer.Exit(130) from None
    error = test_error(model, *test)
    robust = recipe.objective.measure(model, to_unit(test[0]).to(device), test[1].to(device))
    command = f"deepfool train {name}" + "".join(
        f" --{option} {value}"
        for option, value in (("epochs", epochs), ("seed", seed or None), ("data", data))
        if value is not None
    )
    write_weights(
        model, out, name=name, data=data or entry.data, data_sha256=fingerprints, recipe=asdict(recipe), seed=seed,
        epochs=recipe.epochs, test_error=error, command=command, torch=torch.__version__, robust_accuracy=robust,
    )  # fmt: skip
    paper = "" if data or entry.paper_error is None else f", paper {100 * entry.paper_error:.1f} %"
    echo(f"{name}: test error {100 * error:.2f} % of {len(test_set)}{paper}")
    for each in robust:
        echo(f"{name}: {describe_accuracy(each)}")
    echo(f"{out}")


def _key(recipe: Recipe, seed: int, data: str) -> str:
    """A short hash, so that runs with other settings or data never share a checkpoint."""
    import hashlib
    import json
    from dataclasses import asdict

    settings = json.dumps([asdict(recipe), seed, data], sort_keys=True)
    return hashlib.sha256(settings.encode()).hexdigest()[:8]


@contextmanager
def _drawing(console: Console, name: str, epochs: int) -> Iterator[Callable[[Progress], None]]:
    """The current epoch, and a line for each that is finished."""
    with drawing(console) as bar:

        def draw(progress: Progress) -> None:
            done, total = progress.epoch * progress.batches + progress.batch, epochs * progress.batches
            bar.show(name, done, total, f"epoch {progress.epoch + 1}/{epochs}, loss {progress.loss:.3f}")
            if progress.test_error is not None:
                bar.say(
                    f"{name}: epoch {progress.epoch + 1}/{epochs}, loss {progress.loss:.4f}, "
                    f"test error {100 * progress.test_error:.2f} %"
                )

        yield draw
