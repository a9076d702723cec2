"""The batched code against the literal transcription of the paper's listings."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from deepfool import Status, deepfool
from tests.oracles import mlp
from tests.reference import DenseNetwork, algorithm_1, algorithm_2

CREEPING = 20
"""Where the overshot point falls back into the same class, the listing creeps up to the boundary until the gap it
closes is rounding error; from then on two correct programs differ. Rare, and nothing is compared there."""


def transcribe(model: nn.Sequential, activation: str) -> DenseNetwork:
    dense = [layer for layer in model if isinstance(layer, nn.Linear)]
    return DenseNetwork(
        [m.weight.detach().numpy() for m in dense], [m.bias.detach().numpy() for m in dense], activation
    )


def test_the_written_out_jacobian_agrees_with_finite_differences():
    for name, kind in [("relu", nn.ReLU), ("tanh", nn.Tanh)]:
        f = transcribe(mlp((5, 16, 12, 4), kind), name)
        x, h = np.random.default_rng(0).normal(size=5), 1e-6
        numeric = np.stack([(f(x + h * e) - f(x - h * e)) / (2 * h) for e in np.eye(5)], 1)
        np.testing.assert_allclose(f.with_jacobian(x)[1], numeric, atol=1e-7)


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 4.0, math.inf])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("classes", [1, 2, 7])
def test_same_perturbation_and_same_iterations(classes, activation, p):
    kind = nn.ReLU if activation == "relu" else nn.Tanh
    model = mlp((8, 24, 16, classes), kind, seed=5, gain=1.5 if activation == "tanh" else 1.0)
    f, reference = transcribe(model, activation), algorithm_1 if classes == 1 else algorithm_2
    x = torch.randn(25, 8, dtype=torch.float64)
    result = deepfool(model, x, p=p)
    several = compared = 0
    for i in range(len(x)):
        r, iterations = reference(f, x[i].numpy(), p)
        if iterations <= CREEPING and np.isfinite(r).all():
            compared += 1
            several += iterations > 1
            assert result.status[i] == Status.FOOLED
            assert result.iterations[i] == iterations
            np.testing.assert_allclose(result.r[i].numpy(), r, rtol=1e-5, atol=1e-5 * np.abs(r).max())
        else:
            assert result.iterations[i] > CREEPING or result.status[i] == Status.STUCK
    assert several > 3  # the case is not a linear one in disguise
    assert compared > 20
