"""Every library's DeepFool behind one signature, free and inside [0, 1]: `run(model, x, labels) -> perturbed x`.

What each does by default, and what is changed here to make the comparison fair:

- adv-lib always clips to [0, 1] and has no other mode. It is run like that, and also "freed": on inputs of [-4, 5] that
  are mapped onto [0, 1].
- foolbox clips to the bounds that its model is declared with: (0, 1), or very wide ones.
- ART clips only if asked to. Its overshoot is 1e-6 by default; here it is 0.02 like the others.
- torchattacks always clips, and runs one sample at a time: inside [0, 1] only.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.peers import _import_adv_lib, _import_torchattacks

Run = Callable[[nn.Module, Tensor, Tensor], Tensor]
OVERSHOOT = 0.02
LOW, HIGH = -4.0, 5.0


class _Mapped(nn.Module):
    """The model on inputs from [LOW, HIGH] that come mapped onto [0, 1]."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, u: Tensor) -> Tensor:
        scores: Tensor = self.model(u * (HIGH - LOW) + LOW)
        return scores


def adv_lib(model: nn.Module, x: Tensor, y: Tensor, *, boxed: bool, candidates: int | None) -> Tensor:
    found: Tensor = _import_adv_lib().df(model, x, y, overshoot=OVERSHOOT, return_unsuccessful=True)
    return found


def adv_lib_freed(model: nn.Module, x: Tensor, y: Tensor, *, boxed: bool, candidates: int | None) -> Tensor:
    mapped = (x - LOW) / (HIGH - LOW)
    return adv_lib(_Mapped(model), mapped, y, boxed=True, candidates=None) * (HIGH - LOW) + LOW


def foolbox(model: nn.Module, x: Tensor, y: Tensor, *, boxed: bool, candidates: int | None) -> Tensor:
    import foolbox as fb

    wrapped = fb.PyTorchModel(model, bounds=(0, 1) if boxed else (-1e6, 1e6), device=x.device)
    # It counts the predicted class as one of its candidates.
    attack = fb.attacks.L2DeepFoolAttack(overshoot=OVERSHOOT, candidates=candidates and candidates + 1)
    found: Tensor = attack(wrapped, x, fb.criteria.Misclassification(y), epsilons=None)[1]
    return found


def art(model: nn.Module, x: Tensor, y: Tensor, *, boxed: bool, candidates: int | None) -> Tensor:
    logging.getLogger("art").setLevel(logging.ERROR)
    evasion = importlib.import_module("art.attacks.evasion")
    estimators = importlib.import_module("art.estimators.classification")
    with torch.no_grad():
        classes = model(x[:1]).shape[1]
    wrapped = estimators.PyTorchClassifier(
        model, nn.CrossEntropyLoss(), tuple(x.shape[1:]), classes,
        clip_values=(0.0, 1.0) if boxed else None, device_type="cpu",
    )  # fmt: skip
    attack = evasion.DeepFool(
        wrapped, epsilon=OVERSHOOT, nb_grads=candidates or classes, batch_size=len(x), verbose=False
    )
    return torch.from_numpy(attack.generate(x.numpy()))


def torchattacks(model: nn.Module, x: Tensor, y: Tensor, *, boxed: bool, candidates: int | None) -> Tensor:
    found: Tensor = _import_torchattacks().DeepFool(model, overshoot=OVERSHOOT)(x, y)
    return found


PEERS: dict[str, Callable[..., Tensor]] = {
    "adv-lib": adv_lib, "adv-lib, freed": adv_lib_freed, "foolbox": foolbox, "ART": art, "torchattacks": torchattacks,
}  # fmt: skip
