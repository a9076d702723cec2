"""What a band of a spectrum costs beside a run in the whole space: `python -m benchmarks.spectrum`.

DeepFool on the first images of the test split, in the whole space and in eight bands of the discrete cosine transform.
Passes are forward passes and backward rows a sample; times are seconds of CPU, as multiples of the whole space's.
"""

from __future__ import annotations

import argparse
import time

import torch

import deepfool as df

IMAGES = {"lenet-mnist": 100, "lenet-cifar10": 100, "nin-cifar10": 30}
BANDS = 8


def measure(model: torch.nn.Module, x: torch.Tensor, subspace: str | None) -> tuple[float, float]:
    """Passes a sample, and seconds of CPU."""
    began = time.process_time()
    found = df.deepfool(model, x, subspace=subspace)
    return float((found.forwards + found.backwards).double().mean()), time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=list(IMAGES))
    torch.set_num_threads(1)
    print("| network | whole space | bands 1 to 8 | CPU time of bands 1 to 8 |")
    print("|---|---|---|---|")
    for name in parser.parse_args().networks:
        model = df.models.load(name).requires_grad_(False)
        x = df.datasets.load(name.split("-")[1]).batch(range(IMAGES[name]))
        measure(model, x, None)  # the first call sets things up
        passes, seconds = measure(model, x, None)
        bands = [measure(model, x, f"band:{k}/{BANDS}") for k in range(1, BANDS + 1)]
        least, most = min(band[0] for band in bands), max(band[0] for band in bands)
        quickest, slowest = (end(band[1] / seconds for band in bands) for end in (min, max))
        print(
            f"| {name} | {passes:.1f} | {least:.1f} to {most:.1f} | {quickest:.1f} to {slowest:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
