"""What happens to a question, in order. Each stage sends what it finds at once, so that the page fills from the top.

A new stage is one function and one line in `STAGES`. It gets a `Scene`, may add to it, and yields events.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deepfool.live.exhibit import Exhibit
from deepfool.live.jobs import Event
from deepfool.live.keeping import keep
from deepfool.live.plane import describe_grid, describe_plane, find_plane, survey
from deepfool.live.proving import prove
from deepfool.live.questions import Question
from deepfool.live.scenes import Answer, Scene, rank, send_numbers, send_picture
from deepfool.live.tracing import trace
from deepfool.reporting.images import show_perturbation
from deepfool.reporting.picture import as_array
from deepfool.reporting.single import attack_one, measure

FAR = 3.0
"""How far the walk goes, in lengths of r."""
WALK_STEPS, LARGE, LARGE_STEPS = 60, 20_000, 30
"""Points of the walk; fewer where the input has more than LARGE entries."""


@dataclass(frozen=True)
class Stage:
    """A step of the work on a question."""

    title: str
    """What the page says while it runs."""
    run: Callable[[Scene], Iterator[Event]]


def work(asked: Question, exhibit: Exhibit) -> Iterator[Event]:
    """All stages for all sides: first the quick ones for both, then the slow ones."""
    scenes = [Scene(i, side, asked, exhibit) for i, side in enumerate(asked.sides)]
    for stage in STAGES:
        for scene in scenes:
            yield "stage", {"side": scene.number, "title": stage.title}
            for name, fields in stage.run(scene):
                yield name, {"side": scene.number, **fields}


def look(scene: Scene) -> Iterator[Event]:
    """What the model sees in the input itself."""
    shares = scene.probabilities(scene.x.unsqueeze(0))[0]
    scene.label = int(shares.argmax())
    data, sample = scene.exhibit.data, scene.asked.sample
    true = None if data is None or sample is None else int(data.labels[sample])
    yield "input", {
        "x": send_numbers(scene.x), "label": scene.label, "scores": rank(shares), "true": true,
        "size": measure(scene.x, torch.zeros_like(scene.x), scene.asked.p)[0],
    }  # fmt: skip


def run_deepfool(scene: Scene) -> Iterator[Event]:
    """DeepFool first: it is the quickest, and its steps are shown one by one."""
    began = time.monotonic()
    found, scene.steps = trace(scene.f, scene.x.unsqueeze(0), p=scene.asked.p, **scene.knobs)
    r = found.r[0].detach().cpu()
    size, rho = measure(scene.x, scene.x + r, scene.asked.p)
    yield from _tell(scene, Answer(
        "deepfool", r, bool(found.fooled[0]), int(found.label[0]), int(found.adv_label[0]), size, rho,
        int(found.iterations[0]), found.reason[0], time.monotonic() - began,
    ))  # fmt: skip
    if scene.steps:
        yield "steps", {"steps": _tell_steps(scene)}


def run_chosen(scene: Scene) -> Iterator[Event]:
    """The attack that was chosen, if it is another one."""
    if scene.side.attack == "deepfool":
        return
    began = time.monotonic()
    knobs = {key: value for key, value in scene.knobs.items() if value is not None}
    if scene.side.attack == "smallest":
        knobs["budget"] = scene.asked.effort
    bounds = knobs.pop("bounds", None)
    found = attack_one(scene.source, scene.x, scene.side.attack, p=scene.asked.p, bounds=bounds, **knobs)
    yield from _tell(scene, Answer(
        scene.side.attack, found.r, found.fooled, found.label, found.adv_label, found.norm, found.rho,
        found.iterations, found.reason, time.monotonic() - began,
    ))  # fmt: skip


def _tell(scene: Scene, answer: Answer) -> Iterator[Event]:
    scene.answers.append(answer)
    after = scene.probabilities((scene.x + answer.r).unsqueeze(0))[0]
    told: dict[str, Any] = {
        "attack": answer.attack, "fooled": answer.fooled, "label": answer.label, "adv_label": answer.adv_label,
        "norm": _finite(answer.norm), "rho": _finite(answer.rho), "iterations": answer.iterations,
        "reason": answer.reason, "seconds": round(answer.seconds, 4), "r": send_numbers(answer.r),
        "scores": rank(after),
    }  # fmt: skip
    if scene.exhibit.kind == "picture":
        pixels, factor = show_perturbation(as_array(answer.r.numpy()))
        told |= {"perturbation": send_picture(pixels), "factor": _finite(factor)}
    yield "answer", told
    if answer.fooled:
        yield "walk", {"attack": answer.attack, **_walk(scene, answer.r)}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _walk(scene: Scene, r: Tensor) -> dict[str, Any]:
    """The probabilities from x through the boundary to three times r."""
    steps = LARGE_STEPS if scene.x.numel() > LARGE else WALK_STEPS
    t = torch.linspace(0, FAR, steps + 1, dtype=torch.float64)
    points = scene.x.double() + t.reshape(-1, *[1] * scene.x.ndim) * r.double()
    shares = scene.probabilities(scene.clip(points))
    order = shares.amax(0).argsort(descending=True)[:5].tolist()
    return {"t": t.tolist(), "classes": order, "shares": shares[:, order].T.mul(1e6).round().div(1e6).tolist()}


def _tell_steps(scene: Scene) -> list[dict[str, Any]]:
    """What each iteration of DeepFool did, with the scores that it arrived at."""
    points = torch.stack([scene.x + step.r.reshape(scene.x.shape) for step in scene.steps])
    shares = scene.probabilities(points)
    return [
        {
            "nearest": step.nearest, "length": step.length,
            "total": measure(scene.x, scene.x + step.r.reshape(scene.x.shape), scene.asked.p)[0],
            "scores": rank(share, 3), "before": round(float(share[scene.label]), 6),
        }
        for step, share in zip(scene.steps, shares, strict=True)
    ]  # fmt: skip


def draw_map(scene: Scene) -> Iterator[Event]:
    """The decision regions around x, coarse at first."""
    best = scene.shown
    if best is None:
        yield "nomap", {"why": "No boundary point was found, so there is no plane to draw."}
        return
    plane = find_plane(scene, best.r, best.adv_label)
    if plane is None:
        yield "nomap", {"why": "The input can change in one direction only, so there is no plane to draw."}
        return
    scene.plane = plane
    fixed = describe_plane(scene, plane, best)
    for labels, shares in survey(scene, plane):
        yield "map", {**fixed, **describe_grid(labels, shares)}
        fixed = {}  # sent once


STAGES = (
    Stage("looking at the input", look),
    Stage("DeepFool", run_deepfool),
    Stage("searching for a smaller change", run_chosen),
    Stage("drawing the map", draw_map),
    Stage("preparing the downloads", keep),
    Stage("looking for a proof", prove),
)
"""In this order, each for all sides before the next."""
