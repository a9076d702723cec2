"""Why other libraries' free norms differ: DeepFool linearised at the point with the overshoot, and as in the paper.

python -m benchmarks.overshot
"""

from __future__ import annotations

import argparse
from unittest.mock import patch

import torch
from torch import Tensor

import deepfool as df
from benchmarks.speed import load_images
from deepfool.attacks.shared.counting import CountedModel

OVERSHOOT = 0.02


def run_at_overshot_points(network: str, images: int) -> tuple[df.Adversarial, df.Adversarial]:
    """As in the paper, and with every linearisation except the first moved to the point that was tested."""
    model, x = load_images(network, images, None)
    linearise = CountedModel.linearise

    def further(counted: CountedModel, rows: Tensor, y: Tensor, *, hidden: bool = False) -> object:
        x_0 = counted.asked.x_0[rows]
        return linearise(counted, rows, x_0 + (1 + OVERSHOOT) * (y - x_0), hidden=hidden)

    plain = df.deepfool(model, x, overshoot=OVERSHOOT, candidates="all")
    with patch.object(CountedModel, "linearise", further):
        return plain, df.deepfool(model, x, overshoot=OVERSHOOT, candidates="all")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", default=["fc500-mnist", "lenet-mnist", "lenet-cifar10"])
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for network in arguments.networks:
        for name, found in zip(("paper", "peers"), run_at_overshot_points(network, arguments.images), strict=True):
            print(f"{network}, {name}: mean norm {found.norm.mean():.4f}, {found.iterations.double().mean():.2f} steps")


if __name__ == "__main__":
    main()
