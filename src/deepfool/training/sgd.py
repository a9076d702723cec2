"""SGD with momentum, as in the paper: takes a recipe, returns a trained module, and can resume after a kill.

All randomness of an epoch (order, crops, flips, dropout) comes from a generator seeded by (seed, epoch). An epoch that
is repeated after a kill is therefore the same epoch, and a resumed training ends with the same weights.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepfool.errors import InputError, RunError
from deepfool.training.batchnorm import fold, scaffold
from deepfool.training.checkpoints import read_checkpoint, save_checkpoint
from deepfool.training.objectives import Objective, Plain, read_objective
from deepfool.training.processes import ALONE, Team


@dataclass(frozen=True)
class Recipe:
    """How a network is trained. All of it is recorded in the card beside the weights."""

    epochs: int
    learning_rate: float
    batch_size: int = 128
    momentum: float = 0.9
    weight_decay: float = 5e-4
    warmup: float = 0.1
    """The share of all steps over which the rate rises from 0; after that it falls to 0 along a cosine."""
    shift: int = 0
    """Images are shifted by up to this many pixels, zero-padded (the usual random crop)."""
    flip: bool = False
    """Mirror half of the images."""
    crops: tuple[tuple[int, int], ...] = ()
    """(first epoch, side) pairs: from that epoch on, train on random crops of that side. This makes the early epochs of
    networks that end in a global average cheaper. Empty means full images in all epochs."""
    clip: float = math.inf
    """The gradient over all weights is clipped to this norm."""
    dropout: float | None = None
    """The rate of all dropout layers during training; None keeps the rates that the network defines."""
    bfloat16: bool = False
    """Run the layers in bfloat16 during training (weights, loss and evaluation stay in float32)."""
    batchnorm: bool = False
    """Use batch normalisation between convolution and ReLU during training; it is folded away at the end."""
    objective: Objective = field(default_factory=Plain)
    """What is made small: the loss on clean or on adversarial images, or a bound on it. Its fields will do, as on a
    card."""

    def __post_init__(self) -> None:
        if isinstance(self.objective, Mapping):
            object.__setattr__(self, "objective", read_objective(self.objective))

    def side(self, epoch: int, full: int) -> int:
        """The side of the training crops in this epoch.

        >>> Recipe(4, 0.1, crops=((0, 20), (2, 32))).side(1, 32)
        20
        """
        return next((side for first, side in reversed(self.crops) if epoch >= first), full)


@dataclass(frozen=True)
class Progress:
    """What `on_progress` gets after each batch."""

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

    `checkpoint` is a file that is written after every epoch; if it exists already, training resumes from it.

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
            done = [(epoch * batches + i + 1) / (recipe.epochs * batches) for i in range(batches)]
            rates = [_rate(recipe, share) for share in done]
            for batch, loss in run_epoch(
                model, optimizer, draw_batches(images, labels, recipe, epoch), recipe,
                rate=rates.__getitem__, done=done.__getitem__, place=f"epoch {epoch + 1}",
            ):  # fmt: skip
                on_progress(Progress(epoch, recipe.epochs, batch + 1, batches, loss))
            if path is not None:
                save_checkpoint(path, model, optimizer, epoch=epoch + 1, seed=seed, recipe=asdict(recipe))
            if test is not None:
                error = test_error(model, *test)
                on_progress(Progress(epoch, recipe.epochs, batches, batches, loss, error))
    return fold(model).eval() if recipe.batchnorm else model.eval()


def prepare(model: nn.Module, recipe: Recipe) -> None:
    """Choose the faster memory layout, and set the recipe's dropout rate.

    >>> net = nn.Sequential(nn.Dropout(0.5))
    >>> prepare(net, Recipe(1, 0.1, dropout=0.2)); net
    Sequential(
      (0): Dropout(p=0.2, inplace=False)
    )
    """
    # Dense layers keep their layout; convolutions are faster with the channels last.
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's type hints
    for layer in model.modules():
        if isinstance(layer, nn.Dropout) and recipe.dropout is not None:
            layer.p = recipe.dropout


def make_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """SGD with Nesterov momentum over the weights that require a gradient.

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
    done: Callable[[int], float] = lambda _: 1.0,
    place: str,
    scores: Callable[[Tensor], Tensor] | None = None,
    team: Team = ALONE,
) -> Iterator[tuple[int, float]]:
    """One pass over the batches with one step each; yields (batch, loss) after each step.

    `rate` gives the learning rate of each batch, `done` the share of the training that is behind after it. `place` is
    the name of this epoch in error messages. `scores` computes class scores if the model's output is something else.
    The processes of a team each take a part of the batch, and all make the same step: that of the whole batch.

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
            loss = recipe.objective.loss(score, x, y[mine].to(device), done(batch)) * weight
        if not math.isfinite(loss.item()):
            raise RunError(
                f"the loss became {loss.item()} in {place}, batch {batch + 1}.",
                hint="try a smaller learning rate, a longer warm-up or a smaller `clip`",
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


test_error.__test__ = False  # type: ignore[attr-defined]  # pytest would collect it because of its name


def to_unit(images: Tensor) -> Tensor:
    """Pixels as floats in [0, 1]; floats are returned unchanged.

    >>> to_unit(torch.tensor([0, 255], dtype=torch.uint8))
    tensor([0., 1.])
    """
    return images if images.is_floating_point() else images.float() / 255


def last_rate(recipe: Recipe, epochs: int = 5) -> float:
    """The mean learning rate over the last epochs of a recipe (over all epochs if there are fewer).

    The last rate of a schedule that ends at 0 is useless here, and its peak is meant for untrained weights.

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
    """One epoch of batches, shuffled, shifted, cropped and mirrored with this generator, or with the global one.

    >>> images = torch.rand(5, 1, 2, 2)
    >>> [len(x) for x, _ in draw_batches(images, torch.arange(5), Recipe(1, 0.1, batch_size=2), 0)]
    [2, 2, 1]
    """
    side = recipe.side(epoch, images.shape[-1])
    pad = recipe.shift if side == images.shape[-1] else 0  # a smaller crop has room to move inside the image
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


def _restore(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, recipe: Recipe, seed: int) -> int:
    state = read_checkpoint(path, "epoch", "seed", "recipe", "model", "optimizer")
    found = Recipe(**state["recipe"]), state["seed"]
    if found != (recipe, seed):
        raise InputError(
            f"{path} was written with another recipe or seed: {found[0]}, seed {found[1]}.",
            hint="give another checkpoint path, or remove the file to start again",
        )
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["epoch"])
