"""The measurements behind the tables: rho_adv by an attack, FGSM's smallest eps, test error, time."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from deepfool.attacks.deepfool import deepfool
from deepfool.attacks.fgsm import fgsm, smallest_eps
from deepfool.attacks.lbfgs import lbfgs
from deepfool.datasets import Data
from deepfool.experiments.networks import Subject
from deepfool.experiments.paper import IMAGENET_CANDIDATES, OVERSHOOT, SHARE
from deepfool.experiments.session import Session
from deepfool.experiments.space import pixel_bounds
from deepfool.metrics import count_iterations, rho_adv, rho_answered, share_fooled
from deepfool.models.zoo import ZOO
from deepfool.runs.evaluation import Progress, evaluate

BATCH = 100


def measure(
    session: Session, subject: Subject, attack: str, count: int | None, *, p: float = 2, boxed: bool = False,
    pixels: bool = False, knobs: Mapping[str, Any] | None = None, also: str = "",
) -> dict[str, Any]:  # fmt: skip
    """rho_adv of the first `count` test samples by an attack, stored in a run folder.

    `boxed` keeps x + r inside the range of the pixels; `pixels` measures in [0, 1] instead of the network's own space;
    `also` is added to the name of the run folder.
    """
    model, data = (subject.whole, subject.pixels) if pixels else (subject.network, subject.test)
    size = len(data) if count is None else min(count, len(data))
    bounds = pixel_bounds(None if pixels else subject.layer, subject.pixels.batch([0]).shape[1:]) if boxed else None
    norm = "linf" if math.isinf(p) else "l2"
    marks = [also, "boxed" if boxed else "", "pixels" if pixels else ""]
    name = "-".join([subject.name, attack, norm, *filter(None, marks), str(size)])
    settings = {
        **subject.identity, "attack": attack, "norm": norm, "count": size, "boxed": boxed, "pixels": pixels,
        "knobs": dict(knobs or {}),
    }  # fmt: skip
    folder = session.run_folder(name, settings)

    def compute() -> dict[str, Any]:
        run = evaluate(
            model, data, attack, out=folder, p=p, bounds=bounds, limit=size, engine=session.engine,
            workers=session.workers, on_progress=_reporting(session, name), audit=False, **(knobs or {}),
        )  # fmt: skip
        records = run.records()
        found, exact = rho_answered(records, norm), rho_adv(records, norm).exact
        return {
            "rho": _known(found.value), "low": _known(found.low), "high": _known(found.high), "exact": exact,
            "n": found.count, "fooled": share_fooled(records).value, "iterations": count_iterations(records),
            "ratios": _leading_ratios(records.index, records.ratio(norm)), "run": f"runs/{folder.name}", "seed": 0,
        }  # fmt: skip

    return session.remember(name, settings, compute)


def _known(end: float) -> float | None:
    """A number, or None where there are too few samples for one."""
    return end if math.isfinite(end) else None


def _leading_ratios(index: Any, ratios: Any, most: int = 100) -> list[float | None]:
    """||r|| / ||x|| of the first samples, in order: slower methods, with fewer samples, are compared on these."""
    ordered = sorted(zip(index.tolist(), ratios.tolist(), strict=True))
    return [ratio if math.isfinite(ratio) else None for _, ratio in ordered[:most]]


def measure_deepfool(session: Session, subject: Subject, count: int | None, **options: Any) -> dict[str, Any]:
    """DeepFool with the paper's settings, without bounds on the image."""
    return measure(session, subject, "deepfool", count, knobs=set_deepfool(subject), **options)


def set_deepfool(subject: Subject) -> dict[str, Any]:
    """The knobs of DeepFool for a network."""
    imagenet = ZOO[subject.name].data == "imagenet"
    return {"overshoot": OVERSHOOT, "candidates": IMAGENET_CANDIDATES if imagenet else None}


def measure_fgsm(session: Session, subject: Subject, count: int | None) -> dict[str, Any]:
    """FGSM at the smallest eps that leaves 90 % misclassified, with rho_adv in both norms."""
    size = len(subject.test) if count is None else min(count, len(subject.test))
    settings = {**subject.identity, "count": size, "share": SHARE}

    def compute() -> dict[str, Any]:
        batches = list(iterate(subject.test, size, session, f"{subject.name}-fgsm"))
        found = smallest_eps(subject.network, batches, share=SHARE)
        finite = found.reached
        return {
            "rho": found.rho_l2 if finite else None, "rho_linf": found.rho_linf if finite else None,
            "eps": found.eps if finite else None, "share": found.share, "n": found.samples, "reached": found.reached,
            "seed": 0,
        }  # fmt: skip

    return session.remember(f"{subject.name}-fgsm-{size}", settings, compute)


def iterate(data: Data, size: int, session: Session, part: str) -> Any:
    """The first `size` samples and their labels, in batches."""
    for start in range(0, size, BATCH):
        chosen = range(start, min(start + BATCH, size))
        yield data.batch(chosen), data.labels[list(chosen)]
        session.report(part, chosen[-1] + 1, size)


def measure_error(session: Session, subject: Subject, count: int | None) -> dict[str, Any]:
    """The share of the first `count` test samples that the network gets wrong."""
    size = len(subject.test) if count is None else min(count, len(subject.test))

    def compute() -> dict[str, Any]:
        wrong = 0
        with torch.no_grad():
            for x, y in iterate(subject.test, size, session, f"{subject.name}-error"):
                wrong += int((subject.network(x).argmax(1) != y).sum())
        return {"error": wrong / size, "n": size}

    return session.remember(f"{subject.name}-error-{size}", {**subject.identity, "count": size}, compute)


def measure_times(
    session: Session, subject: Subject, count: int, lbfgs_count: int, eps: float, lbfgs_knobs: Mapping[str, int]
) -> dict[str, Any]:
    """Milliseconds per sample on this machine: the median over samples that are attacked one at a time."""
    few = min(count, len(subject.test))

    def compute() -> dict[str, Any]:
        x = subject.test.batch(range(few))
        knobs: dict[str, Any] = dict(lbfgs_knobs)
        box = pixel_bounds(subject.layer, subject.pixels.batch([0]).shape[1:])
        attacks: dict[str, tuple[Callable[[nn.Module, Tensor], Any], int]] = {
            "deepfool": (lambda f, one: deepfool(f, one, **set_deepfool(subject)), few),
            "fgsm": (lambda f, one: fgsm(f, one, eps=eps), few),
            "lbfgs": (lambda f, one: lbfgs(f, one, bounds=box, **knobs), min(few, lbfgs_count, 5)),
        }
        times: dict[str, Any] = {"threads": torch.get_num_threads()}
        deepfool(subject.network, x[:1], **set_deepfool(subject))  # the first call includes one-time setup
        for name, (attack, samples) in attacks.items():
            taken = []
            for i in range(samples):
                session.report(f"{subject.name}-time-{name}", i, samples)
                begin = time.perf_counter()
                attack(subject.network, x[i : i + 1])
                taken.append(1000 * (time.perf_counter() - begin))
            times[name] = {"ms": statistics.median(taken), "n": samples} if taken else None
        return times

    settings = {**subject.identity, "count": few, "lbfgs": lbfgs_count, "eps": eps, "knobs": dict(lbfgs_knobs)}
    return session.remember(f"{subject.name}-times", settings, compute)


def _reporting(session: Session, part: str) -> Callable[[Progress], None]:
    return lambda progress: session.report(part, progress.done, progress.total)
