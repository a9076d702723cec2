"""Other libraries' attacks behind one signature: `attack(model, x, labels) -> perturbed x`.

Each runs with settings that need 2,000 passes or more, and with its usual smaller ones where it has any; the names say
the steps. DeepFool and SuperDeepFool end by themselves. torchattacks' FAB is not among them: it stops at the first
class that fools within a given eps, and its DeepFool is in benchmarks/deepfools.py.

adv-lib is installed without its dependencies: it imports visdom for plots that nothing here draws, so that is replaced
with an empty module.
"""

from __future__ import annotations

import importlib
import math
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from deepfool.models.libraries import import_torchvision

Attack = Callable[[nn.Module, Tensor, Tensor], Tensor]
LIBRARIES = ("adv-lib", "foolbox", "torchattacks")

HALF_SEARCHED = {1.0: 100.0, 2.0: 8.0, math.inf: 0.5}
"""Where APGD's binary search starts; it goes up to twice that. No perturbation on any network here is larger."""

ALMA_STEP = {1.0: 0.5, 2.0: 1.0}
"""The size of ALMA's first step."""

BRENDEL_BETHGE_RATE = 1e-3
"""foolbox's default for a single image. It multiplies the rate by the size of the batch, so we divide by it."""


def peer_attacks(p: float, many_classes: bool = False) -> dict[str, Attack]:
    """Every peer for a norm, cheap ones first; with many classes without those that attack them one after another."""
    found: dict[str, Attack] = {}
    for steps in (100, 1000):
        found |= adv_lib_attacks(p, steps) | foolbox_attacks(p, steps)
    found |= adv_lib_searches(p) | brendel_bethge(p)
    if many_classes:
        found = {
            name: a for name, a in found.items() if not any(w in name for w in ("adv-lib deepfool", "fab", "targeted"))
        }
    return found


def is_peer(name: str) -> bool:
    return name.startswith(LIBRARIES)


def _import_adv_lib() -> types.ModuleType:
    import_torchvision(extra="onnx", purpose="adv-lib")
    sys.modules.setdefault("visdom", types.ModuleType("visdom"))
    return importlib.import_module("adv_lib.attacks")


def _import_torchattacks() -> types.ModuleType:
    import_torchvision(extra="onnx", purpose="torchattacks")
    return importlib.import_module("torchattacks")


def adv_lib_attacks(p: float, steps: int) -> dict[str, Attack]:
    """adv-lib's minimum-norm attacks for a norm, at their best settings (DDN without rounding to 8 bits)."""
    a = _import_adv_lib()
    found: dict[str, Attack] = {f"adv-lib fmn-{steps}": lambda m, x, y: a.fmn(m, x, y, norm=p, steps=steps)}
    if p == 2:
        found[f"adv-lib ddn-{steps}"] = lambda m, x, y: a.ddn(m, x, y, steps=steps, levels=None)
        found[f"adv-lib pdgd-{steps}"] = lambda m, x, y: a.pdgd(m, x, y, num_steps=steps)
    if p != math.inf:
        found[f"adv-lib alma-{steps}"] = lambda m, x, y: a.alma(
            m, x, y, num_steps=steps, distance=f"l{p:.0f}", init_lr_distance=ALMA_STEP[p]
        )
    found[f"adv-lib pdpgd-{steps}"] = lambda m, x, y: a.pdpgd(m, x, y, norm=p, num_steps=steps)
    if steps <= 100:
        if p != 1:
            found["adv-lib deepfool"] = lambda m, x, y: a.df(m, x, y, norm=p, return_unsuccessful=True)
        if p == 2:
            found["adv-lib superdeepfool"] = lambda m, x, y: a.sdf(m, x, y)
    return found


def adv_lib_searches(p: float) -> dict[str, Attack]:
    """FAB, C&W, and APGD with a binary search for the radius: `20x100` are 20 radii with 100 steps each.

    20x48 and 15x20 (the three likeliest classes) are what fits into 2,000 passes.
    """
    a = _import_adv_lib()

    def apgd(searches: int, steps: int, **more: Any) -> Attack:
        if p == 1:
            more["use_large_reps"] = True  # as its authors do in l1
        return lambda m, x, y: a.auto_pgd.minimal_apgd(
            m, x, y, norm=p, max_eps=HALF_SEARCHED[p], binary_search_steps=searches, n_iter=steps, **more
        )

    found: dict[str, Attack] = {
        "adv-lib fab-targeted-100": lambda m, x, y: a.fab(
            m, x, y, norm=p, n_iter=100, restarts=9, targeted_restarts=True
        ),
        "adv-lib apgd-dlr-20x48": apgd(20, 48, loss_function="dlr"),
        "adv-lib apgd-ce-20x48": apgd(20, 48, loss_function="ce"),
        "adv-lib apgd-targeted-15x20": apgd(15, 20, targeted_version=True, num_targets=3),
        "adv-lib apgd-dlr-20x100": apgd(20, 100, loss_function="dlr"),
        "adv-lib apgd-ce-20x100": apgd(20, 100, loss_function="ce"),
        "adv-lib fab-100": lambda m, x, y: a.fab(m, x, y, norm=p, n_iter=100),
        "adv-lib fab-200": lambda m, x, y: a.fab(m, x, y, norm=p, n_iter=200),
        "adv-lib apgd-targeted-20x100": apgd(20, 100, targeted_version=True),
    }
    if p == 2:
        found["adv-lib cw-9x1000"] = lambda m, x, y: a.carlini_wagner_l2(
            m, x, y, binary_search_steps=9, max_iterations=1000
        )
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
    return {label: _adapt(attack) for label, attack in made.items()}


def brendel_bethge(p: float) -> dict[str, Attack]:
    """foolbox's Brendel-Bethge attack, each image started from an image of another class in its batch.

    foolbox's own start, noise that the image is blended with, finds no other class on some of the networks, and may
    alone take 2,000 passes.
    """
    import foolbox as fb

    kinds = {
        1: fb.attacks.L1BrendelBethgeAttack,
        2: fb.attacks.L2BrendelBethgeAttack,
        math.inf: fb.attacks.LinfinityBrendelBethgeAttack,
    }

    def run(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        start = fb.attacks.DatasetAttack()
        start.feed(fb.PyTorchModel(model, bounds=(0, 1), device=x.device), x)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it announces that it compiles itself
            attack = kinds[p](init_attack=start, steps=1000, lr=BRENDEL_BETHGE_RATE / len(x))
        return _adapt(attack)(model, x, y)

    return {"foolbox brendel-bethge-1000": run}


def few_feature_attacks() -> dict[str, Attack]:
    """Attacks that keep the number of changed features small: FMN and sigma-zero with 1000 steps, and SparseFool."""
    import foolbox as fb

    a, t = _import_adv_lib(), _import_torchattacks()
    return {
        "adv-lib fmn-1000": lambda m, x, y: a.fmn(m, x, y, norm=0, steps=1000),
        "foolbox fmn-1000": _adapt(fb.attacks.L0FMNAttack(steps=1000)),
        "adv-lib sigma-zero-1000": lambda m, x, y: a.sigma_zero(m, x, y, num_steps=1000),
        "torchattacks sparsefool": lambda m, x, y: t.SparseFool(m)(x, y),
    }


def _adapt(attack: Any) -> Attack:
    def run(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        import foolbox as fb

        wrapped = fb.PyTorchModel(model, bounds=(0, 1), device=x.device)
        clipped: Tensor = attack(wrapped, x, fb.criteria.Misclassification(y), epsilons=None)[1]
        return clipped

    return run
