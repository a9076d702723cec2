"""Attacks in subspaces: the closed form of affine models, the box, and the makers of subspaces."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from deepfool import deepfool, smallest
from deepfool.attacks.shared import pruning
from deepfool.errors import InputError
from deepfool.subspaces import Subspace, draw_subspace, find_components, lower_resolution, make_bands, make_cosines
from tests.oracles import affine_case, score_differences

SHAPE = (1, 6, 6)
D, C, N = 36, 5, 6


def makers():
    x = torch.randn(50, D, generator=torch.Generator().manual_seed(0))
    return {
        "random": draw_subspace(D, 7, seed=1),
        "band": make_bands(SHAPE, 4)[1],
        "resolution": lower_resolution(SHAPE, 2),
        "components": find_components(x, 5),
        "features": Subspace.only(torch.arange(D) % 3 == 0),
        "functions": Subspace.by(lambda x: x[:, ::2], lambda c: torch.stack([c, 0 * c], 2).flatten(1), D, D // 2),
    }


def as_basis(subspace):
    return subspace.back(torch.eye(subspace.dimensions, dtype=torch.float64)).T


@pytest.mark.parametrize("kind", list(makers()))
def test_subspaces_are_orthonormal(kind):
    subspace = makers()[kind]
    basis = as_basis(subspace)
    assert basis.shape == (D, subspace.dimensions)
    assert torch.allclose(basis.T @ basis, torch.eye(subspace.dimensions, dtype=torch.float64), atol=1e-5)
    x = torch.randn(3, D, generator=torch.Generator().manual_seed(2)).double()
    assert torch.allclose(subspace.to(x), x @ basis, atol=1e-5)


@pytest.mark.parametrize("attack", [deepfool, smallest], ids=lambda each: each.__name__)
@pytest.mark.parametrize("kind", list(makers()))
def test_affine_models_have_a_closed_form(kind, attack):
    """The distance is gap / ||B^T w||, and the answer lies in the subspace."""
    subspace = makers()[kind]
    model, x = affine_case(C, D, N, seed=1)
    basis = as_basis(subspace).numpy()
    exact = []
    for row in x.numpy():
        _, w, gap = score_differences(model, row)
        exact.append((gap / np.linalg.norm(w @ basis, axis=1)).min())
    found = attack(model, x, subspace=subspace, **({"tighten": True} if attack is deepfool else {}))
    assert found.fooled.all()
    assert found.norm.numpy() == pytest.approx(np.array(exact), rel=1e-3)
    assert torch.allclose(subspace.project(found.r), found.r, atol=1e-5)
    assert torch.equal(model(found.x).argmax(1), found.adv_label)
    assert torch.allclose(found.x - x, found.r)


def test_a_basis_will_do():
    model, x = affine_case(C, D, N, seed=2)
    subspace = draw_subspace(D, 4)
    basis = as_basis(subspace)
    assert torch.allclose(deepfool(model, x, subspace=basis).norm, deepfool(model, x, subspace=subspace).norm)


def test_features_are_a_mask_in_every_norm_and_box():
    model, x = affine_case(C, D, N, seed=3)
    mask = torch.arange(D) % 2 == 0
    for p in (1, 2, math.inf):
        for bounds in (None, (-0.5, 1.5)):
            given = {"p": p, "bounds": bounds}
            same = deepfool(model, x, mask=mask, **given)
            assert torch.equal(deepfool(model, x, subspace=Subspace.only(mask), **given).r, same.r)


@pytest.mark.parametrize("attack", [deepfool, smallest], ids=lambda each: each.__name__)
def test_the_box_is_kept(attack):
    model, x = affine_case(C, D, N, seed=4)
    found = attack(model, x, subspace=draw_subspace(D, 12), bounds=(0, 1))
    assert ((found.x >= 0) & (found.x <= 1)).all()
    assert found.fooled.any()
    free = attack(model, x, subspace=draw_subspace(D, 12))
    assert (free.norm > 0).all()
    changed = model(found.x).argmax(1) != found.label
    assert changed[found.fooled].all()
    assert torch.allclose(found.r.norm(dim=1)[found.fooled], found.norm[found.fooled])


def test_smaller_subspaces_are_farther():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(D, 30), nn.ReLU(), nn.Linear(30, 4))
    x = torch.rand(10, *SHAPE, generator=torch.Generator().manual_seed(1))
    whole = smallest(net, x)
    for band in make_bands(SHAPE, 3):
        found = smallest(net, x, subspace=band)
        assert found.x.shape == x.shape
        assert (found.norm >= whole.norm * 0.98).all()
        flat = found.r.flatten(1)[found.fooled]
        assert torch.allclose(band.project(flat), flat, atol=1e-4)


def test_goals_and_batches():
    model, x = affine_case(3, D, N, seed=5)
    subspace = draw_subspace(D, 10)
    found = deepfool(model, x, subspace=subspace, goal="within:0.5", tighten=True)
    basis, weight = as_basis(subspace).numpy(), model.weight.detach().numpy()
    assert found.norm.numpy() == pytest.approx(0.5 / np.linalg.norm(weight @ basis, axis=1).max(), rel=1e-3)
    alone = torch.cat([deepfool(model, row[None], subspace=subspace).norm for row in x])
    assert torch.allclose(alone, deepfool(model, x, subspace=subspace).norm)
    labels = model(x).argmax(1)
    labels[0] = (labels[0] + 1) % 3
    skipped = deepfool(model, x, subspace=subspace, labels=labels)
    assert skipped.status.tolist() == [3, *[0] * (N - 1)]
    assert (skipped.r[0] == 0).all()


def test_bands_are_all_of_the_image():
    bands = make_bands(SHAPE, 5)
    x = torch.randn(2, D, generator=torch.Generator().manual_seed(0)).double()
    assert torch.allclose(sum(band.project(x) for band in bands), x)
    assert torch.allclose(make_bands(SHAPE, 36)[0].project(torch.ones(1, D)), torch.ones(1, D))  # the mean
    assert sum(band.dimensions for band in bands) == D
    n = 6
    by_formula = [[math.cos(math.pi * k * (i + 0.5) / n) for i in range(n)] for k in range(n)]
    scaled = torch.tensor(by_formula).double() * math.sqrt(2 / n)
    scaled[0] /= math.sqrt(2)
    assert torch.allclose(make_cosines(n), scaled, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda m, x: deepfool(m, x, subspace=draw_subspace(D, 3), p=1), "p must be 2"),
        (lambda m, x: deepfool(m, x, subspace=draw_subspace(D, 3), mask=torch.ones(D)), "leave one of them out"),
        (lambda m, x: deepfool(m, x, subspace=draw_subspace(D + 1, 3)), "37 features, but x has 36"),
        (lambda m, x: deepfool(m, x, subspace=torch.ones(D, 2)), "must be orthonormal"),
        (lambda m, x: smallest(m, x, subspace="low"), "there is no subspace"),
        (lambda m, x: smallest(m, x, subspace=3), "must be a Subspace"),
        (lambda m, x: deepfool(m.half(), x.half(), subspace=draw_subspace(D, 3)), "needs float32 or float64"),
        (lambda m, x: Subspace.by(lambda x: 2 * x, lambda c: c, D, D), "must undo"),
        (lambda m, x: Subspace.by(lambda x: x, lambda c: c, D, 2), "must lead from"),
        (lambda m, x: Subspace.only(torch.zeros(D)), "at least one feature"),
        (lambda m, x: make_bands(SHAPE, 0), "1 to 36 bands"),
        (lambda m, x: make_bands((6, 6), 2), "channels, height, width"),
        (lambda m, x: lower_resolution(SHAPE, 4), "must divide"),
        (lambda m, x: draw_subspace(3, 4), "1 to 3 dimensions"),
        (lambda m, x: find_components(x, 40), "components"),
    ],
)
def test_what_a_subspace_cannot_be(make, words):
    model, x = affine_case(C, D, N, seed=6)
    with pytest.raises(InputError, match=words):
        make(model, x)


def test_a_wide_layer_leaves_classes_out_in_a_small_subspace(monkeypatch):
    """What is worth a look at the last hidden layer is said by the input, not by how few coordinates it may move in."""
    monkeypatch.setattr(pruning, "WORTH", 0)  # rows of so small a model would all be taken
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(768, 600), nn.ReLU(), nn.Linear(600, 10))
    x = torch.rand(12, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    band = make_bands((3, 16, 16), 12)[0]
    assert 64 * band.dimensions < 10 * 600
    some, every = deepfool(net, x, subspace=band), deepfool(net, x, subspace=band, candidates="all")
    assert some.backwards.sum() < 0.7 * every.backwards.sum()
    assert torch.allclose(some.norm, every.norm, rtol=1e-2)


def test_gradients_are_whole_at_the_bounds():
    """Samples on the bounds of their box, as black pixels are: a step away from them is as good as any other."""
    model, x = affine_case(C, D, N, seed=7)
    x = x.round()
    weights = torch.ones(D, dtype=torch.float64)
    plain = deepfool(model, x, bounds=(0, 1), overshoot=1e-6)
    weighted = deepfool(model, x, bounds=(0, 1), overshoot=1e-6, weights=weights)
    assert torch.allclose(plain.norm, weighted.norm, rtol=1e-6)
    basis = draw_subspace(D, D)  # everything, in other coordinates
    turned = smallest(model, x, bounds=(0, 1), subspace=basis, budget=300)
    assert (turned.norm[turned.fooled] < 1.3 * plain.norm[turned.fooled]).all()
