"""Every goal beside its closed form on affine models, for every attack; and what a goal may not be combined with."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize, nnls
from torch import nn

from deepfool import ddn, deepfool, fab, fgsm, fmn, lbfgs, smallest, superdeepfool, tighten
from deepfool.attacks.shared.aims import Confidence, Top, read_goal
from deepfool.attacks.shared.alternatives import open_aim
from deepfool.attacks.shared.goals import Leave
from deepfool.errors import InputError
from tests.oracles import affine_case, free_distances, score_differences, solve_boxed

D, C, N = 12, 5, 6
NORMS = (1, 2, math.inf)


def half_spaces(model, x, goal, y=None):
    """Rows w and gaps: the decision changes where w . r >= gap for any one of them. In NumPy."""
    weight, bias = model.weight.detach().numpy(), model.bias.detach().numpy()
    z = weight @ x + bias
    kind, _, number = goal.partition(":")
    if kind in ("other", "margin"):
        _, w, gap = score_differences(model, x)
        return w, gap + float(number or 0)
    if kind in ("labels", "label"):
        which = [int(number)] if number else list(range(len(z)))
        away = np.where(z > 0, -1.0, 1.0)[which, None]
        return away * weight[which], np.abs(z[which])
    if kind == "passes":
        away = np.where(z > float(number), -1.0, 1.0)[:, None]
        return away * weight, np.abs(z - float(number))
    assert kind == "within"
    y = z if y is None else y
    return np.concatenate([weight, -weight]), np.concatenate([y + float(number) - z, z - y + float(number)])


def distances(model, x, goal, p, **more):
    return np.array([free_distances(*half_spaces(model, row, goal, **more), p).min() for row in x.numpy()])


LINEAR = ("other", "margin:1.5", "labels", "label:2", "within:0.5", "passes:1")


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("goal", LINEAR)
def test_goals_that_are_linear_in_the_scores_have_a_closed_form(goal, p):
    model, x = affine_case(C, D, N, seed=1)
    exact = distances(model, x, goal, p)
    for attack in (deepfool, smallest, fab, fmn):
        options = {"tighten": True} if attack is not smallest else {}
        found = attack(model, x, p=p, goal=goal, **options)
        assert found.fooled.all()
        assert (found.norm.numpy() >= exact * (1 - 1e-9)).all()
        if attack is not fmn:  # which follows the rival that is ahead, not the nearest
            assert found.norm.numpy() == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize("goal", LINEAR)
def test_inside_a_box(goal):
    model, x = affine_case(C, D, N, seed=2)
    for p in NORMS:
        found = deepfool(model, x, p=p, goal=goal, bounds=(-0.2, 1.2), tighten=True)
        for row, size in zip(x.numpy(), found.norm.tolist(), strict=True):
            w, gap = half_spaces(model, row, goal)
            exact = min(solve_boxed(*each, -0.2 - row, 1.2 - row, p) for each in zip(w, gap, strict=True))
            assert size == pytest.approx(exact, rel=1e-3)
        assert ((found.x >= -0.2) & (found.x <= 1.2)).all()


@pytest.mark.parametrize("attack", [ddn, superdeepfool, lbfgs], ids=lambda each: each.__name__)
def test_attacks_of_the_l2_norm(attack):
    for goal in LINEAR:
        # They follow the output that is ahead, not the nearest: of values there is one.
        model, x = affine_case(1 if ":" in goal and goal[0] in "wp" else 3, D, 3, seed=3)
        found = attack(model, x, goal=goal, tighten=True)
        assert found.fooled.all(), goal
        exact = distances(model, x, goal, 2)
        assert (found.norm.numpy() >= exact * (1 - 1e-9)).all(), goal
        assert np.median(found.norm.numpy() / exact) < 1.1, goal


def test_fgsm():
    model, x = affine_case(1, D, N, seed=4)
    exact = distances(model, x, "within:0.5", math.inf)
    found = fgsm(model, x, goal="within:0.5", eps=1.001 * float(exact.max()))
    assert found.fooled.all()
    assert not fgsm(model, x, goal="within:0.5", eps=0.999 * float(exact.min())).fooled.any()


def corner(w, gap):
    """The nearest point with w r >= gap for all rows at once, by the dual problem."""
    lower = np.linalg.cholesky(w @ w.T)
    return float(np.linalg.norm(w.T @ nnls(lower.T, np.linalg.solve(lower, gap))[0]))


STRONG = ((deepfool, {"tighten": True}), (smallest, {"budget": 1000}))


@pytest.mark.parametrize("k", [2, 3])
def test_out_of_the_top_k(k):
    """k rivals at once: the nearest of all corners of k boundaries."""
    model, x = affine_case(C + 1, D, N, seed=5)
    exact = []
    for row in x.numpy():
        _, w, gap = score_differences(model, row)
        exact.append(min(corner(w[list(s)], gap[list(s)]) for s in itertools.combinations(range(len(gap)), k)))
    walked, found = (a(model, x, goal=f"top:{k}", **o) for a, o in STRONG)
    for each in (walked, found):
        assert each.fooled.all()
        assert (each.norm.numpy() >= np.array(exact) * (1 - 1e-9)).all()
    assert (found.norm.numpy() <= np.array(exact) * 1.05).all()
    assert (walked.norm.numpy() <= np.array(exact) * 1.5).all()
    z = model(found.x)
    ahead = (z > z.gather(1, found.label[:, None])).sum(1)
    assert (ahead >= k).all()
    rank = (z > z.gather(1, found.adv_label[:, None])).sum(1)
    assert (rank == k - 1).all()  # adv_label took the k-th place


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("first_two", [(1e-5, -0.0625), (1e-5, 0.0), (5.0, 3.0)])
def test_the_class_in_the_last_place_is_named_whatever_the_score_above_it(first_two, dtype):
    """A score near zero has small units of rounding: smaller than those of the score that is read in its place."""
    z = torch.tensor([[*first_two, -1.0, -2.0]], dtype=dtype)
    opened = open_aim(Top(2), z, torch.tensor([3]))
    assert opened.read(torch.tensor([0]), z).argmax(1) == 1


def test_top_1_is_another_label_and_the_true_label_is_the_one_to_leave():
    model, x = affine_case(C, D, N, seed=6)
    assert torch.equal(deepfool(model, x, goal="top:1").r, deepfool(model, x).r)
    second = model(x).topk(2).indices[:, 1]
    found = smallest(model, x, goal="top:2", labels=second)
    assert found.fooled.all()
    assert torch.equal(found.label, second)
    last = model(x).argmin(1)
    assert (deepfool(model, x, goal="top:2", labels=last).status == 3).all()


def test_confidence_with_two_classes_is_a_shifted_boundary():
    model, x = affine_case(2, D, N, seed=7)
    needed = math.log(0.9 / 0.1)
    for p in NORMS:
        exact = distances(model, x, f"margin:{needed!r}", p)
        found = deepfool(model, x, p=p, goal="confidence:0.9", tighten=True)
        assert found.norm.numpy() == pytest.approx(exact, rel=1e-4)


def test_confidence_with_many_classes():
    """The points where class k has 90 % are convex, so a solver finds the nearest one."""
    model, x = affine_case(C, D, N, seed=8)
    weight, bias = (each.detach().numpy() for each in (model.weight, model.bias))
    aim = Confidence(0.9)
    found = smallest(model, x, goal=str(aim), budget=300)
    share = model(found.x).softmax(1).gather(1, found.adv_label[:, None])
    assert found.fooled.all()
    assert (share >= 0.9).all()
    assert (share < 0.901).all()
    for row, size, label in zip(x.numpy(), found.norm.tolist(), found.label.tolist(), strict=True):
        best = math.inf
        for k in set(range(C)) - {label}:

            def excess(r, row=row, k=k):
                z = weight @ (row + r) + bias
                return z[k] - np.logaddexp.reduce(np.delete(z, k)) - math.log(9)

            answer = minimize(
                lambda r: r @ r, weight[k] - weight[label], jac=lambda r: 2 * r, method="SLSQP",
                constraints={"type": "ineq", "fun": excess}, options={"maxiter": 500, "ftol": 1e-12},
            )  # fmt: skip
            best = min(best, float(np.linalg.norm(answer.x)))
        assert best * (1 - 1e-4) <= size <= best * 1.02


def test_targets_with_a_margin_and_a_confidence():
    model, x = affine_case(C, D, N, seed=9)
    target = model(x).argmin(1)
    plain = smallest(model, x, target=target)
    ahead = smallest(model, x, target=target, goal="margin:1")
    z = model(ahead.x)
    rest = z.scatter(1, target[:, None], -math.inf).amax(1)
    assert ahead.fooled.all()
    assert ((z.gather(1, target[:, None])[:, 0] - rest) >= 1 - 1e-9).all()
    assert (ahead.norm > plain.norm).all()
    sure = smallest(model, x, target=target, goal="confidence:0.8")
    assert torch.equal(sure.adv_label, target)
    assert (model(sure.x).softmax(1).gather(1, target[:, None]) >= 0.8 - 1e-9).all()
    other = x[model(x).argmax(1) != 3]
    assert torch.equal(smallest(model, other, goal="target:3").norm, smallest(model, other, target=3).norm)


def test_labels_are_on_above_the_threshold():
    """Probabilities of several labels, with a threshold of their own: the same as scores with its logit."""
    model, x = affine_case(C, D, N, seed=10)
    cut = math.log(0.3 / 0.7)
    shifted = nn.Linear(D, C).double()
    shifted.weight.data, shifted.bias.data = model.weight.data, model.bias.data - cut
    exact = distances(shifted, x, "labels", 2)
    found = deepfool(model, x, goal="labels", threshold=cut, tighten=True)
    assert found.norm.numpy() == pytest.approx(exact, rel=1e-4)
    squashed = nn.Sequential(model, nn.Sigmoid())
    same = deepfool(squashed, x, goal="labels", threshold=0.3, outputs="probabilities", tighten=True)
    assert same.norm.numpy() == pytest.approx(exact, rel=1e-4)
    before, after = shifted(x) > 0, shifted(found.x) > 0
    assert (before != after).gather(1, found.adv_label[:, None]).all()  # the label that is named has flipped
    assert (found.label == C).all()  # "unchanged"
    truth = before.clone()
    truth[0, 1] = ~truth[0, 1]
    assert deepfool(model, x, goal="labels", threshold=cut, labels=truth).status.tolist() == [3, *[0] * (N - 1)]


def test_the_true_values_of_a_regression_model():
    model, x = affine_case(1, D, N, seed=11)
    truth = model(x)[:, 0].detach() + torch.linspace(-0.3, 0.9, N).double()
    found = deepfool(model, x, goal="within:0.5", labels=truth, tighten=True)
    inside = (model(x)[:, 0] - truth).abs() < 0.5
    assert torch.equal(found.fooled, inside)
    for row, y, size, wanted in zip(x.numpy(), truth.tolist(), found.norm.tolist(), inside.tolist(), strict=True):
        if wanted:
            assert size == pytest.approx(free_distances(*half_spaces(model, row, "within:0.5", np.array([y])), 2).min())
    left = (model(found.x)[:, 0] - truth)[found.fooled]
    assert (left.abs() >= 0.5).all()
    assert torch.equal(found.adv_label[found.fooled], torch.where(left > 0, 1, 2))


def test_a_curved_model_ends_beyond_the_boundary_of_its_goal():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(D, 20), nn.Tanh(), nn.Linear(20, 3)).double()
    x = torch.rand(20, D, generator=torch.Generator().manual_seed(1)).double()
    for goal in ("top:2", "margin:0.3", "confidence:0.5", "labels", "label:1", "within:0.1", "passes:0.1"):
        for attack in (deepfool, smallest):
            found = attack(net, x, goal=goal)
            assert found.fooled.float().mean() > 0.9, (goal, attack)
            again = tighten(net, x, found, goal=goal)
            assert (again.norm[found.fooled] <= found.norm[found.fooled]).all()


def test_a_mask_holds_for_every_goal():
    model, x = affine_case(C, D, N, seed=12)
    mask = torch.arange(D) < D // 2
    for goal in (*LINEAR, "top:2", "confidence:0.7"):
        found = smallest(model, x, goal=goal, mask=mask)
        assert found.fooled.all(), goal
        assert (found.r[:, ~mask] == 0).all(), goal


def test_goals_are_read_alike_in_any_batch():
    model, x = affine_case(C, D, N, seed=13)
    for goal in ("top:2", "margin:1", "confidence:0.8", "labels", "within:0.3"):
        whole = deepfool(model, x, goal=goal)
        alone = torch.cat([deepfool(model, row[None], goal=goal).norm for row in x])
        assert alone.numpy() == pytest.approx(whole.norm.numpy(), rel=1e-9)


def test_the_gradient_of_a_confidence_survives_saturation():
    z = torch.tensor([[200.0, 0.0, -50.0]], dtype=torch.float64, requires_grad=True)
    opened = open_aim(Confidence(0.9), z.detach())
    read = opened.read(torch.tensor([0]), z)
    margin = Leave(opened.label).margin(torch.tensor([0]), read)
    (slope,) = torch.autograd.grad(margin.sum(), z)
    assert margin.item() == pytest.approx(-200 - math.log(9))
    assert slope.tolist()[0] == pytest.approx([-1, 1, 0], abs=1e-9)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"goal": "top"}, "top needs a whole number"),
        ({"goal": "top:0"}, "top needs a whole number"),
        ({"goal": "top:5"}, "needs more than 5 classes"),
        ({"goal": "confidence:1"}, "between 0 and 1"),
        ({"goal": "margin:-1"}, "a number > 0"),
        ({"goal": "within:nan"}, "a number > 0"),
        ({"goal": "passes:inf"}, "passes needs a number"),
        ({"goal": "label:9"}, "a label in"),
        ({"goal": "nearest"}, "there is no goal 'nearest'"),
        ({"goal": 5}, "goal must be a text"),
        ({"goal": "top:2", "target": 1}, "a target does not go with the goal top:2"),
        ({"goal": "target:1", "target": 1}, "leave one of them out"),
        ({"goal": "target:7"}, "target must lie in"),
        ({"goal": "within:1", "threshold": 0.5}, "threshold does not go with"),
        ({"goal": "labels", "labels": [0] * N}, "zeros and ones"),
        ({"goal": "within:1", "labels": [0.0] * N}, "the true values"),
    ],
)
def test_what_a_goal_cannot_be(given, words):
    model, x = affine_case(C, D, N, seed=14)
    with pytest.raises(InputError, match=words):
        deepfool(model, x, **given)


def test_texts_and_aims_are_the_same():
    for text in ("other", "top:5", "margin:2", "confidence:0.9", "labels", "label:4", "within:0.5", "passes:3"):
        aim, target = read_goal(text)
        assert (str(aim), target) == (text, None)
        assert read_goal(aim)[0] is aim
        assert aim.words
