"""A certified lower bound beside what the attacks found: below it no change alters the decision."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from deepfool.certificates.certifying import certify
from deepfool.certificates.checking import certifiable
from deepfool.errors import DeepFoolError
from deepfool.live.jobs import Event
from deepfool.live.scenes import Scene

SECONDS = 1.0
"""How long to work on a proof: it comes last, and the page is complete without it."""
LONGEST = 10.0
"""Seconds that one pass over the network may take, as estimated: a proof needs several."""


def prove(scene: Scene) -> Iterator[Event]:
    """The bound, and its ball for the map. Of a model that cannot be bounded the page is told why."""
    asked, best = scene.asked, scene.best
    knobs = scene.knobs
    try:
        cost = certifiable(scene.source.module, scene.x.unsqueeze(0), p=asked.p, seconds=SECONDS, goal=knobs["goal"])
        if cost.seconds > LONGEST:
            why = f"no proof was tried: a pass over {cost.units:,} ReLUs would take about {cost.seconds:.0f} s"
            yield "bound", {"lower": 0.0, "exact": False, "reason": why}
            return
        found = certify(
            scene.source.module, scene.x.unsqueeze(0), p=asked.p, bounds=knobs["bounds"], mask=knobs["mask"],
            target=knobs["target"], goal=knobs["goal"], seconds=SECONDS,
            upper=torch.tensor([math.inf if best is None else best.norm], dtype=torch.float64),
        )  # fmt: skip
    except DeepFoolError as error:
        yield "bound", {"lower": 0.0, "exact": False, "reason": str(error)}
        return
    lower = float(found.lower[0])
    shown = lower if math.isfinite(lower) else None
    told: dict[str, Any] = {"lower": shown, "exact": bool(found.exact[0]), "reason": found.reason[0]}
    if scene.plane is not None and 0 < lower < math.inf:
        told["line"] = scene.plane.ball(lower, asked.p)
    yield "bound", told
