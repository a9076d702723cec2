"""`smallest`: exact where the answer is known, never worse than DeepFool, honest where gradients mislead."""

import math
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from deepfool import Status, affine, datasets, deepfool, models, smallest
from deepfool.classifier.jacobian import Tangent
from deepfool.errors import InputError
from tests.oracles import affine_case, mlp

NORMS = [1.0, 2.0, math.inf]


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("bounds", [None, (0, 1)])
@pytest.mark.parametrize("classes", [1, 2, 10, 100])
def test_affine_distances_are_reached(classes, bounds, p):
    model, x = affine_case(classes, 24, 20, seed=classes)
    exact = affine(model.weight if classes > 1 else model.weight[0], model.bias, x, p=p, bounds=bounds).norm
    result = smallest(model, x, p=p, bounds=bounds, budget=300, candidates=classes)
    reachable = exact.isfinite()
    assert (result.fooled == reachable).all()
    torch.testing.assert_close(result.norm[reachable], exact[reachable], rtol=1e-4, atol=0)


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("name", ["fc500-mnist", "lenet-mnist"])
def test_never_larger_than_deepfool_on_real_networks(name, p):
    model, x = models.load(name), datasets.load("mnist-sample").batch(range(0, 1000, 10))
    plain = deepfool(model, x, p=p, bounds=(0, 1))
    small = smallest(model, x, p=p, bounds=(0, 1), budget=50)
    smaller = smallest(model, x, p=p, bounds=(0, 1), budget=100)
    assert small.fooled.all()
    # Where DeepFool's own point is the answer, it is reached by other kernels and in other batches: in float32 that
    # makes 1e-7 a step, and steps magnify it.
    assert (small.norm <= plain.norm * (1 + 1e-5)).all()
    assert (smaller.norm <= plain.norm * (1 + 1e-5)).all()
    assert smaller.norm.mean() < small.norm.mean() < 0.97 * plain.norm.mean()
    for size in (7, 40):
        again = torch.cat([model(part).argmax(1) for part in smaller.x.split(size)])
        assert (again == smaller.adv_label).all()
        assert (again != smaller.label).all()


@pytest.mark.parametrize("p", NORMS)
def test_never_larger_than_deepfool_on_curved_networks_and_small_budgets(p):
    """Where DeepFool needs more passes than the stages leave to it."""
    model, x = models.load("lenet-cifar10"), datasets.load("cifar10-sample").batch(range(0, 500, 40))
    plain = deepfool(model, x, p=p, bounds=(0, 1))
    for budget in (20, 50):
        assert (smallest(model, x, p=p, bounds=(0, 1), budget=budget).norm <= plain.norm * 1.0001 + 1e-6).all()


@given(
    st.integers(0, 10**6),
    st.sampled_from(NORMS),
    st.sampled_from([None, (0.0, 1.0)]),
    st.sampled_from([nn.ReLU, nn.Tanh]),
)
@settings(max_examples=15)
def test_properties(seed, p, bounds, kind):
    model = mlp((6, 16, 12, 5), kind, seed)
    x = torch.rand(9, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    plain = deepfool(model, x, p=p, bounds=bounds)
    result = smallest(model, x, p=p, bounds=bounds, budget=60)
    sure = result.fooled
    assert (plain.fooled <= sure).all()  # what DeepFool fools, this fools
    assert (result.norm[plain.fooled] <= plain.norm[plain.fooled] * (1 + 1e-9)).all()
    assert (model(result.x).argmax(1)[sure] != result.label[sure]).all()
    assert result.norm[~sure].isinf().all()
    if bounds:
        assert ((result.x >= 0) & (result.x <= 1)).all()
    within = result.forwards + result.backwards <= 60 + plain.forwards + plain.backwards  # DeepFool to its end
    assert (within | torch.tensor([bool(why) for why in result.reason]) | ~plain.fooled).all()


@pytest.mark.parametrize("p", NORMS)
def test_masks_and_targets(p):
    model, x = mlp((6, 16, 12, 5), nn.Tanh), torch.rand(12, 6, dtype=torch.float64)
    mask = torch.tensor([True, False, True, True, False, True])
    target = (model(x).argmax(1) + 2) % 5
    masked = smallest(model, x, p=p, mask=mask)
    assert (masked.r[:, ~mask] == 0).all()
    assert masked.fooled.float().mean() > 0.6
    aimed = smallest(model, x, p=p, target=target)
    assert (model(aimed.x).argmax(1)[aimed.fooled] == target[aimed.fooled]).all()
    assert aimed.fooled.float().mean() > 0.6
    free = smallest(model, x, p=p)
    both = aimed.fooled & free.fooled
    assert (aimed.norm[both] >= free.norm[both] * 0.95).all()


def test_the_passes_that_are_reported_are_the_passes_that_were_made():
    model, x = mlp((6, 16, 12, 5), nn.Tanh), torch.rand(12, 6, dtype=torch.float64)
    seen = [0]
    model.register_forward_pre_hook(lambda _, args: seen.__setitem__(0, seen[0] + len(args[0])))
    result = smallest(model, x, budget=400)
    assert seen[0] == result.forwards.sum()
    assert (result.forwards + result.backwards <= 400).all()


def test_a_larger_budget_finds_smaller_perturbations():
    model, x = models.load("fc500-mnist"), datasets.load("mnist-sample").batch(range(20))
    sizes = [smallest(model, x, p=1, bounds=(0, 1), budget=b).norm.mean() for b in (25, 50, 100)]
    assert sizes == sorted(sizes, reverse=True)


class Masked(nn.Module):
    """A network whose scores are blown up and rounded, so that gradients are zero nearly everywhere."""

    def __init__(self, inner, how):
        super().__init__()
        self.inner, self.how = inner, how

    def forward(self, x):
        z = self.inner(x)
        if self.how == "quantised":
            return (z * 4).round() / 4 + 0 * z
        return torch.tanh(z * 1e4)


@pytest.mark.parametrize("how", ["quantised", "saturated"])
def test_gradient_masked_networks_are_fooled_or_flagged(how):
    inner = models.load("fc500-mnist")
    x = datasets.load("mnist-sample").batch(range(24))
    masked = Masked(inner, how)
    open_attack = smallest(inner, x, bounds=(0, 1))
    assert open_attack.fooled.all()
    result = smallest(masked, x, bounds=(0, 1), budget=300)
    flagged = torch.tensor([bool(why) for why in result.reason])
    assert (result.fooled | flagged).all()
    assert result.fooled.float().mean() > 0.9
    assert flagged.any()
    assert (masked(result.x).argmax(1)[result.fooled] != result.label[result.fooled]).all()
    plain = deepfool(masked, x, bounds=(0, 1))
    assert plain.fooled.sum() < result.fooled.sum()  # a linearisation alone is lost here


def test_what_it_cannot_do_is_said(fixed_random_stream):
    model, x = mlp((6, 16, 5), nn.Tanh), torch.rand(3, 6, dtype=torch.float64)
    with pytest.raises(InputError, match="p = 1, 2 and inf, got 3"):
        smallest(model, x, p=3)
    with pytest.raises(InputError, match="budget must be a whole number >= 10"):
        smallest(model, x, budget=3)
    constant = smallest(lambda v: v[:, :2] * 0 + torch.tensor([2.0, 0.0]).double(), x)
    assert (constant.status == Status.STUCK).all()
    assert "raise the budget" in constant.reason[0]
    assert len(smallest(model, x[:0])) == 0


def test_no_more_classes_than_were_asked_for():
    model, x = models.load("fc500-mnist"), datasets.load("mnist-sample").batch(range(0, 1000, 50))
    asked = []
    take = Tangent.difference_rows

    def note(tangent, classes, reference):
        asked.append(classes.shape[1])
        return take(tangent, classes, reference)

    with patch.object(Tangent, "difference_rows", note):
        smallest(model, x, bounds=(0, 1), candidates=2, budget=50)
    assert max(asked) == 2
