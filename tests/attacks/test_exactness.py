"""Affine classifiers: 1000 random cases over classes, norms and boxes, against closed forms and other solvers."""

import math

import numpy as np
import pytest
import torch

from deepfool import Status, affine, deepfool
from tests.oracles import affine_case, boxed_distance, free_distances, score_differences

CLASSES = [1, 2, 10, 100, 1000]
ALL_P = [1.0, 1.5, 2.0, 4.0, math.inf]
SAMPLES = 20  # 5 class counts x 5 norms x 2 x 20 = 1000 cases


@pytest.mark.parametrize("p", ALL_P)
@pytest.mark.parametrize("c", CLASSES)
def test_free_steps_are_exact(c, p):
    model, x = affine_case(c, 24, SAMPLES, seed=c)
    result = deepfool(model, x, p=p)
    for i in range(SAMPLES):
        label, w, gap = score_differences(model, x[i].numpy())
        exact = free_distances(w, gap, p).min()
        assert result.norm[i].item() / exact == pytest.approx(1.02, abs=1e-6)
        assert result.label[i] == label
    assert (result.status == Status.FOOLED).all()
    assert (result.iterations == 1).all()
    assert (result.forwards == 2).all()  # prediction and linearisation share one; the test of what is returned
    assert (result.backwards == max(c - 1, 1)).all()


@pytest.mark.parametrize("p", ALL_P)
@pytest.mark.parametrize("c", CLASSES)
def test_boxed_steps_are_exact(c, p):
    model, x = affine_case(c, 24, SAMPLES, seed=c + 1)
    result = deepfool(model, x, p=p, bounds=(0, 1), overshoot=1e-7)
    closed = affine(model.weight if c > 1 else model.weight[0], model.bias, x, p=p, bounds=(0, 1))
    assert ((result.x >= 0) & (result.x <= 1)).all()
    for i in range(SAMPLES):
        exact = boxed_distance(model, x[i].numpy(), p, 0.0, 1.0)
        if math.isinf(exact):
            assert result.status[i] == Status.STUCK
            assert "no room" in result.reason[i]
            assert result.norm[i] == closed.norm[i] == math.inf
        else:
            assert result.status[i] == Status.FOOLED
            assert result.norm[i].item() == pytest.approx(exact, rel=1e-4)
            assert closed.norm[i].item() == pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize("p", ALL_P)
def test_the_closed_form_lies_on_the_boundary(p):
    model, x = affine_case(10, 24, SAMPLES, seed=5)
    answer = affine(model.weight, model.bias, x, p=p)
    z = model(x + answer.r).detach()
    own = z.gather(1, answer.label[:, None])
    other = z.gather(1, answer.nearest_label[:, None])
    torch.testing.assert_close(own, other)
    torch.testing.assert_close(z.amax(1, keepdim=True), own)
    expected = [free_distances(*score_differences(model, v.numpy())[1:], p).min() for v in x]
    np.testing.assert_allclose(answer.norm.detach().numpy(), expected, rtol=1e-9)


def test_overshoot_is_cut_at_the_box():
    model = torch.nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(1.0)
    result = deepfool(model, torch.tensor([[0.5]]), threshold=0.995, bounds=(0, 1), overshoot=0.5)
    assert result.fooled.all()
    assert result.x.item() == 1.0
    assert result.r.item() == 0.5


def test_the_next_nearest_class_is_tried_where_the_box_leaves_no_room():
    """Class 1 is nearest but needs x_0 above its bound; class 2 is farther and can be reached."""
    model = torch.nn.Linear(2, 3, bias=True)
    model.weight.data = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 1.0]])
    model.bias.data = torch.tensor([1.0, -9.5, 0.2])
    x = torch.tensor([[1.0, 0.1]])
    assert deepfool(model, x).adv_label.item() == 1
    boxed = deepfool(model, x, bounds=(0, 1))
    assert boxed.adv_label.item() == 2
    assert boxed.fooled.all()
