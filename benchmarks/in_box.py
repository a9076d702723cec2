"""Inside bounds: how much of the first steps to take, and where to linearise, in mean l2 norms and passes per image.

python -m benchmarks.in_box
"""

from __future__ import annotations

import argparse
from typing import Any
from unittest.mock import patch

import deepfool as df
from benchmarks.speed import load_images
from deepfool.attacks import deepfool as algorithm

IMAGES = {"fc500-mnist": 400, "mlp-mnist-small": 400, "lenet-mnist": 150, "lenet-cifar10": 150, "conv-mnist-l2": 60}
WAYS: dict[str, tuple[tuple[float, ...], bool]] = {
    "without overshoot, 0.6 and 0.7": ((0.6, 0.7), False), "overshot, 0.6 and 0.7": ((0.6, 0.7), True),
    "overshot, 0.6 and 0.9": ((0.6, 0.9), True), "overshot, 0.7": ((0.7,), True),
}  # fmt: skip


def measure(network: str, images: int, shares: tuple[float, ...], *, overshot: bool) -> tuple[float, float]:
    """The mean norm, and passes forward and backward."""
    model, x = load_images(network, images, None)
    start = algorithm.Walk.__init__

    def begin(walk: algorithm.Walk, *args: Any, **kwargs: Any) -> None:
        start(walk, *args, **kwargs)
        walk.stretch = 1 + walk.eta if overshot else 1.0

    with patch.object(algorithm, "IN_BOX", shares), patch.object(algorithm.Walk, "__init__", begin):
        found = df.deepfool(model, x, bounds=(0, 1))
    return found.norm[found.fooled].mean().item(), (found.forwards + found.backwards).double().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=list(IMAGES))
    for network in parser.parse_args().networks:
        for way, (shares, overshot) in WAYS.items():
            norm, passes = measure(network, IMAGES.get(network, 100), shares, overshot=overshot)
            print(f"{network}, {way}: {norm:.4f}, {passes:.1f} passes", flush=True)


if __name__ == "__main__":
    main()
