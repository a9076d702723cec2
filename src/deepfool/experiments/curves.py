"""Fine-tuning on perturbed images: Figure 6 and Table 3, Figure 7 and Figure 9.

Each curve is fine-tuned once per seed, always on the same perturbed images; the seed decides the order of the batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from deepfool.experiments.networks import Subject, find_subject, name_network, training_pair
from deepfool.experiments.paper import ALPHAS, LR_SCALE, LR_SCALE_FIGURE_9, SMALL
from deepfool.experiments.session import Session
from deepfool.training.finetuning import finetune
from deepfool.training.recipes import RECIPES

STRATEGIES = ("deepfool", "fgsm", "clean")
JUDGED_BY_FGSM = ("nin-cifar10", "lenet-cifar10")
"""Figure 9 is about NIN; LeNet is added because more of it can be measured in the same time."""


def make_figure_6(session: Session) -> dict[str, Any]:
    """rho_adv and test error after each extra epoch, for three strategies; Table 3 shows the last epochs."""

    def draw_curves(subject: Subject) -> dict[str, Any]:
        return {name: tune(session, subject, name) for name in STRATEGIES}

    return {"rows": [_make_row(session, name, draw_curves) for name in SMALL]}


def make_figure_7(session: Session) -> dict[str, Any]:
    """The same on DeepFool's perturbations, magnified."""

    def draw_curves(subject: Subject) -> dict[str, Any]:
        return {f"{alpha:g}": tune(session, subject, "deepfool", magnify=alpha) for alpha in ALPHAS}

    return {"rows": [_make_row(session, name, draw_curves) for name in session.scale.magnified]}


def make_figure_9(session: Session) -> dict[str, Any]:
    """A network fine-tuned gently on FGSM's examples, judged by DeepFool and by FGSM."""

    def draw_curves(subject: Subject) -> dict[str, Any]:
        judges = ("deepfool", "fgsm")
        return {"fgsm": tune(session, subject, "fgsm", lr_scale=LR_SCALE_FIGURE_9, judges=judges)}

    return {"rows": [_make_row(session, name, draw_curves) for name in JUDGED_BY_FGSM]}


def _make_row(session: Session, name: str, draw_curves: Callable[[Subject], dict[str, Any]]) -> dict[str, Any]:
    subject = find_subject(session, name)
    row: dict[str, Any] = {"network": name, "name": name_network(name)}
    if isinstance(subject, str):
        return {**row, "missing": subject}
    sizes = session.scale.sizes[name]
    if sizes.train == 0:
        return {**row, "missing": f"not fine-tuned at the scale {session.scale.name}"}
    counts = {
        "train": len(training_pair(session, subject, sizes.train)[1]),
        "judged": min(sizes.judged, len(subject.test)),
        "retested": min(sizes.retested, len(subject.test)),
        "batch": sizes.batch,
    }
    return {**row, "missing": None, **counts, "space": subject.space, "curves": draw_curves(subject)}


def tune(
    session: Session, subject: Subject, perturb: str, *, magnify: float = 1.0, lr_scale: float = LR_SCALE,
    judges: Sequence[str] = ("deepfool",),
) -> list[dict[str, Any]]:  # fmt: skip
    """The curve of each seed: {"seed", "epochs": [{"epoch", "error", "rho": {judge: value}}]}."""
    return [
        _tune_once(session, subject, perturb, seed, magnify=magnify, lr_scale=lr_scale, judges=tuple(judges))
        for seed in session.scale.seeds[: session.scale.sizes[subject.name].seeds]
    ]


def _tune_once(
    session: Session, subject: Subject, perturb: str, seed: int, *, magnify: float, lr_scale: float,
    judges: tuple[str, ...],
) -> dict[str, Any]:  # fmt: skip
    sizes, epochs = session.scale.sizes[subject.name], session.scale.epochs
    name = f"{subject.name}-tuned-{perturb}-x{magnify:g}-rate{lr_scale:g}-seed{seed}"
    settings = {
        **subject.identity, "perturb": perturb, "seed": seed, "magnify": magnify, "lr_scale": lr_scale,
        "judges": judges, "epochs": epochs, "train": sizes.train, "judged": sizes.judged, "retested": sizes.retested,
        "batch": sizes.batch,
    }  # fmt: skip

    def compute() -> dict[str, Any]:
        torch.manual_seed(seed)
        checkpoint = session.checkpoint(name, settings)
        chosen = range(min(sizes.retested, len(subject.test)))
        tuned = finetune(
            subject.network, training_pair(session, subject, sizes.train),
            test=(subject.test.batch(chosen), subject.test.labels[list(chosen)]), perturb=perturb, epochs=epochs,
            lr_scale=lr_scale, magnify=magnify, recipe=RECIPES[subject.name], judges=judges, judged=sizes.judged,
            batch_size=sizes.batch,
            seed=seed, cache=session.out / "perturbed" / subject.name, checkpoint=checkpoint,
            engine=session.engine, workers=session.workers,
            on_progress=lambda now: session.report(
                f"{name}, {now.stage} {now.epoch}/{now.epochs}", now.done, now.total
            ),
        )  # fmt: skip
        checkpoint.unlink(missing_ok=True)  # the part that is stored now takes its place
        return {
            "seed": seed,
            "epochs": [
                {
                    "epoch": each.epoch,
                    "error": each.test_error,
                    # After fine-tuning FGSM may not reach 90 % at any eps; JSON has no infinity.
                    "rho": {judge: rho if math.isfinite(rho) else None for judge, rho in each.rho.items()},
                }
                for each in tuned.epochs
            ],
            "learning_rate": tuned.learning_rate,
            "left_clean": tuned.left_clean,
            "samples": tuned.samples,
        }

    return session.remember(name, settings, compute)
