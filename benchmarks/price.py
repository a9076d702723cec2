"""What it costs to leave classes out: `candidates="auto"` compared with `"all"`, image by image.

"all" is also compared with itself in batches of another size, which changes nothing but the rounding of its sums.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import deepfool as df

OTHER_BATCH = 37
"""Images at once in the second run of "all"; any number that does not divide 200."""


def compare(network: str, images: int, p: float, bounds: tuple[float, float] | None) -> dict[str, Any]:
    from benchmarks.speed import load_images

    model, x = load_images(network, images, None)

    def attack(kind: str, batch: int) -> df.Adversarial:
        parts = [df.deepfool(model, part, p=p, bounds=bounds, candidates=kind) for part in x.split(batch)]
        return df.Adversarial.concatenate(parts)

    found = {kind: attack(kind, 200) for kind in ("all", "auto")}
    every, auto, batched = found["all"], found["auto"], attack("all", OTHER_BATCH)
    size = every.norm.double()
    same, same_batched = (
        (other.r - every.r).flatten(1).double().norm(p=p, dim=1) <= 1e-3 * size for other in (auto, batched)
    )
    return {
        "network": network, "images": len(x), "norm": "linf" if p == math.inf else f"l{p:g}", "boxed": bool(bounds),
        "same": same.double().mean().item(), "same_batched": same_batched.double().mean().item(),
        "only_auto": int((~same & same_batched).sum()), "worst": (auto.norm.double() / size).max().item(),
        "mean": (auto.norm.double().mean() / size.mean()).item(),
        "rows": {kind: a.backwards.double().mean().item() for kind, a in found.items()},
        "forwards": {kind: a.forwards.double().mean().item() for kind, a in found.items()},
    }  # fmt: skip


def measure_price(network: str, images: int, work: Path) -> None:
    """The paper's l2 case, linf, and l2 inside [0, 1]; stored under `work`."""
    from benchmarks.speed import keep

    settings: list[tuple[float, tuple[float, float] | None]] = [(2.0, None), (math.inf, None), (2.0, (0, 1))]
    for p, bounds in settings:
        file = work / "price" / f"{network}-{p:g}-{'boxed' if bounds else 'free'}.json"
        if not file.exists():
            keep(file, compare(network, images, p, bounds))
            print(f"price, {file.stem}: {json.loads(file.read_text())['same']:.2%} the same", flush=True)
