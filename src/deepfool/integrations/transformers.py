"""Robustness while a network trains with the Hugging Face Trainer (`pip install transformers accelerate`)."""

from __future__ import annotations

from typing import Any

from deepfool.integrations.figures import with_prefix
from deepfool.integrations.frameworks import import_framework
from deepfool.integrations.probe import Measured, Probe

_TRANSFORMERS: Any = import_framework("transformers", extra="hf", purpose="the Trainer callback")


class RobustnessCallback(_TRANSFORMERS.TrainerCallback):  # type: ignore[misc]
    """Measures rho_adv on a fixed subset every n epochs, and logs it through the trainer, to all of its trackers.

    Callbacks of the Trainer are not told who calls them, so this one is made after the trainer and gets it:

        trainer = Trainer(model, args, train_dataset=...)
        trainer.add_callback(RobustnessCallback(trainer, data, every=2))

    For models of images, audio features or other continuous inputs; token numbers cannot be perturbed. The data are
    what the model takes as its first argument, such as `pixel_values`: after the image processor, unless `classifier`
    puts its normalisation in front of the model. In training on several devices, the first process measures and the
    others wait.

    Args:
        trainer: the trainer.
        data: samples and labels, as `Probe` takes them.
        prefix: the group of the logged names.
        **how: arguments of `deepfool.integrations.Probe`: `samples`, `every`, `attack`, `bounds`, `classifier`, ...
    """

    def __init__(self, trainer: Any, data: Any, *, prefix: str = "robustness", **how: Any) -> None:
        self.trainer = trainer
        self.probe = Probe(data, **how)
        self.prefix = prefix
        self.probe.try_out(trainer.model)

    @property
    def history(self) -> list[Measured]:
        """All measurements so far."""
        return self.probe.history

    def on_epoch_end(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        """Measure, and log what is known."""
        epoch = round(state.epoch)
        if not self.probe.is_due(epoch):
            return
        found = self.probe.measure(model, epoch) if state.is_world_process_zero else None
        self.trainer.accelerator.wait_for_everyone()
        if found is not None:
            self.trainer.log(with_prefix(self.prefix, dict(found.figures)))
