"""A guard without a clock: what DeepFool asks of a fixed network, in forward passes and backward rows per sample."""

import pytest
import torch

from deepfool import deepfool
from deepfool.attacks.shared import pruning
from deepfool.datasets import load as load_data
from deepfool.models import load as load_model


@pytest.fixture(scope="module")
def digits():
    return load_model("fc500-mnist"), load_data("mnist-sample").batch(torch.arange(100))


@pytest.fixture
def worth_it(monkeypatch):
    """Rows of a small model would all be taken, as those of FC500 are at x_0."""
    monkeypatch.setattr(pruning, "WORTH", 0)


def count(model, x, **knobs):
    """(forward passes, backward rows) per sample as the model sees them; the attack's own count must agree."""
    seen = []
    hook = model.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    result = deepfool(model, x, **knobs)
    hook.remove()
    assert sum(seen) == result.forwards.sum()
    return result, sum(seen) / len(x), result.backwards.double().mean().item()


def test_all_classes_cost_a_row_each_and_no_forward_pass_is_made_twice(digits):
    result, _, _ = count(*digits, candidates="all")
    assert torch.equal(result.backwards, 9 * result.iterations)
    assert torch.equal(result.forwards, 2 * result.iterations)


@pytest.mark.parametrize(
    ("knobs", "most_forwards", "most_rows"),
    [({}, 3.1, 5.6), ({"p": torch.inf}, 3.1, 5.6), ({"bounds": (0, 1)}, 5.1, 8.9)],
)
def test_rows_are_taken_only_for_classes_that_can_be_nearest(worth_it, digits, knobs, most_forwards, most_rows):
    every, _, _ = count(*digits, candidates="all", **knobs)
    auto, forwards, rows = count(*digits, **knobs)
    assert forwards <= most_forwards
    assert rows <= most_rows
    torch.testing.assert_close(auto.r, every.r, rtol=1e-3, atol=1e-5)
    assert torch.equal(auto.adv_label, every.adv_label)


def test_a_small_batch_of_a_small_network_takes_all_rows(digits):
    """There the question which are needed takes longer than the rows. The answers are the same."""
    model, x = digits
    few, every = (deepfool(model, x[:20], bounds=(0, 1), candidates=c) for c in ("auto", "all"))
    many = deepfool(model, x, bounds=(0, 1))
    assert torch.equal(few.backwards, every.backwards)
    assert (many.backwards[:20] < few.backwards).all()
    torch.testing.assert_close(many.r[:20], few.r, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("p", [2, torch.inf])
def test_a_dense_network_takes_all_rows_at_the_first_point_and_few_at_the_others(digits, p):
    knobs = {"p": p, "bounds": (0, 1)}
    every, _, _ = count(*digits, candidates="all", **knobs)
    auto, forwards, _ = count(*digits, **knobs)
    later = every.iterations - 1
    assert (later > 0).all()
    assert (auto.backwards > 9).all()
    assert (auto.backwards < every.backwards).all()
    assert auto.backwards.sum() <= 9 * len(later) + 2 * later.sum()
    # The question takes forward passes: 1.05 times those of "all" in l2, 1.13 in linf. Asked at x_0 too, 1.20 and 1.37.
    assert forwards <= 1.17 * every.forwards.double().mean()
    torch.testing.assert_close(auto.r, every.r, rtol=1e-3, atol=1e-5)


def test_what_a_sample_pays_where_rows_are_left_out_does_not_depend_on_its_batch(worth_it, digits):
    model, x = digits
    together = deepfool(model, x)
    alone = [deepfool(model, x[i : i + 1]) for i in range(12)]
    # A batch may take a few more rows for a sample, to keep those of its group together, but never other classes' step.
    for i, one in enumerate(alone):
        assert one.backwards[0] <= together.backwards[i]
        torch.testing.assert_close(one.r[0], together.r[i], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("knobs", [{}, {"bounds": (0, 1)}])
def test_rows_that_cost_less_than_the_question_are_all_taken(digits, knobs):
    """Counted in multiplications: it depends neither on the machine nor on the batch."""
    _, x = digits
    model = load_model("mlp-mnist-small")
    auto, every = deepfool(model, x, **knobs), deepfool(model, x, candidates="all", **knobs)
    assert torch.equal(auto.backwards, every.backwards)
    assert torch.equal(auto.forwards, every.forwards)
    assert torch.equal(auto.r, every.r)
    assert torch.equal(deepfool(model, x[:1], **knobs).backwards, every.backwards[:1])


def test_a_class_that_comes_late_by_its_score_is_found_by_its_slope(worth_it):
    """Class 4 has the lowest score but one, and the nearest boundary: inside the margin, so it has to be looked at."""
    w = torch.zeros(6, 80)
    for k, slope in enumerate([0.0, 1.0, 1.0, 1.0, 1.5, 1.0]):
        w[k, 10 * k] = slope
    model = torch.nn.Linear(80, 6)
    model.weight.data, model.bias.data = w, torch.tensor([5.0, 0.5, 0.4, 0.3, 0.2, 0.1])
    x = torch.zeros(1, 80)
    assert deepfool(model, x).adv_label == deepfool(model, x, candidates="all").adv_label == 4
    assert deepfool(model, x, candidates=pruning.FIRST).adv_label == 1


@pytest.mark.parametrize("p", [2, torch.inf])
def test_of_many_classes_few_are_looked_at(worth_it, p):
    """The slopes of 300 classes are estimated at the last hidden layer; the first step is still that of all of them."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(400, 64), torch.nn.Tanh(), torch.nn.Linear(64, 300))
    x = torch.randn(40, 400) / 2
    every, auto = (deepfool(model, x, p=p, candidates=c, max_iter=1, overshoot=0.0) for c in ("all", "auto"))
    same = (every.r - auto.r).norm(dim=1) <= 1e-4 * every.r.norm(dim=1)
    assert same.float().mean() >= 0.97
    assert every.backwards.max() == 299
    assert auto.backwards.max() <= pruning.MOST + pruning.AT_ONCE
    assert auto.backwards.double().mean() <= 16
    alone = deepfool(model, x[3:4], p=p, max_iter=1, overshoot=0.0)
    torch.testing.assert_close(alone.r[0], auto.r[3])


def test_which_classes_a_sample_looks_at_does_not_depend_on_its_neighbours(worth_it):
    """The slopes behind the hidden layer are ten times what it says for class 9 alone, so that it is not looked at:
    alone or beside another sample that lacks more classes."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 64, bias=False), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    model[0].weight.data = torch.eye(64)
    model[0].weight.data[9] *= 10
    w = torch.zeros(10, 64)
    for k in range(1, 10):
        w[k, k] = 1.0
    model[2].weight.data = w
    model[2].bias.data = torch.tensor([40.0, 29.0, 28.95, 28.9, 28.8, 28.0, 27.9, 27.8, 27.7, -65.0])
    x = torch.full((2, 64), 10.0)  # all units are active
    x[1, 1:10] -= torch.tensor([0.0, 0.0, 0.0, 0.1, -0.7, -0.8, -0.9, -1.0, -0.37])  # many as near as the first
    both = deepfool(model, x)
    for i in range(2):
        alone = deepfool(model, x[i : i + 1])
        torch.testing.assert_close(alone.r[0], both.r[i])
    assert both.backwards[0] > deepfool(model, x[:1]).backwards[0], "the neighbour should have widened the round"
