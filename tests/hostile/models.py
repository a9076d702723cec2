"""The models: ordinary ones, and those that attacks have tripped over.

Each kind is a small function `build(generator) -> (model, shape of one input)`. Models are tiny, so that thousands of
cases take minutes. Bare functions keep their weights in float32 and cast them to the type of their input, so that
every model can also be asked in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn

Model = Callable[[Tensor], Tensor]
Build = Callable[[Generator], tuple[Model, tuple[int, ...]]]

WIDE = 72
"""Features of the models where classes may be left out: the package does that from 64 features on."""


@dataclass(frozen=True)
class Kind:
    """A kind of model, and what may be asked of it."""

    name: str
    build: Build
    healthy: bool = True
    """No attack may raise on it."""
    alone: bool = True
    """It takes a batch of one."""
    half: bool = True
    """float16 says something about it: its weights and inputs fit, its scores are not all equal."""
    scale: float = 1.0
    """Inputs lie in [0, scale]."""
    cut: float = 0.0
    """Where a single output decides."""
    threshold: float | None = None
    """What to give the attack as `threshold`."""


KINDS: dict[str, Kind] = {}


def kind(name: str = "", **settings: Any) -> Callable[[Build], Build]:
    """Enter a builder in the table, under its own name unless another is given."""

    def enter(build: Build) -> Build:
        key = name or build.__name__
        KINDS[key] = Kind(key, build, **settings)
        return build

    return enter


# --- building blocks ---


def normal(generator: Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator)


def pick(generator: Generator, choices: int) -> int:
    return int(torch.randint(choices, (), generator=generator))


def fill(model: nn.Module, generator: Generator, gain: float = 1.5) -> nn.Module:
    """Weights from the generator, so steep that decisions differ from point to point."""
    with torch.no_grad():
        for parameter in model.parameters():
            fan = parameter[0].numel() if parameter.ndim > 1 else 4
            parameter.copy_(gain * normal(generator, *parameter.shape) / math.sqrt(fan))
    return model


def mlp(generator: Generator, act: type[nn.Module], d: int, c: int, hidden: int = 16) -> nn.Module:
    layers = (nn.Linear(d, hidden), act(), nn.Linear(hidden, hidden), act(), nn.Linear(hidden, c))
    return fill(nn.Sequential(*layers), generator, 2.0)


def linear(generator: Generator, d: int, c: int) -> Model:
    """An affine classifier, decided by x - 1/2 (so that labels vary over the unit cube), as a bare function."""
    w, b = 2 * normal(generator, c, d) / math.sqrt(d), normal(generator, c) / 2
    return lambda x: (x - 0.5) @ w.to(x.dtype).T + b.to(x.dtype)


# --- affine ---


def affine(c: int, d: int) -> Build:
    def build(generator: Generator) -> tuple[Model, tuple[int, ...]]:
        return fill(nn.Linear(d, c), generator), (d,)

    return build


for classes, features in ((1, 5), (2, 6), (3, 1), (10, WIDE), (60, 80)):
    kind(f"affine_{classes}")(affine(classes, features))


@kind(half=False)
def uneven_affine(generator: Generator) -> tuple[Model, tuple[int, ...]]:
    """One class a thousand times steeper: its score is by far the lowest, its boundary the nearest."""
    w, b = normal(generator, 10, WIDE) / math.sqrt(WIDE), normal(generator, 10)
    label, steep = torch.randperm(10, generator=generator)[:2].tolist()
    w[steep] *= 1000
    b[label], b[steep] = 6.0, -900 - 0.5 * float(w[steep].sum())
    if pick(generator, 2):
        return lambda x: x @ w.to(x.dtype).T + b.to(x.dtype), (WIDE,)
    model = nn.Linear(WIDE, 10)
    with torch.no_grad():
        model.weight.copy_(w)
        model.bias.copy_(b)
    return model, (WIDE,)


# --- ordinary networks ---


@kind()
def mlp_relu(generator: Generator) -> tuple[Model, tuple[int, ...]]:
    return mlp(generator, nn.ReLU, WIDE, 10), (WIDE,)


@kind()
def mlp_tanh(generator: Generator) -> tuple[Model, tuple[int, ...]]:
    return mlp(generator, nn.Tanh, 6, 4), (6,)


@kind()
def mlp_gelu(generator: Generator) -> tuple[Model, tuple[int, ...]]:
    return mlp(generator, nn.GELU, WIDE, 7), (WIDE,)


@kind()
def mlp_sigmoid(generator: Generator) -> tuple[Model, tuple[int, ...]]:
    return mlp(generator, nn.Sigmoid, 8, 5), (8,)


@kind()
def one_logit(generator: Generator) -> tuple[Model, tuple[int, ...]]:
    return mlp(generator, nn.Tanh, 6, 1), (6,)


@kind()
def conv(generator: Generator) -> tuple[Model, tuple[int, ...]]:
    layers = (nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 6))
    return fill(nn.Sequential(*layers), generator, 2.0), (1, 9, 9)


@kind()
def conv_max_pool(generator: Generator) -> tuple[Model, tuple[int, ...]]:
    layers = (nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5))
    return fill(nn.Sequential(*layers), generator, 2.0), (2, 6, 6)


@kind()
def batch_norm(generator: Generator) -> tuple[Model, tuple[int, ...]]:
    norm = nn.BatchNorm1d(16)
    model = fill(nn.Sequential(nn.Linear(WIDE, 16), norm, nn.ReLU(), nn.Linear(16, 10)), generator, 2.0)
    norm.running_mean.copy_(normal(generator, 16))
    norm.running_var.copy_(torch.rand(16, generator=generator) + 0.1)
    return model, (WIDE,)


@kind()
def layer_norm(generator: Generator) -> tuple[Model, tuple[int, ...]]:
    layers = (nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))
    return fill(nn.Sequential(*layers), generator, 2.0), (8,)


@kind()
def dropout(generator: Generator) -> tuple[Model, tuple[int, ...]]:
    layers = (nn.Linear(8, 16), nn.Dropout(0.5), nn.Tanh(), nn.Linear(16, 4))
    return fill(nn.Sequential(*layers), generator, 2.0), (8,)


class Attention(nn.Module):
    """One head over the rows of the input, then the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.last = nn.Linear(4, 12), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.mix(x).chunk(3, -1)
        return self.last((torch.softmax(q @ k.transpose(1, 2), -1) @ v).mean(1))


@kind()
def attention(generator: Generator) -> tuple[Model, tuple[int, ...]]:
    return fill(Attention(), generator, 3.0), (5, 4)


@kind()
def trained_two_classes(generator: Generator) -> tuple[Model, tuple[int, ...]]:
    """A few steps of gradient descent on two blobs: margins as training makes them."""
    model = mlp(generator, nn.ReLU, 16, 2)
    y = torch.arange(64) % 2
    x = 0.5 + 0.15 * normal(generator, 64, 16) + 0.2 * (y[:, None] - 0.5) * normal(generator, 16).sign()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(15):
        optimiser.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    return model, (16,)


# --- several branches: the last layer does not tell how steep the classes are ---


class Branches(nn.Module):
    """Several networks on the same input, and how their outputs are put together."""

    def __init__(self, branches: list[nn.Module], join: Callable[[list[Tensor]], Tensor]) -> None:
        super().__init__()
        self.branches, self.join = nn.ModuleList(branches), join

    def forward(self, x: Tensor) -> Tensor:
        return self.join([branch(x) for branch in self.branches])


def concatenate(outputs: list[Tensor]) -> Tensor:
    return torch.cat(outputs, 1)


def average(outputs: list[Tensor]) -> Tensor:
    return torch.stack(outputs).mean(0)


def average_probabilities(outputs: list[Tensor]) -> Tensor:
    return torch.stack(outputs).softmax(2).mean(0)


def choose_group(outputs: list[Tensor]) -> Tensor:
    """p(group) * p(class | group), the first output being the groups'."""
    groups, *classes = outputs
    inside = torch.stack(classes, 1).softmax(2)
    return (groups.softmax(1)[:, :, None] * inside).flatten(1)


def weigh_experts(outputs: list[Tensor]) -> Tensor:
    """Logits of experts, weighed by a gate, the first output."""
    gate, *experts = outputs
    return (gate.softmax(1)[:, :, None] * torch.stack(experts, 1)).sum(1)


@kind()
def mean_of_probabilities(generator: Generator) -> tuple[Model, tuple[int, ...]]:
    return Branches([mlp(generator, nn.ReLU, WIDE, 6) for _ in range(3)], average_probabilities), (WIDE,)


@kind()
def mean_of_logits(generator: Generator) -> tuple[Model, tuple[int, ...]]:
    return Branches([mlp(generator, nn.ReLU, WIDE, 10) for _ in range(3)], average), (WIDE,)


@kind()
def two_heads(generator: Generator) -> tuple[Model, tuple[int, ...]]:
    """One head much steeper than the other."""
    heads = [mlp(generator, nn.Tanh, WIDE, 5), mlp(generator, nn.Tanh, WIDE, 5)]
    with torch.no_grad():
        heads[0][0].weight *= 4
    return Branches(heads, concatenate), (WIDE,)


@kind()
def ten_heads(generator: Generator) -> tuple[Model, tuple[int, ...]]:
    """One output each, from small heads of very different slopes."""
    heads = [mlp(generator, nn.Tanh, WIDE, 1, hidden=5) for _ in range(10)]
    with torch.no_grad():
        for i, head in enumerate(heads):
            head[0].weight *= 1.5 ** (i - 5)
    return Branches(heads, concatenate), (WIDE,)


@kind()
def hierarchical(generator: Generator) -> tuple[Model, tuple[int, ...]]:
    heads = [mlp(generator, nn.Tanh, WIDE, 3)] + [mlp(generator, nn.Tanh, WIDE, 4) for _ in range(3)]
    return Branches(heads, choose_group), (WIDE,)


@kind()
def experts(generator: Generator) -> tuple[Model, tuple[int, ...]]:
    heads = [mlp(generator, nn.Tanh, WIDE, 3)] + [mlp(generator, nn.ReLU, WIDE, 10) for _ in range(3)]
    return Branches(heads, weigh_experts), (WIDE,)


class Bypass(nn.Module):
    """A network, and a way straight from the input to some of its scores."""

    def __init__(self, body: nn.Module, shortcut: Tensor) -> None:
        super().__init__()
        self.body = body
        self.register_buffer("shortcut", shortcut)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + (x - 0.5) @ self.shortcut.T


@kind()
def bypass(generator: Generator) -> tuple[Model, tuple[int, ...]]:
    shortcut = normal(generator, 10, WIDE)
    shortcut[torch.randperm(10, generator=generator)[3:]] = 0
    return Bypass(mlp(generator, nn.ReLU, WIDE, 10), shortcut), (WIDE,)


# --- outputs of other kinds ---


@kind()
def bare_function(generator: Generator) -> tuple[Model, tuple[int, ...]]:
    first, last = linear(generator, WIDE, 12), linear(generator, 12, 8)
    return lambda x: last(torch.tanh(2 * first(x))), (WIDE,)


@kind()
def softmax_end(generator: Generator) -> tuple[Model, tuple[int, ...]]:
    return nn.Sequential(mlp(generator, nn.ReLU, 8, 4), nn.Softmax(1)), (8,)


@kind(cut=0.5)
def sigmoid_end(generator: Generator) -> tuple[Model, tuple[int, ...]]:
    return nn.Sequential(mlp(generator, nn.Tanh, 8, 1), nn.Sigmoid()), (8,)


@kind(cut=0.5, threshold=0.5)
def sigmoid_inside(generator: Generator) -> tuple[Model, tuple[int, ...]]:
    """A sigmoid that cannot be seen from outside, with the threshold given."""
    body = mlp(generator, nn.Tanh, 8, 1)
    return Branches([body], lambda outputs: torch.sigmoid(outputs[0][:, 0])), (8,)


@kind()
def tanh_end(generator: Generator) -> tuple[Model, tuple[int, ...]]:
    return nn.Sequential(mlp(generator, nn.ReLU, 8, 4), nn.Tanh()), (8,)


def saturated(steepness: float) -> Build:
    def build(generator: Generator) -> tuple[Model, tuple[int, ...]]:
        f = linear(generator, 12, 5)
        return lambda x: torch.softmax(steepness * f(x), 1), (12,)

    return build


kind("softmax_of_6z")(saturated(6.0))
kind("softmax_of_20z")(saturated(20.0))


# --- arithmetic at its ends ---


def vanishing(scale: float) -> Build:
    """Gradients of this size: with scores as small (all is well, but for the units), or with offsets of about 1, next
    to which float32 or even float64 cannot see them."""

    def build(generator: Generator) -> tuple[Model, tuple[int, ...]]:
        d, c = ((6, 4), (WIDE, 10), (WIDE, 10))[pick(generator, 3)]
        f, b = linear(generator, d, c), normal(generator, c)
        if pick(generator, 2):
            return lambda x: f(x) * scale, (d,)
        return lambda x: f(x) * scale + b.to(x.dtype), (d,)

    return build


for exponent in (30, 37, 39, 42, 45):
    kind(f"vanishing_{exponent}", half=False)(vanishing(10.0**-exponent))


def offset(by: float) -> Build:
    def build(generator: Generator) -> tuple[Model, tuple[int, ...]]:
        d, c = ((6, 4), (WIDE, 10), (WIDE, 10))[pick(generator, 3)]
        return Branches([mlp(generator, nn.Tanh, d, c)], lambda outputs: outputs[0] + by), (d,)

    return build


kind("offset_10")(offset(10.0))
kind("offset_100")(offset(100.0))
kind("offset_10000")(offset(1e4))


def huge(scale: float) -> Build:
    """Inputs up to `scale`, and weights that match."""

    def build(generator: Generator) -> tuple[Model, tuple[int, ...]]:
        model = mlp(generator, nn.ReLU, 12, 5)
        with torch.no_grad():
            model[0].weight /= scale
        return model, (12,)

    return build


kind("huge_1e3", scale=1e3)(huge(1e3))
kind("huge_1e5", scale=1e5, half=False)(huge(1e5))


# --- broken ones ---


@kind(healthy=False)
def constant(generator: Generator) -> tuple[Model, tuple[int, ...]]:
    """Flat everywhere, with one label or with all scores equal."""
    b = normal(generator, 8) * pick(generator, 2)
    return lambda x: 0 * x[:, :8] + b.to(x.dtype), (WIDE,)


@kind(healthy=False)
def no_graph(generator: Generator) -> tuple[Model, tuple[int, ...]]:
    f = linear(generator, 5, 3)
    return lambda x: f(x.detach()), (5,)


@kind(healthy=False)
def nan_in_places(generator: Generator) -> tuple[Model, tuple[int, ...]]:
    """NaN where the first feature is small, and infinite slopes at the edge of that."""
    f = linear(generator, WIDE, 8)
    return lambda x: f(x) + torch.sqrt(x[:, :1] - 0.25), (WIDE,)


@kind()
def rounded_inputs(generator: Generator) -> tuple[Model, tuple[int, ...]]:
    """Steps of a sixteenth: no gradient at all, or one that pretends the steps were a slope."""
    f = linear(generator, 6, 4)
    if pick(generator, 2):
        return lambda x: f((16 * x).round() / 16), (6,)
    return lambda x: f(x + ((16 * x).round() / 16 - x).detach()), (6,)


@kind()
def dead_relu(generator: Generator) -> tuple[Model, tuple[int, ...]]:
    """Most hidden units never fire: the scores are flat over most of the inputs."""
    model = mlp(generator, nn.ReLU, 6, 3)
    with torch.no_grad():
        model[0].bias -= 2.5
    return model, (6,)


@kind(half=False)
def other_sums_alone(generator: Generator) -> tuple[Model, tuple[int, ...]]:
    """Sums in another order for a batch of one, as fast kernels have them."""
    w, b = normal(generator, 5, 40), normal(generator, 5)

    def f(x: Tensor) -> Tensor:
        v, bias = w.to(x.dtype), b.to(x.dtype)
        return x @ v.T + bias if len(x) > 1 else (x.flip(1)[:, None] * v.flip(1)).cumsum(2)[..., -1] + bias

    return f, (40,)


@kind(healthy=False, alone=False)
def squeezes(generator: Generator) -> tuple[Model, tuple[int, ...]]:
    """Forgets the batch dimension of a batch of one."""
    f = linear(generator, 6, 4)
    return lambda x: f(x).squeeze(), (6,)
