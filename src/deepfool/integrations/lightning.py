"""Robustness while a network trains with Lightning (`pip install lightning` or `pytorch-lightning`)."""

from __future__ import annotations

import sys
from typing import Any

from deepfool.errors import MissingExtraError
from deepfool.integrations.figures import with_prefix
from deepfool.integrations.frameworks import import_framework
from deepfool.integrations.probe import Measured, Probe


def _find_callback() -> Any:
    """The base class of callbacks, from the package that is in use: it has two names, with a class in each."""
    names = ("lightning.pytorch", "pytorch_lightning")
    for name in sorted(names, key=lambda name: name not in sys.modules):
        try:
            return import_framework(name, extra="lightning", purpose="the Lightning callback").Callback
        except MissingExtraError as error:
            missing = error
    raise missing


class RobustnessCallback(_find_callback()):  # type: ignore[misc]
    """Measures rho_adv on a fixed subset every n epochs, and logs it as Lightning logs everything else.

    `robustness/rho_at_most` can be monitored, by a `ModelCheckpoint` with the same `every_n_epochs` for instance. It is
    an upper bound, by this attack on these samples: before you believe a gain, let a stronger attack confirm it. In
    training on several devices, the first process measures and the others wait.

    Args:
        data: samples and labels, as `Probe` takes them.
        prefix: the group of the logged names.
        **how: arguments of `deepfool.integrations.Probe`: `samples`, `every`, `attack`, `bounds`, `classifier`, ...

    >>> callback = RobustnessCallback((__import__("torch").rand(40, 4), [0] * 40), samples=20, every=5)
    >>> callback.probe.every, len(callback.probe.indices)
    (5, 20)
    """

    def __init__(self, data: Any, *, prefix: str = "robustness", **how: Any) -> None:
        super().__init__()
        self.probe = Probe(data, **how)
        self.prefix = prefix

    @property
    def history(self) -> list[Measured]:
        """All measurements so far."""
        return self.probe.history

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Find out now, not after hours, whether the network can be measured."""
        self.probe.try_out(pl_module)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Measure, and log what is known."""
        epoch = trainer.current_epoch + 1
        if not self.probe.is_due(epoch):
            return
        found = self.probe.measure(pl_module, epoch) if trainer.is_global_zero else None
        figures = trainer.strategy.broadcast({} if found is None else found.figures)
        # The same in all processes, so that every one of them stops or keeps a checkpoint when one does.
        pl_module.log_dict(with_prefix(self.prefix, figures), on_step=False, on_epoch=True, rank_zero_only=False)
