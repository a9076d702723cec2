"""The processes that train one model: this one alone, or several through Accelerate.

Each takes a part of every batch, the gradients are averaged, and all make the same step. Every process holds all the
weights (data parallelism); sharded weights, such as those of FSDP, are not supported.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from deepfool.errors import require

T = TypeVar("T")

PATIENCE = timedelta(days=7)
"""How long the others wait for the main process, which may take days to make a perturbed set."""


class Team:
    """A team of one: this process alone. Subclasses override what differs for several.

    >>> ALONE.part(5)
    (slice(0, 5, None), 1.0)
    """

    rank = 0
    size = 1

    @property
    def is_main(self) -> bool:
        """Whether this is the process that measures and writes."""
        return self.rank == 0

    def device(self, wanted: str) -> str:
        """Where this process trains."""
        return wanted

    def part(self, count: int) -> tuple[slice, float]:
        """Which samples of a batch this process takes, and the weight of its mean loss.

        The weighted means, averaged over the team, give the mean over the whole batch, even if the batch cannot be
        divided evenly. Every process must take part in every step, so one with no sample of its own computes another's
        with weight 0.
        """
        start, stop = (count * rank // self.size for rank in (self.rank, self.rank + 1))
        if start == stop:
            return slice(0, 1), 0.0
        return slice(start, stop), (stop - start) * self.size / count

    def join(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Versions of the model and the optimizer that step together with the other processes."""
        return model, optimizer

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients, averaged over the team."""
        loss.backward()  # type: ignore[no-untyped-call]

    def clip(self, model: nn.Module, most: float) -> None:
        """Clip the gradient to a norm of at most `most`."""
        nn.utils.clip_grad_norm_(model.parameters(), most)

    def by_main(self, work: Callable[[], T]) -> T:
        """Run `work` in the main process only, and return its result in all of them."""
        return work()

    def leave(self) -> None:
        """Call this once a process will not train again."""


ALONE = Team()


class Accelerated(Team):
    """The processes started by `accelerate launch`."""

    def __init__(self) -> None:
        accelerate = require("accelerate", extra="accelerate", purpose="training in several processes")
        patient = accelerate.InitProcessGroupKwargs(timeout=PATIENCE)
        # Half precision would round away much of a perturbation of 0.01.
        self._accelerator = accelerate.Accelerator(mixed_precision="no", kwargs_handlers=[patient])
        self._broadcast = accelerate.utils.broadcast_object_list
        self.rank = self._accelerator.process_index
        self.size = self._accelerator.num_processes

    def device(self, wanted: str) -> str:
        return str(self._accelerator.device)

    def join(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        joined: tuple[nn.Module, torch.optim.Optimizer] = self._accelerator.prepare(model, optimizer)
        return joined

    def backward(self, loss: Tensor) -> None:
        self._accelerator.backward(loss)

    def clip(self, model: nn.Module, most: float) -> None:
        self._accelerator.clip_grad_norm_(model.parameters(), most)

    def by_main(self, work: Callable[[], T]) -> T:
        shared: list[Any] = [work() if self.is_main else None]
        self._broadcast(shared)
        result: T = shared[0]
        return result

    def leave(self) -> None:
        self._accelerator.end_training()


def find_team() -> Team:
    """The team of this process: that of `accelerate launch` (or torchrun), or this process alone.

    >>> find_team().size
    1
    """
    return _launched() if int(os.environ.get("WORLD_SIZE", "1")) > 1 else ALONE


@lru_cache
def _launched() -> Team:
    """Cached, because a process cannot join its group twice."""
    return Accelerated()
