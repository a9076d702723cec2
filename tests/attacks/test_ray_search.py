"""The ray search: never larger, never lost, always counted."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from deepfool import Adversarial, Status, deepfool, fgsm, tighten
from deepfool.errors import InputError
from deepfool.norms import norm
from tests.oracles import affine_case, boxed_distance, free_distances, mlp, score_differences


def network(seed, n=15, kind=nn.Tanh, dtype=torch.float64):
    model = mlp((6, 16, 12, 5), kind, seed, gain=2.0).to(dtype)
    return model, torch.rand(n, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


@given(
    st.integers(0, 10**6),
    st.sampled_from([1.0, 2.0, math.inf]),
    st.sampled_from([None, (0.0, 1.0)]),
    st.sampled_from([nn.ReLU, nn.Tanh]),
    st.sampled_from([torch.float16, torch.float32, torch.float64]),
)
def test_never_larger_and_never_lost(seed, p, bounds, kind, dtype):
    model, x = network(seed, kind=kind, dtype=dtype)
    before = deepfool(model, x, p=p, bounds=bounds, overshoot=0.3)
    for after in (tighten(model, x, before), tighten(model, x, before, bounds=bounds)):
        assert torch.equal(after.status, before.status)
        assert (after.norm <= before.norm).all()
        assert (model(after.x).argmax(1) != after.label)[after.fooled].all()
        assert (model(after.x).argmax(1) == after.adv_label)[after.fooled].all()
        torch.testing.assert_close(norm(after.r, p)[after.fooled], after.norm[after.fooled])
        low, high = torch.minimum(x, before.x), torch.maximum(x, before.x)
        assert ((after.x >= low) & (after.x <= high)).all()  # so it keeps to bounds and mask, whatever they were


@given(st.integers(0, 10**6), st.sampled_from([2.0, math.inf]))
def test_it_comes_to_the_boundary_itself(seed, p):
    model, x = network(seed)
    before = deepfool(model, x, p=p, overshoot=0.2)
    after = tighten(model, x, before)
    shorter = x + (1 - 2e-5) * after.r
    assert (model(shorter).argmax(1) == after.label)[after.fooled].all()


@pytest.mark.parametrize("p", [1, 2, math.inf])
def test_exact_on_affine_classifiers_whatever_the_overshoot(p):
    model, x = affine_case(10, 24, 15, seed=8)
    exact = [free_distances(*score_differences(model, v.numpy())[1:], p).min() for v in x]
    for overshoot in (0.001, 0.02, 0.5, 3.0):
        after = tighten(model, x, deepfool(model, x, p=p, overshoot=overshoot))
        torch.testing.assert_close(after.norm, torch.tensor(exact, dtype=x.dtype), rtol=2e-5, atol=0)
        assert (after.forwards <= 3 + 2 + 12).all()


@pytest.mark.parametrize("p", [1, 2, math.inf])
def test_knowing_the_bounds_gives_what_the_attack_itself_would(p):
    """A plain ray takes features off their bounds; the smallest perturbation in the box leaves them there."""
    model, x = affine_case(10, 24, 15, seed=9)
    exact = torch.tensor([boxed_distance(model, v.numpy(), p, 0, 1) for v in x], dtype=x.dtype)
    inside = deepfool(model, x, p=p, bounds=(0, 1), tighten=True)
    torch.testing.assert_close(inside.norm, exact, rtol=1e-4, atol=0)
    before = deepfool(model, x, p=p, bounds=(0, 1))
    plain, knowing = tighten(model, x, before), tighten(model, x, before, bounds=(0, 1))
    assert (knowing.norm / exact).mean() <= (plain.norm / exact).mean()
    assert (knowing.norm / exact).max() < 1.005


def test_every_pass_is_counted():
    model, x = network(1)
    before = deepfool(model, x, overshoot=0.3)
    sizes = []
    model.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    after = tighten(model, x, before)
    assert sum(sizes) == (after.forwards - before.forwards).sum()
    assert torch.equal(after.backwards, before.backwards + 1)  # one gradient tells how far rounding may reach
    assert torch.equal(after.iterations, before.iterations)
    assert len(set(sizes)) > 2  # done samples leave the batch


def test_rows_that_are_not_fooled_are_passed_on():
    model, x = network(2, n=6)
    labels = model(x).argmax(1)
    labels[3] = (labels[3] + 1) % 5
    before = fgsm(model, x, labels, eps=0.3)
    assert 0 < before.fooled.sum() < 5
    after = tighten(model, x, before)
    rest = ~before.fooled
    assert torch.equal(after.status, before.status)
    assert torch.equal(after.x[rest], before.x[rest])
    assert torch.equal(after.norm[rest], before.norm[rest])
    assert torch.equal(after.forwards[rest], before.forwards[rest])
    assert after.reason == before.reason
    assert (after.norm[before.fooled] < before.norm[before.fooled]).all()
    again = tighten(model, x, before.rows(torch.tensor([3] * 6)))
    assert (again.status == Status.MISCLASSIFIED).all()


def test_a_point_that_does_not_fool_is_not_believed():
    model, x = network(3, n=4)
    before = deepfool(model, x)
    lie = replace(before, x=x.clone(), r=torch.zeros_like(x))
    after = tighten(model, x, lie)
    assert (after.status == Status.EXHAUSTED).all()
    assert after.norm.isinf().all()
    assert all("does not fool" in reason for reason in after.reason)


def test_targets_are_kept():
    model, x = network(4, n=10)
    target = (model(x).argmax(1) + 2) % 5
    before = deepfool(model, x, target=target, overshoot=0.5)
    after = tighten(model, x, before, target=target)
    assert before.fooled.any()
    assert (model(after.x).argmax(1) == target)[after.fooled].all()
    assert torch.equal(after.fooled, before.fooled)


def test_the_search_closes_in_even_where_the_margin_is_bent():
    """The margin (x - 1)^9: flat around its root, which misleads a search that only interpolates."""
    model = lambda x: torch.stack([0 * x[:, 0], (x[:, 0] - 1) ** 9], 1)  # noqa: E731
    x = torch.tensor([[0.0]], dtype=torch.float64)
    whole = torch.tensor([0])
    before = Adversarial(
        x=x + 3, r=x + 3, label=whole, adv_label=whole + 1, norm=x[:, 0] + 3, iterations=whole, status=whole,
        forwards=whole, backwards=whole, evidence=whole, converged=whole.bool(), reason=("",), p=2,
    )  # fmt: skip
    after = tighten(model, x, before, steps=60, precision=1e-3)
    tolerance = 1e-12 ** (1 / 9)  # where the margin is told from zero
    assert 1 < after.norm.item() < 1 + 1.2 * tolerance
    assert after.forwards.item() < 35


def test_bad_arguments_are_refused():
    model, x = network(5, n=3)
    found = deepfool(model, x)
    with pytest.raises(InputError, match="must belong to x"):
        tighten(model, x[:2], found)
    with pytest.raises(InputError, match="precision"):
        tighten(model, x, found, precision=0)
    with pytest.raises(InputError, match="steps"):
        tighten(model, x, found, steps=0)


def test_an_empty_batch():
    empty = Adversarial.empty(torch.rand(0, 6), 2)
    assert len(tighten(lambda _: pytest.fail("not called"), torch.rand(0, 6), empty)) == 0
