"""What a visitor can take home: an 8-bit image that still fools, a picture, and the way to make it all again."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from deepfool.attacks.shared.aims import read_goal
from deepfool.attacks.shared.registry import find_attack, takes
from deepfool.display.pixels import lay_out
from deepfool.live.jobs import Event
from deepfool.live.questions import EFFORTS, Question
from deepfool.live.scenes import Answer, Scene, send_picture
from deepfool.reporting.picture import Panels, as_array, draw_panels
from deepfool.reporting.rounding import round_adversarial
from deepfool.reporting.single import judge_by, measure
from deepfool.reporting.wording import format_percent, name_norm


def keep(scene: Scene) -> Iterator[Event]:
    """The downloads for the answer that is shown."""
    best = scene.shown
    if best is None:
        return
    told: dict[str, Any] = {"attack": best.attack, "python": write_python(scene, best)}
    if scene.exhibit.kind == "picture":
        told |= _keep_pictures(scene, best)
        if scene.asked.exact and scene.asked.mask is None:
            told["command"] = write_command(scene, best)
    yield "kept", told


def _keep_pictures(scene: Scene, best: Answer) -> dict[str, Any]:
    size = f"{name_norm(scene.asked.p)} norm: {format_percent(best.rho)} of the image"
    x, r = as_array(scene.x.numpy()), as_array(best.r.numpy())
    panels = Panels(best.attack, x, r, scene.name(best.label), scene.name(best.adv_label), size)
    told: dict[str, Any] = {"picture": send_picture(draw_panels([panels]))}
    if not scene.asked.exact:
        return told
    levels = (scene.x.double() * 255).round().to(torch.uint8).numpy()
    told["original"] = send_picture(lay_out(np.asarray(levels)))
    aim, _ = read_goal(scene.asked.goal, scene.asked.target)
    judge = judge_by(aim, scene.f, scene.x.unsqueeze(0))
    rounded = round_adversarial(judge, scene.x.float(), best.r.float(), best.label)
    if rounded is None or (scene.asked.target is not None and rounded.label != scene.asked.target):
        return told
    norm, rho = measure(scene.x, rounded.x, scene.asked.p)
    told["fooling"] = {
        "png": send_picture(lay_out(rounded.levels.numpy())), "label": rounded.label, "scale": rounded.scale,
        "norm": norm, "rho": rho,
    }  # fmt: skip
    return told


def write_command(scene: Scene, best: Answer) -> str:
    """The command that makes the same result from the original, saved as original.png."""
    asked = scene.asked
    words = ["deepfool", "attack", "original.png", "--model", scene.source.spec, "--attack", best.attack]
    words += ["--p", f"{asked.p:g}", "--bounds", _bounds_word(asked)]
    if best.attack == "smallest" and asked.effort != EFFORTS[1]:
        words += ["--knob", f"budget={asked.effort}"]
    if asked.target is not None:
        words += ["--knob", f"target={asked.target}"]
    if asked.goal is not None:
        words += ["--goal", asked.goal]
    return shlex.join([*words, "-o", "fooled.png"])


def _bounds_word(asked: Question) -> str:
    return "none" if asked.bounds is None else ",".join(f"{float(bound):g}" for bound in asked.bounds)


def write_python(scene: Scene, best: Answer) -> str:
    """A few lines of Python that make the same result; x comes from the data, or from the JSON."""
    asked, exhibit = scene.asked, scene.exhibit
    lines = ["import json, math, torch, deepfool", f"model = deepfool.models.as_module({scene.source.spec!r})"]
    told = 'told = json.load(open("deepfool.json"))'
    if asked.sample is not None and exhibit.data_spec is not None:
        lines.append(f"x = deepfool.datasets.load({exhibit.data_spec!r}).batch([{asked.sample}])")
    else:
        lines += [told, 'x = torch.tensor(told["x"]).reshape(1, *told["shape"])']
    if scene.dtype != torch.float32:
        lines.append(f"x = x.to({scene.dtype})")
    knobs = []
    if takes(find_attack(best.attack), "p"):
        knobs.append("p=math.inf" if math.isinf(asked.p) else f"p={asked.p:g}")
    elif best.attack == "fgsm":
        knobs.append(f"eps={float(best.r.abs().max())}")
    if isinstance(asked.bounds, tuple) and all(isinstance(bound, float) for bound in asked.bounds):
        knobs.append(f"bounds=({asked.bounds[0]:g}, {asked.bounds[1]:g})")
    elif asked.bounds is not None:
        lines.append(f"rows = deepfool.datasets.load({exhibit.data_spec!r}).images().to(x)")
        knobs.append("bounds=(rows.amin(0), rows.amax(0))")
    if asked.target is not None:
        knobs.append(f"target={asked.target}")
    if asked.goal is not None:
        knobs.append(f"goal={asked.goal!r}")
    if asked.mask is not None:
        if told not in lines:
            lines.append(told)
        lines.append('mask = torch.tensor(told["mask"]).reshape(told["shape"])')
        knobs.append("mask=mask")
    if best.attack == "smallest":
        knobs.append(f"budget={asked.effort}")
    lines.append(f"found = deepfool.{best.attack}(model, x, {', '.join(knobs)})")
    return "\n".join([*lines, "print(found.norm, found.adv_label)"])
