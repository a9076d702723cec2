"""Networks whose gradients are hidden: `python -m benchmarks.masked`.

Each network stands behind masks that leave it as easy to fool as it was, or nearly so. The reference for an image is
the size that `smallest` finds on the network without the mask; where inputs are rounded, which can make them easier to
fool, the smaller of the two. The table has the mean and the worst ratio to it over the rows that a forward pass of the
masked network confirms, how many it does not confirm, and what the rows say that they were found by. Some masks make
the network harder to fool, not only harder to search: so there is also the mean ratio to the smallest that is found on
the masked network itself, with ten times the passes.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import deepfool as df

NORMS = {"l2": 2.0, "linf": math.inf}
NETWORKS = ("lenet-mnist", "fc500-mnist")


class Masked(nn.Module):
    """A network between two functions."""

    def __init__(self, network: nn.Module, before: Callable[[Tensor], Tensor], after: Callable[[Tensor], Tensor]):
        super().__init__()
        self.network, self.before, self.after = network, before, after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.network(self.before(x)))


class NoGradient(torch.autograd.Function):
    """The identity, with a gradient of zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return torch.zeros_like(gradients[0])


def nothing(x: Tensor) -> Tensor:
    return x


def cosines(n: int) -> Tensor:
    """The orthonormal DCT of n numbers, as a matrix."""
    k = torch.arange(n, dtype=torch.float64)
    matrix = torch.cos(math.pi * (2 * k + 1) * k[:, None] / (2 * n)) * math.sqrt(2 / n)
    matrix[0] /= math.sqrt(2)
    return matrix.float()


def round_frequencies(x: Tensor, step: float = 0.25) -> Tensor:
    """The image with the coefficients of its DCT rounded, as a lossy file would have it."""
    rows, columns = cosines(x.shape[-2]).to(x), cosines(x.shape[-1]).to(x)
    coefficients = rows @ x @ columns.T
    return rows.T @ (step * (coefficients / step).round()) @ columns


def quantise_without_gradient(x: Tensor) -> Tensor:
    with torch.no_grad():
        return (x * 7).round() / 7


MASKS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "8-level input": (lambda x: (x * 7).round() / 7, nothing),
    "DCT rounding": (round_frequencies, nothing),
    "scores to 0.1": (nothing, lambda z: z.round(decimals=1)),
    "scores to 0.5": (nothing, lambda z: (2 * z).round() / 2),
    "tanh": (nothing, torch.tanh),
    "softmax(20 z)": (nothing, lambda z: torch.softmax(20 * z, dim=1)),
    "zero gradient": (NoGradient.apply, nothing),
    "detached": (lambda x: x.detach(), nothing),
    "8 levels, no gradient": (quantise_without_gradient, nothing),
}
ROUND_INPUTS = ("8-level input", "DCT rounding", "8 levels, no gradient")


def compare(network: nn.Module, mask: str, x: Tensor, bare: df.Adversarial, budget: int) -> dict[str, Any]:
    """`smallest` on the masked network, beside what it finds without the mask."""
    masked = Masked(network, *MASKS[mask]).eval()
    start = time.perf_counter()
    found = df.smallest(masked, x, p=bare.p, bounds=(0, 1), budget=budget)
    seconds = (time.perf_counter() - start) / len(x)
    longer = df.smallest(masked, x, p=bare.p, bounds=(0, 1), budget=10 * budget)
    with torch.no_grad():
        label = masked(x).argmax(1)
        fooled = found.fooled & (masked(found.x).argmax(1) != label)
    reference = torch.minimum(found.norm, bare.norm) if mask in ROUND_INPUTS else bare.norm
    return {
        "ratio": (found.norm / reference)[fooled], "own": (found.norm / longer.norm)[fooled],
        "lost": int((~fooled).sum()), "seconds": seconds,
        "passes": (found.forwards + found.backwards).double().mean().item(),
        "evidence": ", ".join(e.name.lower() for e in df.Evidence if bool((found.evidence[fooled] == e).any())),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--images", type=int, default=30)
    parser.add_argument("--budget", type=int, default=100)
    parser.add_argument("--norms", nargs="*", choices=list(NORMS), default=list(NORMS))
    parser.add_argument("--masks", nargs="*", choices=list(MASKS), default=list(MASKS))
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore")  # that a softmax was found is the point
    titles = "network, norm, mask, mean, worst, to ten times the passes, not fooled, passes, s an image, found by"
    columns = titles.split(", ")
    print("| " + " | ".join(columns) + " |")
    print("|---" * len(columns) + "|")
    for name in arguments.networks:
        network = df.models.load(name).eval()
        x = df.datasets.load(name.split("-")[1]).batch(torch.arange(arguments.images))
        for p in arguments.norms:
            bare = df.smallest(network, x, p=NORMS[p], bounds=(0, 1), budget=arguments.budget)
            for mask in arguments.masks:
                head = f"| {name} | {p} | {mask} "
                try:
                    row = compare(network, mask, x, bare, arguments.budget)
                except df.errors.DeepFoolError as error:
                    print(f"{head}| | | | all | | | {error} |", flush=True)
                    continue
                ratio, own = row["ratio"], row["own"]
                mean, worst, longer = (
                    (ratio.mean().item(), ratio.max().item(), own.mean().item()) if len(ratio) else (math.inf,) * 3
                )
                print(
                    f"{head}| {mean:.3f} | {worst:.2f} | {longer:.3f} | {row['lost']} | {row['passes']:.0f} "
                    f"| {row['seconds']:.2f} | {row['evidence']} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
