"""Small models, data and attacks that other processes can import (`py:tests.nets:small`)."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from deepfool import Adversarial, deepfool


def small(bend: type[nn.Module] = nn.Tanh) -> nn.Module:
    """The same network each time: 6 inputs, 4 classes, curved enough to take a few iterations."""
    generator = torch.Generator().manual_seed(7)
    model = nn.Sequential(nn.Linear(6, 16), bend(), nn.Linear(16, 4))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model


def unproved() -> nn.Module:
    """The same with a layer that certificates do not know."""
    return small(nn.GELU)


def kinked() -> nn.Module:
    """The same small ReLU network each time, for `points`; it can be certified."""
    generator = torch.Generator().manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model


class Wavy(nn.Module):
    """A network that cannot be certified: nothing bounds its sine."""

    def __init__(self) -> None:
        super().__init__()
        self.body = kinked()

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(3 * self.body(x))


def points(count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(11)
    return torch.rand(count, 6, generator=generator), torch.randint(0, 4, (count,), generator=generator)


class Flat(nn.Module):
    """Scores that do not depend on some of the inputs: those with x[0] < 0.5 cannot be fooled."""

    def forward(self, x: Tensor) -> Tensor:
        live = (x[:, :1] >= 0.5).to(x.dtype)
        # Four classes, as the labels of `points` have, and no sum of 1, or they would be taken for probabilities.
        return torch.cat([1 + 0 * x[:, :1], live * x[:, 1:2], 0 * x[:, :2] - 1], 1)


class Narrow(nn.Module):
    """A device with room for so many samples and no more."""

    def __init__(self, most: int, kind: type[Exception] = torch.OutOfMemoryError) -> None:
        super().__init__()
        self.body, self.most, self.kind = small(), most, kind

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > self.most:
            raise self.kind("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")
        return self.body(x)  # type: ignore[no-any-return]


def telling_deepfool(model: object, x: Tensor, *, p: float = 2, max_iter: int = 50) -> Adversarial:
    """deepfool, which notes who runs what; the worker that has the fifth of the batches of 8 waits there to be killed,
    unless another was before."""
    notes = Path(os.environ["NOTES"])
    (notes / f"{os.getpid()} {float(x[0, 0])!r}").touch()
    if torch.equal(x[0], points(80)[0][32]) and not list(notes.glob("waiting *")):
        (notes / f"waiting {os.getpid()}").touch()
        threading.Event().wait()
    return deepfool(model, x, p=p, max_iter=max_iter)  # type: ignore[arg-type]


def deepfool_on_a_doomed_node(model: object, x: Tensor, *, p: float = 2, max_iter: int = 50) -> Adversarial:
    """deepfool, which notes on which node of a Ray cluster it runs what; on the doomed one it waits in its second batch
    to be killed, and on the other it waits until that has happened."""
    import ray

    notes, node = Path(os.environ["NOTES"]), ray.get_runtime_context().get_node_id()
    before = list(notes.glob(f"ran {node} *"))
    (notes / f"ran {node} {float(x[0, 0])!r}").touch()
    if node == (notes / "doomed").read_text():
        if before:
            (notes / f"waiting {os.getpid()}").touch()
            threading.Event().wait()
    elif len(before) >= 2:
        while not list(notes.glob("waiting *")):
            time.sleep(0.01)
    return deepfool(model, x, p=p, max_iter=max_iter)  # type: ignore[arg-type]


def deadly_attack(model: object, x: Tensor, *, p: float = 2) -> Adversarial:
    """deepfool, but the third of the batches of 8 kills its process."""
    if torch.equal(x[0], points(40)[0][16]):
        os.kill(os.getpid(), signal.SIGKILL)
    return deepfool(model, x, p=p)  # type: ignore[arg-type]


def deadly_in_a_worker() -> nn.Module:
    """A model that ends the process which builds it, unless that is the one the test started."""
    if multiprocessing.parent_process() is not None:
        os._exit(3)
    return small()


def drawing_attack(model: object, x: Tensor, *, p: float = 2) -> Adversarial:
    """An attack that draws: deepfool from the torch stream's own overshoot."""
    return deepfool(model, x, p=p, overshoot=0.02 + float(torch.rand(())))  # type: ignore[arg-type]


class Noisy(nn.Module):
    """The small network with noise on its scores."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.body, self.size = small(), size

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.body(x)
        return scores + self.size * torch.randn_like(scores)


def noisy() -> nn.Module:
    return Noisy(0.01)


def deaf() -> nn.Module:
    """A classifier of 28 x 28 pictures whose decision nothing changes."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 3))
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].bias.copy_(torch.tensor([2.0, 0.0, 0.0]))
    return model


def brightness() -> nn.Module:
    """A classifier of 4 x 4 grey pictures with a single score, their mean brightness."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 1))
    with torch.no_grad():
        model[1].weight.fill_(1 / 16)
        model[1].bias.zero_()
    return model
