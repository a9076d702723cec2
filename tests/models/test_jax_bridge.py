from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from torch import nn

from deepfool.errors import InputError, MissingExtraError, ModelError
from deepfool.models.jax_bridge import from_jax
from deepfool.models.sources import as_module, resolve

jax = pytest.importorskip("jax")
jnp = jax.numpy


def parameters() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    shapes = {"w1": (6, 8), "b1": (8,), "w2": (8, 3), "b2": (3,)}
    return {name: draw.normal(size=shape) for name, shape in shapes.items()}


def apply(params, x):
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    return hidden @ params["w2"] + params["b2"]


def twin() -> nn.Sequential:
    """The same network in torch, in float64."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    names = {"0.weight": "w1", "0.bias": "b1", "2.weight": "w2", "2.bias": "b2"}
    model.load_state_dict({ours: torch.tensor(parameters()[theirs].T) for ours, theirs in names.items()})
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("jitted", [False, True])
def test_scores_and_gradients_are_those_of_the_same_network_in_torch(dtype: torch.dtype, jitted: bool, gradients):
    model = from_jax(jax.jit(apply) if jitted else apply, params=parameters())
    x = torch.rand(4, 6, dtype=dtype, requires_grad=True)
    scores, expected = model(x), twin().to(dtype)(x)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    assert scores.dtype == dtype
    torch.testing.assert_close(scores, expected, rtol=tolerance, atol=tolerance)
    for k in range(3):
        ours = torch.autograd.grad(scores[:, k].sum(), x, retain_graph=True)[0]
        theirs = torch.autograd.grad(expected[:, k].sum(), x, retain_graph=True)[0]
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    gradients(model, x.detach())
    with torch.no_grad():
        torch.testing.assert_close(model(x), expected, rtol=tolerance, atol=tolerance)


def test_batched_rows_are_one_vectorised_pullback():
    """All rows of the Jacobian are computed together: the function is traced once, not once per row."""
    traces = []

    def counted(x):
        traces.append(x.shape)
        return apply(parameters(), x)

    x = torch.rand(4, 6, dtype=torch.float64, requires_grad=True)
    scores = from_jax(counted)(x)
    eye = torch.eye(3, dtype=torch.float64)[:, None].expand(3, 4, 3)
    rows = torch.autograd.grad(scores, x, eye, is_grads_batched=True)[0]
    assert len(traces) == 1
    expected = torch.autograd.functional.jacobian(lambda x: twin()(x).sum(0), x)
    torch.testing.assert_close(rows, expected)


def test_jacrev_works():
    x = torch.rand(2, 6, dtype=torch.float64)
    model = from_jax(apply, params=parameters())
    torch.testing.assert_close(torch.func.jacrev(model)(x), torch.func.jacrev(twin())(x))


def test_the_bridge_is_one_link_of_a_longer_chain():
    model = nn.Sequential(nn.Linear(6, 6, bias=False).double(), from_jax(apply, params=parameters()), nn.Softplus())
    same = nn.Sequential(model[0], twin(), nn.Softplus())
    x = torch.rand(2, 6, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(model(x).logsumexp(1).sum(), x)
    (expected,) = torch.autograd.grad(same(x).logsumexp(1).sum(), x)
    torch.testing.assert_close(grad, expected)


def test_second_order_gradients_fail_cleanly():
    x = torch.rand(2, 6, requires_grad=True)
    scores = from_jax(apply, params=parameters())(x)
    (grad,) = torch.autograd.grad(scores.square().sum(), x, create_graph=True)
    with pytest.raises(ModelError, match="Second-order gradients"):
        torch.autograd.grad(grad.sum(), x)


def test_half_precision_and_strided_inputs():
    model = from_jax(apply, params=parameters())
    x = torch.rand(6, 4).T
    torch.testing.assert_close(model(x), twin().float()(x), rtol=1e-5, atol=1e-5)
    half = x.half().requires_grad_()
    (grad,) = torch.autograd.grad(model(half)[:, 0].sum(), half)
    assert grad.dtype == torch.float16


def test_scores_may_be_written_to_without_reaching_jax():
    weights = jnp.ones((2, 2))
    model = from_jax(lambda x: weights)
    model(torch.zeros(2, 2)).zero_()
    assert weights.tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_jitted_functions_are_recognised_and_bare_ones_are_not():
    params = parameters()
    source = resolve(jax.jit(lambda x: apply(params, x)))
    x = torch.rand(2, 6)
    torch.testing.assert_close(source.module(x), twin().float()(x), rtol=1e-5, atol=1e-5)
    with pytest.raises(InputError, match="from_jax"):
        as_module(lambda x: x)
    with pytest.raises(InputError, match="A JAX function was expected"):
        from_jax("relu")  # type: ignore[arg-type]


def test_the_fingerprint_sees_the_parameters():
    changed = parameters()
    changed["b2"][0] += 1e-3
    prints = {resolve(from_jax(apply, params=params)).fingerprint for params in (parameters(), parameters(), changed)}
    assert len(prints) == 2


def test_a_result_that_is_not_an_array_is_refused():
    with pytest.raises(ModelError, match="expected to return an array of class scores"):
        from_jax(lambda x: {"scores": x})(torch.zeros(1, 2))


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(MissingExtraError, match=r'pip install "deepfool\[jax\]"'):
        from_jax(apply)
