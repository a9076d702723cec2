"""SGD with momentum, as the paper trains: one recipe in, one trained module out, resumable after a kill.

All randomness of an epoch (order, crops, flips, dropout) is drawn from a stream seeded by (seed, epoch), so an
epoch that is run again after a kill is the same epoch, and a resumed training ends where an unbroken one does.
"""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepfool.errors import InputError, RunError
from deepfool.training.batchnorm import fold, scaffold
from deepfool.training.processes import ALONE, Team


@dataclass(frozen=True)
class Recipe:
    """How a network is trained. Everything here goes into the card that ships with the weights."""

    epochs: int
    learning_rate: float
    batch_size: int = 128
    momentum: float = 0.9
    weight_decay: float = 5e-4
    warmup: float = 0.1
    """Share of all steps over which the rate climbs from 0; afterwards it falls to 0 along a cosine."""
    shift: int = 0
    """Images are shifted by up to this many pixels, zero-padded (the usual random crop)."""
    flip: bool = False
    """Mirror half of the images."""
    crops: tuple[tuple[int, int], ...] = ()
    """(first epoch, side) pairs: from that epoch on, train on random crops of that side. Cheaper early epochs for
    networks that end in a global average; empty means the full image throughout."""
    clip: float = math.inf
    """Largest norm of the whole gradient."""
    dropout: float | None = None
    """The rate of all dropout layers while training; None leaves each as the network defines it."""
    bfloat16: bool = False
    """Run the layers in bfloat16 while training (weights, loss and evaluation stay in float32)."""
    batchnorm: bool = False
    """Normalise between convolution and ReLU while training; the trained network has it folded away."""

    def side(self, epoch: int, full: int) -> int:
        """The side of the training crops in this epoch.

        >>> Recipe(4, 0.1, crops=((0, 20), (2, 32))).side(1, 32)
        20
        """
        return next((side for first, side in reversed(self.crops) if epoch >= first), full)


@dataclass(frozen=True)
class Progress:
    """What a training run tells its caller after each batch."""

    epoch: int
    epochs: int
    batch: int
    batches: int
    loss: float
    test_error: float | None = None


def train(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    recipe: Recipe,
    *,
    test: tuple[Tensor, Tensor] | None = None,
    seed: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> nn.Module:
    """Train `model` in place on images (n, c, h, w), uint8 or float in [0, 1], and return it.

    With `checkpoint`, the state is written there after every epoch, and a file found there is taken up again.

    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    >>> x = torch.rand(64, 1, 2, 2); y = (x.flatten(1).sum(1) > 2).long()
    >>> _ = train(net, x, y, Recipe(epochs=30, learning_rate=0.5, batch_size=16, weight_decay=0.0))
    >>> test_error(net, x, y) < 0.2
    True
    """
    path = None if checkpoint is None else Path(checkpoint)
    if recipe.batchnorm:
        scaffold(model)
    prepare(model, recipe)
    optimizer = make_optimizer(model, recipe)
    start = 0
    if path is not None and path.exists():
        start = _restore(path, model, optimizer, recipe, seed)

    device = next(model.parameters()).device
    batches = math.ceil(len(images) / recipe.batch_size)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        for epoch in range(start, recipe.epochs):
            torch.manual_seed(seed * 1_000_003 + epoch)
            rates = [_rate(recipe, (epoch * batches + i + 1) / (recipe.epochs * batches)) for i in range(batches)]
            for batch, loss in run_epoch(
                model, optimizer, draw_batches(images, labels, recipe, epoch), recipe,
                rate=rates.__getitem__, place=f"epoch {epoch + 1}",
            ):  # fmt: skip
                on_progress(Progress(epoch, recipe.epochs, batch + 1, batches, loss))
            if path is not None:
                save_state(path, model, optimizer, epoch=epoch + 1, seed=seed, recipe=asdict(recipe))
            if test is not None:
                error = test_error(model, *test)
                on_progress(Progress(epoch, recipe.epochs, batches, batches, loss, error))
    return fold(model).eval() if recipe.batchnorm else model.eval()


def prepare(model: nn.Module, recipe: Recipe) -> None:
    """Lay the weights out for speed, and set the dropout that the recipe asks for.

    >>> net = nn.Sequential(nn.Dropout(0.5))
    >>> prepare(net, Recipe(1, 0.1, dropout=0.2)); net
    Sequential(
      (0): Dropout(p=0.2, inplace=False)
    )
    """
    # Dense layers keep their layout; convolutions are faster with the channels last.
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's own hints leave it out
    for layer in model.modules():
        if isinstance(layer, nn.Dropout) and recipe.dropout is not None:
            layer.p = recipe.dropout


def make_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """SGD with Nesterov's momentum over the weights that ask for a gradient.

    >>> make_optimizer(nn.Linear(2, 2), Recipe(1, 0.1)).defaults["nesterov"]
    True
    """
    return torch.optim.SGD(
        [parameter for parameter in model.parameters() if parameter.requires_grad], lr=recipe.learning_rate,
        momentum=recipe.momentum, weight_decay=recipe.weight_decay, nesterov=recipe.momentum > 0,
    )  # fmt: skip


def run_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[tuple[Tensor, Tensor]],
    recipe: Recipe,
    *,
    rate: Callable[[int], float],
    place: str,
    scores: Callable[[Tensor], Tensor] | None = None,
    team: Team = ALONE,
) -> Iterator[tuple[int, float]]:
    """One pass over the batches, a step for each; yields (batch, loss) after each step.

    `rate` gives the learning rate of each batch; `place` is how errors call this epoch; `scores` reads class scores
    where the output of the model is something else. The members of a team take a part of each batch, and all of them
    make the same step: that of the whole batch.

    >>> net = nn.Linear(2, 2)
    >>> data = [(torch.rand(8, 2), torch.zeros(8, dtype=torch.long))] * 3
    >>> recipe = Recipe(1, 0.1)
    >>> [batch for batch, _ in run_epoch(net, make_optimizer(net, recipe), data, recipe, rate=lambda _: 0.1, place="")]
    [0, 1, 2]
    """
    device = next(model.parameters()).device
    score = scores or model
    model.train()
    for batch, (x, y) in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = rate(batch)
        mine, weight = team.part(len(y))
        x = x[mine].to(device)
        if x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16, enabled=recipe.bfloat16):
            found = score(x)
        wide = found.to(torch.promote_types(found.dtype, torch.float32))
        loss = F.cross_entropy(wide, y[mine].to(device)) * weight
        if not math.isfinite(loss.item()):
            raise RunError(
                f"the loss became {loss.item()} in {place}, batch {batch + 1}.",
                hint="a smaller learning rate, a longer warm-up or a smaller `clip` keeps it finite",
            )
        optimizer.zero_grad(set_to_none=True)
        team.backward(loss)
        if math.isfinite(recipe.clip):
            team.clip(model, recipe.clip)
        optimizer.step()
        yield batch, loss.item()


@torch.no_grad()
def test_error(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    batch_size: int = 500,  # noqa: PT028
    *,
    scores: Callable[[Tensor], Tensor] | None = None,  # noqa: PT028
) -> float:
    """The share of images that the model gets wrong, in eval mode and full precision; `scores` as in `run_epoch`.

    >>> test_error(nn.Flatten(), torch.eye(3).view(3, 3, 1, 1), torch.tensor([0, 1, 1]))
    0.3333333333333333
    """
    was_training = model.training
    model.eval()
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    wrong = 0
    for x, y in zip(torch.split(images, batch_size), torch.split(labels, batch_size), strict=True):
        labels_found = (scores or model)(to_unit(x.to(device))).argmax(1)
        wrong += int(torch.ne(labels_found, y.to(device)).sum())
    model.train(was_training)
    return wrong / len(images)


test_error.__test__ = False  # type: ignore[attr-defined]  # its name makes pytest take it for a test


def to_unit(images: Tensor) -> Tensor:
    """Pixels as floats in [0, 1]; floats are passed through.

    >>> to_unit(torch.tensor([0, 255], dtype=torch.uint8))
    tensor([0., 1.])
    """
    return images if images.is_floating_point() else images.float() / 255


def last_rate(recipe: Recipe, epochs: int = 5) -> float:
    """The mean learning rate over the last epochs of a recipe (over all, if there are fewer).

    A schedule that ends at 0 has no last rate to speak of, and its peak is a rate for weights that know nothing yet.

    >>> round(last_rate(Recipe(epochs=5, learning_rate=0.1, warmup=0.0)), 6)
    0.05
    >>> round(last_rate(Recipe(epochs=10, learning_rate=0.1, warmup=0.0)), 3)
    0.018
    """
    steps = 1000
    first = max(0.0, 1 - epochs / recipe.epochs)
    return sum(_rate(recipe, first + (1 - first) * (i + 0.5) / steps) for i in range(steps)) / steps


def _rate(recipe: Recipe, done: float) -> float:
    if done < recipe.warmup:
        return recipe.learning_rate * done / recipe.warmup
    return recipe.learning_rate * 0.5 * (1 + math.cos(math.pi * (done - recipe.warmup) / (1 - recipe.warmup)))


def draw_batches(
    images: Tensor, labels: Tensor, recipe: Recipe, epoch: int, generator: torch.Generator | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """One epoch of batches, shuffled, shifted, cropped and mirrored by a generator, else by the global stream.

    >>> images = torch.rand(5, 1, 2, 2)
    >>> [len(x) for x, _ in draw_batches(images, torch.arange(5), Recipe(1, 0.1, batch_size=2), 0)]
    [2, 2, 1]
    """
    side = recipe.side(epoch, images.shape[-1])
    pad = recipe.shift if side == images.shape[-1] else 0  # a smaller crop moves about inside the image as it is
    for chosen in torch.split(torch.randperm(len(images), generator=generator), recipe.batch_size):
        x = to_unit(images[chosen])
        room = images.shape[-1] + 2 * pad - side
        if room > 0:
            x = F.pad(x, (pad, pad, pad, pad))
            corners = torch.randint(0, room + 1, (len(x), 2), generator=generator)
            rows = corners[:, 0, None] + torch.arange(side)
            columns = corners[:, 1, None] + torch.arange(side)
            x = x[torch.arange(len(x))[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
        if recipe.flip:
            x = torch.where(torch.rand(len(x), 1, 1, 1, generator=generator) < 0.5, x.flip(-1), x)
        yield x, labels[chosen]


def save_state(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, *, epoch: int, **about: Any
) -> None:  # fmt: skip
    """Write the state beside its final name and rename it, so that a kill never leaves half a checkpoint.

    >>> import tempfile
    >>> net = nn.Linear(1, 1)
    >>> with tempfile.TemporaryDirectory() as here:
    ...     save_state(Path(here) / "run.pt", net, make_optimizer(net, Recipe(1, 0.1)), epoch=3, seed=0)
    ...     read_checkpoint(Path(here) / "run.pt", "epoch")["epoch"]
    3
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict(), **about}
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as stream:
        torch.save(state, stream)
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(path)


def read_checkpoint(path: Path, *needed: str) -> dict[str, Any]:
    """A checkpoint that has these entries; nothing that it holds is run."""
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
        for name in needed:
            state[name]
    except (OSError, RuntimeError, KeyError, TypeError, EOFError, pickle.UnpicklingError) as error:
        raise RunError(
            f"{path} cannot be read as a checkpoint ({type(error).__name__}).",
            hint="remove the file to start afresh, or give another checkpoint path",
        ) from error
    return state


def _restore(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, recipe: Recipe, seed: int) -> int:
    state = read_checkpoint(path, "epoch", "seed", "recipe", "model", "optimizer")
    found = Recipe(**state["recipe"]), state["seed"]
    if found != (recipe, seed):
        raise InputError(
            f"{path} was written by another recipe or seed: {found[0]}, seed {found[1]}.",
            hint="give another checkpoint path, or remove the file to start afresh",
        )
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["epoch"])
