"""p = 0: how few features change the decision. Exact where that is known, and always what it says it is."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from deepfool import (
    Evidence,
    Status,
    affine,
    certify,
    datasets,
    deepfool,
    fmn,
    models,
    sigma_zero,
    smallest,
    sparsefool,
    tighten,
)
from deepfool.boxes import step_in_box
from deepfool.errors import InputError
from deepfool.norms import norm
from tests.oracles import affine_case, mlp

BOX = (0, 1)


def by_smallest(model, x, **given):
    return smallest(model, x, p=0, **{"budget": 60, **given})


def by_sigma_zero(model, x, **given):
    return sigma_zero(model, x, **{"steps": 60, **given})


ATTACKS = [by_smallest, by_sigma_zero, sparsefool]


def count_by_brute_force(weight, bias, x, channels=1, most=3):
    """The fewest units that reach another class when they go to the best corner of [0, 1]; `most` + 1 if more."""
    units = len(x) // channels
    scores = weight @ x + bias
    label = int(scores.argmax())
    for size in range(1, most + 1):
        for chosen in itertools.combinations(range(units), size):
            for k in set(range(len(weight))) - {label}:
                w = weight[k] - weight[label]
                features = [unit + c * units for unit in chosen for c in range(channels)]
                gain = sum(max(float(w[i] * (1 - x[i])), float(-w[i] * x[i])) for i in features)
                if gain >= float(scores[label] - scores[k]):
                    return size
    return most + 1


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 5), st.sampled_from([(6, 1), (8, 1), (9, 3), (12, 3)]))
def test_the_closed_form_is_what_trying_every_subset_gives(seed, classes, shape):
    features, channels = shape
    random = torch.Generator().manual_seed(seed)
    weight = torch.randn(classes, features, generator=random, dtype=torch.float64)
    bias = 0.5 * torch.randn(classes, generator=random, dtype=torch.float64)
    x = torch.rand(3, features, generator=random, dtype=torch.float64)
    found = affine(weight, bias, x, p=0, bounds=BOX, channels=channels)
    for i in range(len(x)):
        exact = count_by_brute_force(weight, bias, x[i], channels)
        assert exact == min(found.norm[i].item(), 4)
        if found.norm[i].isfinite():
            y = x[i] + found.r[i]
            scores = weight @ y + bias
            assert norm(found.r[i], 0, channels) == found.norm[i]
            assert y.min() >= -1e-12
            assert y.max() <= 1 + 1e-12
            assert scores[found.nearest_label[i]] >= scores[found.label[i]] - 1e-9


@pytest.mark.parametrize("classes", [1, 2, 10])
def test_smallest_is_exact_on_affine_models(classes):
    model, x = affine_case(classes, 24, 20, seed=classes)
    exact = affine(model.weight if classes > 1 else model.weight[0], model.bias, x, p=0, bounds=BOX).norm
    result = smallest(model, x, p=0, bounds=BOX, budget=100, candidates=classes)
    assert (result.fooled == exact.isfinite()).all()
    assert (result.norm == exact)[result.fooled].all()


def test_a_step_takes_the_features_that_gain_most():
    w, room = torch.tensor([[3.0, -2.0, 1.0, 0.0]]), torch.tensor([[0.1, 1.0, 1.0, 5.0]])
    r, possible = step_in_box(torch.tensor([2.5]), w, room, 0)
    assert possible.item()
    torch.testing.assert_close(r, torch.tensor([[0.0, -1.0, 0.5, 0.0]]))
    r, possible = step_in_box(torch.tensor([9.0]), w, room, 0)
    assert not possible.item()


def network(channels=1, seed=3):
    flat = mlp((channels * 16, 20, 4), nn.ReLU, seed=seed, gain=1.5)
    x = torch.rand(12, channels, 4, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return nn.Sequential(nn.Flatten(), flat), x


@pytest.mark.parametrize("unit", ["feature", "pixel"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_what_is_returned_is_what_it_says(attack, unit):
    model, x = network(channels=3)
    result = attack(model, x, bounds=BOX, unit=unit)
    assert result.fooled.float().mean() > 0.5
    assert (result.p, result.unit) == (0, unit)
    moved = result.x != x
    counts = moved.any(1).flatten(1).sum(1) if unit == "pixel" else moved.flatten(1).sum(1)
    fooled = result.fooled
    assert (counts[fooled] == result.norm[fooled]).all()
    assert (model(result.x).argmax(1) == result.adv_label).all()
    assert (result.adv_label != result.label)[fooled].all()
    assert result.norm[~fooled].isinf().all()
    assert result.x.min() >= 0
    assert result.x.max() <= 1


@pytest.mark.parametrize("attack", ATTACKS)
def test_masks_and_targets_are_kept_to(attack):
    model, x = network()
    mask = torch.zeros(4, 4, dtype=torch.bool)
    mask[:, :3] = True
    target = model(x).topk(2, 1).indices[:, 1]
    result = attack(model, x, bounds=BOX, mask=mask, target=target)
    assert result.fooled.any()
    assert (result.r[..., 3] == 0).all()
    assert (result.adv_label == target)[result.fooled].all()


def test_a_pixel_counts_once():
    model, x = network(channels=3)
    features = by_smallest(model, x, bounds=BOX, budget=100)
    pixels = by_smallest(model, x, bounds=BOX, budget=100, unit="pixel")
    moved = (features.r != 0).any(1).flatten(1).sum(1)
    assert pixels.norm.mean() <= moved.float().mean()
    assert (pixels.norm < features.norm).any()


@pytest.mark.parametrize("name", ["lenet-mnist", "conv-mnist-certified"])
def test_a_larger_budget_continues_a_smaller_one(name):
    model, x = models.load(name), datasets.load("mnist-sample").batch(range(0, 400, 70))
    before = by_smallest(model, x, bounds=BOX, budget=20)
    for budget in (35, 60, 120):
        now = by_smallest(model, x, bounds=BOX, budget=budget)
        assert now.fooled.all()
        assert (now.norm <= before.norm).all()
        assert (now.forwards + now.backwards <= max(budget, 300)).all()
        before = now


def test_what_is_found_with_all_features_is_thinned_out_at_once():
    """On this network the first descent often fails, and the next move all 3072 features."""
    model, x = models.load("lenet-cifar10"), datasets.load("cifar10-sample").batch(range(20))
    assert smallest(model, x, p=0, bounds=(0, 1), budget=20).norm.max() < 1000


def test_a_batch_of_one_is_as_a_batch_of_many():
    model, x = network(seed=5)
    together = by_smallest(model, x, bounds=BOX, budget=60)
    alone = [by_smallest(model, x[i : i + 1], bounds=BOX, budget=60) for i in range(len(x))]
    assert torch.cat([each.norm for each in alone]).tolist() == together.norm.tolist()
    torch.testing.assert_close(torch.cat([each.x for each in alone]), together.x)


def test_fewer_than_the_others_on_a_real_network():
    model, x = models.load("lenet-mnist"), datasets.load("mnist-sample").batch(range(0, 400, 20))
    ours = by_smallest(model, x, bounds=BOX, budget=100)
    assert ours.fooled.all()
    relaxed, linear = by_sigma_zero(model, x, bounds=BOX, steps=100), sparsefool(model, x, bounds=BOX)
    assert linear.fooled.all()
    assert ours.norm.mean() <= relaxed.norm[relaxed.fooled].mean() + 0.5
    assert ours.norm.mean() < 0.9 * linear.norm.mean()


def test_of_two_equally_few_the_shorter_is_kept():
    model, x = network(seed=7)
    found = by_smallest(model, x, bounds=BOX, budget=60)
    shorter = tighten(model, x, found, bounds=BOX)
    assert (shorter.norm <= found.norm).all()
    assert (shorter.r.flatten(1).norm(dim=1) <= found.r.flatten(1).norm(dim=1) * (1 + 1e-5)).all()


def test_without_gradients_the_decisions_are_searched():
    class Steps(nn.Module):
        def forward(self, x):
            dark = (x.detach().mean(1) < 0.5).float()
            return torch.stack([3 * dark, 3 - 3 * dark], 1)

    x = torch.rand(4, 12, generator=torch.Generator().manual_seed(0)) * 0.5
    result = by_smallest(Steps(), torch.cat([x, 1 - x]), bounds=BOX, budget=40)
    assert result.fooled.all()
    assert (result.evidence != Evidence.GRADIENTS).all()
    assert all(result.reason)


def test_a_model_that_never_changes_its_mind_is_no_answer():
    model = nn.Linear(4, 2)
    nn.init.zeros_(model.weight)
    model.bias.data = torch.tensor([3.0, 0.5])
    result = by_smallest(model, torch.rand(3, 4), bounds=BOX, budget=20)
    assert (result.status == Status.STUCK).all()
    assert result.norm.isinf().all()


@pytest.mark.parametrize("attack", ATTACKS)
def test_bounds_are_needed_and_said_to_be(attack):
    model, x = network()
    with pytest.raises(InputError, match="p = 0 needs bounds"):
        attack(model, x)
    with pytest.raises(InputError, match="finite bounds"):
        attack(model, x, bounds=(0, torch.inf))
    with pytest.raises(InputError, match="'feature' or 'pixel'"):
        attack(model, x, bounds=BOX, unit="voxel")
    with pytest.raises(InputError, match="pixels are counted in images"):
        attack(nn.Linear(5, 2), torch.rand(2, 5), bounds=BOX, unit="pixel")


def test_p_0_is_refused_by_name_where_it_has_no_meaning():
    model, x = network()
    with pytest.raises(InputError, match="deepfool works in the norms p >= 1, got 0"):
        deepfool(model, x, p=0, bounds=BOX)
    with pytest.raises(InputError, match="fmn works in the norms p = 1, 2 and inf, got 0"):
        fmn(model, x, p=0, bounds=BOX)
    with pytest.raises(InputError, match="certify works in the norms"):
        certify(model, x, p=0, bounds=BOX)
    with pytest.raises(InputError, match="p = 0 needs bounds"):
        affine(torch.eye(2), torch.zeros(2), torch.rand(1, 2), p=0)
    with pytest.raises(InputError, match="unit says what p = 0 counts"):
        smallest(model, x, p=2, unit="pixel")


def test_the_result_says_what_it_counts():
    model, x = network(channels=3)
    assert "median of pixels changed" in repr(by_smallest(model, x, bounds=BOX, unit="pixel"))
