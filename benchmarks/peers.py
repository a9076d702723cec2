"""Other libraries' attacks behind one signature: `attack(model, x, labels) -> perturbed x`.

adv-lib is installed without its dependencies: it imports visdom and torchvision for features that no attack here uses,
so they are replaced with empty modules.
"""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Callable

from torch import Tensor, nn

Attack = Callable[[nn.Module, Tensor, Tensor], Tensor]


def _import_adv_lib() -> types.ModuleType:
    for name in ("visdom", "torchvision", "torchvision.models"):
        sys.modules.setdefault(name, types.ModuleType(name))
    sys.modules["torchvision"].models = sys.modules["torchvision.models"]  # type: ignore[attr-defined]
    import adv_lib.attacks

    return adv_lib.attacks


def adv_lib_attacks(p: float, steps: int) -> dict[str, Attack]:
    """adv-lib's minimum-norm attacks for a norm, at their best settings (DDN without rounding to 8 bits)."""
    a = _import_adv_lib()
    found: dict[str, Attack] = {
        f"adv-lib fmn-{steps}": lambda m, x, y: a.fmn(m, x, y, norm=p, steps=steps),
    }
    if steps <= 100:
        found |= {
            "adv-lib fab-100": lambda m, x, y: a.fab(m, x, y, norm=p, n_iter=100),
            "adv-lib fab-targeted": lambda m, x, y: a.fab(
                m, x, y, norm=p, n_iter=100, restarts=9, targeted_restarts=True
            ),
        }
        if p != 1:
            found["adv-lib deepfool"] = lambda m, x, y: a.df(m, x, y, norm=p, return_unsuccessful=True)
    if p == 2:
        found[f"adv-lib ddn-{steps}"] = lambda m, x, y: a.ddn(m, x, y, steps=steps, levels=None)
        found[f"adv-lib alma-{steps}"] = lambda m, x, y: a.alma(
            m, x, y, num_steps=steps, distance="l2", init_lr_distance=1
        )
        if steps <= 100:
            found["adv-lib superdeepfool"] = lambda m, x, y: a.sdf(m, x, y)
    return found


def foolbox_attacks(p: float, steps: int) -> dict[str, Attack]:
    """foolbox's minimum-norm attacks for a norm."""
    import foolbox as fb

    fmn = {1: fb.attacks.L1FMNAttack, 2: fb.attacks.L2FMNAttack, math.inf: fb.attacks.LInfFMNAttack}
    linearised = {2: fb.attacks.L2DeepFoolAttack, math.inf: fb.attacks.LinfDeepFoolAttack}
    made = {f"foolbox fmn-{steps}": fmn[p](steps=steps)}
    if p == 2:
        made[f"foolbox ddn-{steps}"] = fb.attacks.DDNAttack(steps=steps)
    if p != 1 and steps <= 100:
        made["foolbox deepfool"] = linearised[p]()

    def adapt(attack: object) -> Attack:
        def run(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            wrapped = fb.PyTorchModel(model, bounds=(0, 1), device=x.device)
            clipped: Tensor = attack(wrapped, x, fb.criteria.Misclassification(y), epsilons=None)[1]  # type: ignore[operator]
            return clipped

        return run

    return {label: adapt(attack) for label, attack in made.items()}
