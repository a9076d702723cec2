"""What `benchmarks.gradient_density` measures, on networks whose answer is known."""

from __future__ import annotations

import math

import pytest
import torch
from benchmarks.gradient_density import FC500, build, mean_ratio, measure_norms, read_fgsm_ratio
from torch import nn

import deepfool as df


def make_affine(w: torch.Tensor) -> nn.Module:
    """Two classes, with the boundary w x = 0."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(len(w), 2, bias=False)).requires_grad_(False)
    network[1].weight.copy_(torch.stack([w, -w]))
    return network


@pytest.mark.parametrize(("w", "density"), [([1.0, 1.0, 1.0, 1.0], 2.0), ([0.0, 3.0, 0.0, 0.0], 1.0)])
def test_density_of_affine_networks(w: list[float], density: float) -> None:
    """A dense normal is as dense as can be, sqrt(4), one of a single feature is 1; the norms differ by that factor."""
    x = torch.tensor([[1.0, 2.0, 0.5, 1.0], [2.0, 1.0, 1.0, 0.5]])
    found = measure_norms(make_affine(torch.tensor(w)), x)
    assert found["density"] == pytest.approx(density)
    l2, linf = (df.deepfool(make_affine(torch.tensor(w)), x, p=p).norm for p in (2, math.inf))
    torch.testing.assert_close(l2 / linf, torch.full((2,), density))


def test_fgsm_ratio_is_that_of_sign_steps() -> None:
    x = torch.rand(5, 1, 3, 3, generator=torch.Generator().manual_seed(0)) + 0.1
    r = 0.2 * torch.where(x > 0.5, 1.0, -1.0).flatten(1)
    l2, linf = (mean_ratio(r.norm(p, dim=1), x, p) for p in (2, math.inf))
    assert read_fgsm_ratio(x) == pytest.approx(linf / l2)


@pytest.mark.parametrize(("key", "deviation"), [("fc500-small", 0.01), ("fc500-he", math.sqrt(2 / 784))])
def test_initial_weights_have_the_deviation_asked_for(key: str, deviation: float) -> None:
    first = next(layer for layer in build(FC500[key]).modules() if isinstance(layer, nn.Linear))
    assert float(first.weight.detach().std()) == pytest.approx(deviation, rel=0.02)
