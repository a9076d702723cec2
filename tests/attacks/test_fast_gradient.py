"""FGSM by hand, and the smallest eps against brute force."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from deepfool import Status, fgsm, smallest_eps
from deepfool.errors import DataError, InputError
from tests.oracles import mlp


def tiny():
    """Two inputs, two classes, a hidden layer to follow on paper: h = relu(x), z = 3 + (h_0, 2 h_1 - h_0)."""
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    model[0].weight.data, model[0].bias.data = torch.eye(2), torch.zeros(2)
    model[2].weight.data, model[2].bias.data = torch.tensor([[1.0, 0.0], [-1.0, 2.0]]), torch.full((2,), 3.0)
    return model


def test_one_step_by_hand():
    """z = 3 + (1, 0) at (1, 0.5): the gradient of J(., 0) is a positive multiple of d(z_1 - z_0) = (-2, 2)."""
    x = torch.tensor([[1.0, 0.5]])
    result = fgsm(tiny(), x, eps=0.3)
    torch.testing.assert_close(result.x, torch.tensor([[0.7, 0.8]]))
    assert result.fooled.item()  # z = 3 + (0.7, 0.9)
    torch.testing.assert_close(result.norm, torch.tensor([0.3]))
    assert result.forwards.item() == 3
    assert result.backwards.item() == 1
    short = fgsm(tiny(), x, eps=0.2)  # z = 3 + (0.8, 0.6)
    assert short.status.item() == Status.EXHAUSTED
    assert "raise eps" in short.reason[0]
    torch.testing.assert_close(short.x, torch.tensor([[0.8, 0.7]]))
    tight = fgsm(tiny(), x, eps=0.3, tighten=True)  # the boundary z_0 = z_1 is x_0 = x_1, at 0.25
    torch.testing.assert_close(tight.norm, torch.tensor([0.25]), rtol=1e-4, atol=0)


def test_bounds_cut_the_step():
    result = fgsm(tiny(), torch.tensor([[1.0, 0.5]]), eps=0.9, bounds=(0, 1))
    torch.testing.assert_close(result.x, torch.tensor([[0.1, 1.0]]))


def test_the_step_is_the_sign_of_the_gradient_of_the_cross_entropy():
    model = mlp((6, 16, 5), nn.Tanh, gain=3.0)
    x = torch.rand(20, 6, dtype=torch.float64).requires_grad_()
    z = model(x)
    (g,) = torch.autograd.grad(nn.functional.cross_entropy(z, z.argmax(1), reduction="sum"), x)
    torch.testing.assert_close(fgsm(model, x.detach(), eps=0.1).r, 0.1 * g.sign())
    target = (z.argmax(1) + 1) % 5
    (g,) = torch.autograd.grad(nn.functional.cross_entropy(model(x), target, reduction="sum"), x)
    torch.testing.assert_close(fgsm(model, x.detach(), eps=0.1, target=target).r, -0.1 * g.sign())


def test_saturated_scores_still_have_a_direction():
    """In float32 the softmax of scores 1000 apart is exactly 0 and 1, and its gradient zero."""
    model = mlp((6, 16, 5), nn.Tanh, gain=3.0)
    x = torch.rand(20, 6, dtype=torch.float64)
    expected = fgsm(model, x, eps=0.1).r.float()
    loud = nn.Sequential(model, nn.Linear(5, 5, bias=False)).float()
    loud[1].weight.data = 1e5 * torch.eye(5)
    found = fgsm(loud, x.float(), eps=0.1).r
    # A loud softmax sees only the best rival; where that is all there is to see, nothing changes.
    assert (found != 0).all()
    assert ((found - expected).abs() < 1e-3).float().mean() > 0.8


def brute_force(model, x, y, share, bounds, step=1e-3, top=1.0):
    x = x.clone().requires_grad_()
    (g,) = torch.autograd.grad(nn.functional.cross_entropy(model(x), y, reduction="sum"), x)
    for i in range(int(top / step) + 1):
        moved = x.detach() + i * step * g.sign()
        moved = moved if bounds is None else moved.clamp(*bounds)
        if (model(moved).argmax(1) != y).float().mean() >= share:
            return i * step
    return math.inf


@pytest.mark.parametrize("bounds", [None, (0.0, 1.0)])
@pytest.mark.parametrize("share", [0.3, 0.5, 0.7])
def test_smallest_eps_against_brute_force(share, bounds):
    model = mlp((6, 16, 5), nn.ReLU, seed=2, gain=2.0)
    x = torch.rand(200, 6, dtype=torch.float64)
    y = model(x).argmax(1)
    y[:10] = (y[:10] + 1) % 5  # some are wrong to begin with, and count
    found = smallest_eps(model, (x, y), share=share, bounds=bounds, grid=200, precision=1e-4)
    expected = brute_force(model, x, y, share, bounds)
    assert math.isfinite(expected)
    assert found.reached
    assert found.eps == pytest.approx(expected, abs=1.2e-3)
    assert found.share >= share
    assert found.curve[0] == (0.0, pytest.approx(0.05))
    assert all(value < share for eps, value in found.curve if eps < found.eps)


def test_each_sample_pays_for_one_backward_pass_and_the_search_for_forwards_only():
    model = mlp((6, 16, 5), nn.ReLU, seed=2, gain=2.0)
    x = torch.rand(50, 6, dtype=torch.float64)
    y = model(x).argmax(1)
    forwards, backwards = [], []

    def counted(v):
        forwards.append(len(v))
        z = model(v)
        if z.requires_grad:
            z.register_hook(lambda g: backwards.append(len(g)))
        return z

    found = smallest_eps(counted, (x, y), share=0.5, batch_size=20)
    assert sum(backwards) == 50 == 50 * found.backwards
    assert sum(forwards) == 50 * found.forwards
    assert max(forwards) == 20
    assert len(found.curve) + 2 == found.forwards


def test_batches_loaders_and_pairs_give_the_same():
    model = mlp((6, 16, 5), nn.ReLU, seed=2, gain=2.0)
    x = torch.rand(60, 6, dtype=torch.float64)
    y = model(x).argmax(1)
    pair = smallest_eps(model, (x, y), share=0.5)
    parts = smallest_eps(model, list(zip(x.split(25), y.split(25), strict=True)), share=0.5)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=7)
    once = smallest_eps(model, iter(loader), share=0.5)
    for other in (parts, once):
        for name in ("norm_l2", "norm_linf", "rho_l2", "rho_linf"):  # of sums that are taken in another order
            assert getattr(other, name) == pytest.approx(getattr(pair, name), rel=1e-6)
            other = replace(other, **{name: getattr(pair, name)})
        assert other == pair


def test_the_norms_are_those_of_the_perturbations():
    model = mlp((6, 16, 5), nn.ReLU, seed=2, gain=2.0)
    x = torch.rand(60, 6, dtype=torch.float64)
    y = model(x).argmax(1)
    found = smallest_eps(model, (x, y), share=0.5, bounds=(0, 1))
    r = fgsm(model, x, eps=found.eps, bounds=(0, 1)).r
    assert found.norm_l2 == pytest.approx(r.norm(dim=1).mean().item(), rel=1e-5)
    assert found.norm_linf == pytest.approx(r.abs().amax(1).mean().item(), rel=1e-5)
    assert found.rho_l2 == pytest.approx((r.norm(dim=1) / x.norm(dim=1)).mean().item(), rel=1e-5)
    assert found.rho_linf == pytest.approx((r.abs().amax(1) / x.abs().amax(1)).mean().item(), rel=1e-5)
    assert f"eps = {found.eps:.4g}" in str(found)


def test_a_share_that_is_never_reached_is_said_so():
    """The score x^2 - 1/4 is left by a step towards 0, but most samples lie beyond: large steps come out again."""
    model = lambda v: torch.stack([v[:, 0] ** 2, 0.25 + 0 * v[:, 0]], 1)  # noqa: E731
    x = torch.tensor([[0.6], [2.0], [5.0], [10.0]], dtype=torch.float64)
    found = smallest_eps(model, (x, torch.zeros(4).long()), share=0.9, highest=20.0, grid=400)
    assert not found.reached
    assert found.eps == math.inf
    assert found.rho_l2 == found.norm_linf == math.inf
    assert found.share == max(share for _, share in found.curve) < 0.9
    assert "never misclassifies 90.0% of these 4 samples" in str(found)
    assert len(found.curve) == 401
    easier = smallest_eps(model, (x, torch.zeros(4).long()), share=0.25, highest=20.0, grid=400)
    assert easier.eps == pytest.approx(0.1, rel=2e-3)


def test_a_share_that_the_errors_reach_needs_no_step():
    model = mlp((6, 16, 5), nn.ReLU, seed=2)
    x = torch.rand(10, 6, dtype=torch.float64)
    found = smallest_eps(model, (x, (model(x).argmax(1) + 1) % 5), share=0.9)
    assert found.eps == 0
    assert found.reached
    assert found.norm_l2 == 0


def test_masked_features_stay():
    model = mlp((6, 16, 5), nn.ReLU, seed=2, gain=2.0)
    x = torch.rand(30, 6, dtype=torch.float64)
    y = model(x).argmax(1)
    half = smallest_eps(model, (x, y), share=0.3, mask=torch.tensor([1, 1, 1, 0, 0, 0]))
    whole = smallest_eps(model, (x, y), share=0.3)
    assert half.eps > whole.eps


@pytest.mark.parametrize(
    ("data", "knobs", "message"),
    [
        ((torch.rand(3, 6), torch.zeros(3).long()), {"share": 0}, r"share must be a number in \(0, 1\]"),
        ((torch.rand(3, 6), torch.zeros(3).long()), {"grid": 1}, "grid must be"),
        ((torch.rand(3, 6), torch.zeros(3).long()), {"highest": -1.0}, "highest must be"),
        ((torch.rand(3, 6), torch.zeros(2).long()), {}, "3 samples and 2 labels"),
        ((torch.rand(3, 6), torch.zeros(3).long() + 9), {}, "labels must lie in"),
        ([torch.rand(3, 6)], {}, "iterable of such pairs"),
    ],
)
def test_bad_input_is_refused(data, knobs, message):
    with pytest.raises(InputError, match=message):
        smallest_eps(mlp((6, 8, 5), nn.ReLU).float(), data, **knobs)


def test_no_data_is_an_error():
    with pytest.raises(DataError, match="no samples"):
        smallest_eps(tiny(), [])
