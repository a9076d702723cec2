"""A network in training, measured on a fixed subset every n epochs."""

from __future__ import annotations

import copy
import itertools
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from deepfool.attacks.shared.arguments import Bounds
from deepfool.attacks.shared.registry import Attack
from deepfool.classifier import Classifier
from deepfool.datasets import load
from deepfool.errors import DeepFoolError, InputError
from deepfool.integrations.figures import list_figures
from deepfool.metrics import Estimate, rho_adv
from deepfool.runs import manifests
from deepfool.runs.evaluation import evaluate
from deepfool.values import check_callable, check_count, check_path


def _whole(module: Any) -> Any:
    """The module itself. Not a lambda: frameworks pickle their callbacks to start processes."""
    return module


class ProbeWarning(UserWarning):
    """A network could not be measured; its training goes on."""


@dataclass(frozen=True)
class Measured:
    """The network after an epoch."""

    epoch: int
    """How many epochs were finished."""
    rho: Estimate
    """rho_adv on the subset: an upper bound, or not known (`exact` is False) if a search had no answer."""
    unanswered: int
    """How many searches had no answer."""
    figures: dict[str, float]
    """All figures that are known, by name; see `list_figures`."""
    seconds: float
    folder: Path | None
    """The run folder, if it was kept."""


class Probe:
    """Measures a network on a fixed subset of some data, again and again while it trains.

    The network is copied, and the random numbers of the training are left as they were: it trains to the same weights
    with and without the probe. A measurement that fails is a `ProbeWarning`, not the end of the training.

    Args:
        data: anything that `deepfool.datasets.load` takes; best, samples that the network is not trained on.
        attack: an attack by name, or a function.
        samples: how many of them, drawn once; all if there are no more.
        every: measure after every so many epochs.
        p, bounds: the norm to minimise, and the (lowest, highest) input value, as in `evaluate`.
        indices: these samples, instead of `samples` drawn ones.
        seed: for the draw, and for attacks that use random numbers.
        split, size: passed on to `load`.
        out: a folder for the runs, one for each epoch that is measured; None keeps none.
        classifier: a function from the module in training to the classifier to measure. For a part of it, or to put a
            normalisation in front: `lambda module: nn.Sequential(Normalize(), module.net)`.
        **knobs: other arguments of the attack.

    >>> data = torch.rand(40, 4), torch.randint(3, (40,))
    >>> probe = Probe(data, samples=20, every=2)
    >>> [probe.is_due(epoch) for epoch in (1, 2, 3, 4)]
    [False, True, False, True]
    >>> found = probe.measure(nn.Linear(4, 3), epoch=2)
    >>> found.epoch, found.unanswered, found.figures["rho_at_most"] == found.rho.value
    (2, 0, True)
    """

    def __init__(
        self,
        data: Any,
        attack: str | Attack = "deepfool",
        *,
        samples: int = 100,
        every: int = 1,
        p: float = 2,
        bounds: Bounds | None = None,
        indices: Sequence[int] | str | None = None,
        seed: int = 0,
        split: str = "test",
        size: int | None = None,
        out: str | Path | None = None,
        classifier: Callable[[Any], nn.Module] = _whole,
        **knobs: Any,
    ) -> None:
        self.every = check_count(every, "every")
        check_callable(classifier, "classifier")
        self.history: list[Measured] = []
        self._out = None if out is None else check_path(out, "out")
        self._classifier = classifier
        self._data = load(data, split=split, size=size)
        if indices is None:
            count = min(check_count(samples, "samples"), len(self._data))
            drawn = np.random.default_rng(check_count(seed, "seed", least=0)).permutation(len(self._data))[:count]
            indices = sorted(drawn.tolist())
        chosen = manifests.select(len(self._data), limit=None, indices=indices, shard=None)
        self.indices: list[int] = chosen.tolist()
        self._how = {
            "data": data, "loaded": self._data, "attack": attack, "indices": self.indices, "p": p, "bounds": bounds,
            "seed": seed, "split": split, "size": size, "audit": False, "save_perturbations": True, **knobs,
        }  # fmt: skip

    def is_due(self, epoch: int) -> bool:
        """Whether to measure after this many finished epochs."""
        return epoch > 0 and epoch % self.every == 0

    def try_out(self, module: Any) -> None:
        """Run the network on two samples, to raise before hours of training if it cannot be measured."""
        net = copy.deepcopy(self._pick(module))
        weight = _find_weight(net)
        x = self._data.batch(self.indices[:2]).to(weight.device, weight.dtype)
        classifier = Classifier(net)
        with _keeping_random_numbers(weight.device), classifier.frozen(), torch.no_grad():
            classifier(x)

    def measure(self, module: Any, epoch: int) -> Measured | None:
        """Measure the network now; None, with a warning, if that is not possible."""
        begin = time.monotonic()
        try:
            found = self._measure(module, epoch, begin)
        except Exception as error:  # whatever it is: hours of training are worth more than a point in a chart
            kind = "" if isinstance(error, DeepFoolError) else f"{type(error).__name__}: "
            warnings.warn(f"no robustness after epoch {epoch}: {kind}{error}", ProbeWarning, stacklevel=2)
            return None
        self.history.append(found)
        return found

    def _measure(self, module: Any, epoch: int, begin: float) -> Measured:
        net, folder = self._pick(module), self._choose_folder(epoch)
        weight = _find_weight(net)
        dtype = "float64" if weight.dtype == torch.float64 else "float32"
        with ExitStack() as stack:
            # A framework may call this where gradients are off.
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            stack.enter_context(_keeping_random_numbers(weight.device))
            place = folder or Path(stack.enter_context(tempfile.TemporaryDirectory())) / "run"
            run = evaluate(net, out=place, device=str(weight.device), dtype=dtype, **self._how)  # it copies the network
            records = run.records()
            return Measured(
                epoch, rho_adv(records, "p"), int(records.censored.sum()), list_figures(run, records),
                time.monotonic() - begin, folder,
            )  # fmt: skip

    def _pick(self, module: Any) -> nn.Module:
        """What to measure of the module in training."""
        net = self._classifier(module)
        if not isinstance(net, nn.Module):
            raise InputError(f"classifier must return a torch module, got {type(net).__name__}.")
        return net

    def _choose_folder(self, epoch: int) -> Path | None:
        """A new folder: a training that is started again must not fail because of the runs of the one before."""
        if self._out is None:
            return None
        name = f"epoch-{epoch:04d}"
        names = itertools.chain([name], (f"{name}-{again}" for again in itertools.count(2)))
        return next(self._out / each for each in names if not (self._out / each).exists())


def _find_weight(net: nn.Module) -> torch.Tensor:
    """A weight of a network, which says where it is and in which precision."""
    return next((each for each in net.parameters() if each.is_floating_point()), torch.zeros(()))


def _keeping_random_numbers(device: torch.device) -> AbstractContextManager[None]:
    """What is drawn inside leaves no trace outside, on the CPU and on the device of the network."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
