"""Attacks judged by the exact minimum: `python -m benchmarks.exact`.

On small ReLU networks `certify` finds the smallest perturbation inside [0, 1] by branch and bound, exactly to 0.1 %
(tests compare it with mixed-integer programming). Everything is computed in double. Results are stored per network and
norm under --work, for each image once its minimum is known, so that a run that was stopped can be resumed.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.milp import train_digits
from torch import Tensor, nn

import deepfool as df
from benchmarks import networks
from benchmarks.attacks import NORMS, our_attacks, result_file

DIGITS = "digits 64-16-16-10"
NETWORKS = ("mlp-mnist-small", DIGITS)
MEASURED = ("l2", "linf")
ATTACKS = ("smallest-100", "smallest-1000", "deepfool", "fab-100", "fmn-100", "fmn-1000", "ddn-1000")
START = 2000
"""Passes of `smallest` for the perturbation that the exact search starts from."""

HEAD = """\
# Beside the exact minimum

Made by `python -m benchmarks.exact`. On small ReLU networks the smallest perturbation inside [0, 1] can be known: the
branch and bound of [`certify`](../algorithms/certify.md) finds a nearer point than the attacks did, or proves that none
is more than 0.1 % nearer. Everything is computed in double. The images are the first ones that the network classifies
correctly, and each point is confirmed by a forward pass. The ratio is an attack's norm divided by the minimum, over the
images whose minimum is proved. Passes are per image. Times are from one machine with other load on it. The digits
network is trained on the spot, on scikit-learn's digits.
"""


def load(name: str, images: int) -> tuple[nn.Sequential, Tensor]:
    """A network in double and the first images that it classifies correctly."""
    if name == DIGITS:
        return train_digits(16, images)
    model, x = networks.load(name, images)
    if not isinstance(model, nn.Sequential):
        raise SystemExit(f"{name} is not a sequence of linear layers and ReLUs")
    return model.double(), x.double()


def run_network(name: str, images: int, seconds: float, work: Path) -> None:
    """Measure what is not stored yet: each attack on all images, then the minimum of each image."""
    model, x = load(name, images)
    for norm in MEASURED:
        p, place = NORMS[norm], f"{name}, {norm}"
        attacks = our_attacks(p, many=False)
        for label in (each for each in ATTACKS if each in attacks):
            file = result_file(work, place, "attacks", label)
            if not file.exists() or json.loads(file.read_text())["images"] != len(x):
                _store(file, {"attack": label, "images": len(x)} | judge(attacks[label](model, x), model, x, p))
        start = df.smallest(model, x, p=p, bounds=(0, 1), budget=START)
        for i in range(len(x)):
            file = result_file(work, place, "minima", str(i))
            if not file.exists():
                only = torch.tensor([i])
                found = df.certify(model, x[only], p=p, bounds=(0, 1), upper=start.rows(only), seconds=seconds)
                minimum = {"radius": found.upper.item(), "proved": bool(found.exact), "seconds": found.seconds.item()}
                _store(file, minimum)
                print(f"{place}, image {i}: {minimum}", flush=True)


@torch.no_grad()
def judge(result: df.Adversarial, model: nn.Module, x: Tensor, p: float) -> dict[str, Any]:
    """The norms of an attack's answers, none where a forward pass does not confirm one, and its passes per image."""
    inside = (result.x >= 0).flatten(1).all(1) & (result.x <= 1).flatten(1).all(1)
    fooled = inside & (model(result.x).argmax(1) != model(x).argmax(1))
    norms = (result.x - x).flatten(1).norm(p=p, dim=1).tolist()
    return {
        "norms": [norm if found else None for norm, found in zip(norms, fooled.tolist(), strict=True)],
        "forwards": result.forwards.double().mean().item(), "backwards": result.backwards.double().mean().item(),
    }  # fmt: skip


def _store(file: Path, result: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(result))


def write_page(work: Path, out: Path) -> None:
    """One table per network."""
    lines = [HEAD]
    for folder in sorted(work.glob("*/minima")):
        lines += [*_tabulate(folder.parent), ""]
    page = "\n".join(lines)
    print(page)
    out.mkdir(parents=True, exist_ok=True)
    (out / "exact.md").write_text(page)


def _tabulate(folder: Path) -> Iterator[str]:
    """The attacks on one network, best mean ratio first."""
    minima = {int(file.stem): json.loads(file.read_text()) for file in folder.glob("minima/*.json")}
    proved = sorted(i for i, minimum in minima.items() if minimum["proved"])
    seconds = np.median([minimum["seconds"] for minimum in minima.values()])
    yield f"## {folder.name}"
    yield ""
    results = [json.loads(file.read_text()) for file in folder.glob("attacks/*.json")]
    images = max(result["images"] for result in results)
    yield (
        f"The minimum was searched for on {len(minima)} of {images} images, and proved on {len(proved)}. "
        f"The median time for one is {seconds:.1f} s."
    )
    yield ""
    yield "| attack | ratio: mean | median | 95 % | worst | within 0.1 % | forwards | backwards |"
    yield "|---|---|---|---|---|---|---|---|"
    exact = np.array([minima[i]["radius"] for i in proved])
    rows = [(np.array([result["norms"][i] or math.inf for i in proved]) / exact, result) for result in results]
    for ratio, result in sorted(rows, key=lambda row: row[0].mean()):
        spread = f"{ratio.mean():.4f} | {np.median(ratio):.4f} | {np.quantile(ratio, 0.95):.4f} | {ratio.max():.4f}"
        yield (
            f"| {result['attack']} | {spread} | {(ratio <= 1.001).mean():.0%} | {result['forwards']:.0f} "
            f"| {result['backwards']:.0f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=NETWORKS, help="without it: both")
    parser.add_argument("--images", type=int, default=50, help="the first that the network classifies correctly")
    parser.add_argument("--seconds", type=float, default=30, help="most time for the minimum of one image")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path("benchmarks/results/exact"), help="where results are kept")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"), help="where the page goes")
    parser.add_argument("--tables", action="store_true", help="only write the page of what is stored")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name in () if options.tables else (options.network,) if options.network else NETWORKS:
        run_network(name, options.images, options.seconds, options.work)
    write_page(options.work, options.out)


if __name__ == "__main__":
    main()
