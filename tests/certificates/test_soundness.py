"""A certificate is never wrong: bounds hold at sampled points, and no perturbation is found below a lower bound."""

import math

import pytest
import torch
from torch import nn

import deepfool
from deepfool import Proof, certify, smallest
from deepfool.certificates.ball import Ball
from deepfool.certificates.lowering import lower
from deepfool.certificates.units import bound_units
from deepfool.classifier import Classifier
from deepfool.errors import InputError, ModelError, SoundnessError
from deepfool.norms import norm
from tests.certificates.networks import small_networks

NORMS = (1, 2, math.inf)
PLENTY = 0.2
"""Seconds a sample. Nothing here depends on how far a search gets in them."""


def sample_ball(ball, radius, count):
    """Points in the ball of one sample: at its surface in random directions and along few features, and inside."""
    d = ball.x.shape[1]
    v = torch.randn(count, d, dtype=torch.float64)
    v[: count // 3] = v[: count // 3].sign()
    few = torch.rand(count, d) > 0.7
    v[count // 3 : count // 2] *= few[count // 3 : count // 2]
    v = v / norm(v, ball.p).clamp_min(1e-12)[:, None] * radius
    v[-count // 4 :] *= torch.rand(len(v[-count // 4 :]), 1)
    return ball.x + torch.minimum(torch.maximum(v, -ball.down), ball.up)


def unit_ball(x, p):
    flat = x.double().flatten(1)
    return Ball.around(flat, p, torch.zeros_like(flat), torch.ones_like(flat), None)


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("name", small_networks())
def test_every_bound_holds_at_sampled_points(name, p):
    """Of the input of each bend: without splits, and with units whose sign is known."""
    model, shape = small_networks()[name]
    x = torch.rand(2, *shape)
    f = Classifier(model)
    with f.frozen():
        graph = lower(f, x)
    ball, radius = unit_ball(x, p), torch.tensor([0.1, 0.4], dtype=torch.float64) * (1 if p == math.inf else 2)
    layers = bound_units(graph, ball, radius)
    for i in range(2):
        one = torch.tensor([i])
        points = sample_ball(ball.of(one), radius[i], 400)
        values = graph.run(points)
        first = graph.bends[0]
        sign = {r.id: torch.zeros(1, *r.shape) for r in graph.bends}
        sign[first.id].view(-1)[0] = 1
        known = bound_units(graph, ball.of(one), radius[one], known=layers.of(one), sign=sign, since=first.id)
        inside = values[first.inputs[0].id].flatten(1)[:, 0] >= 0
        for bend in graph.bends:
            z = values[bend.inputs[0].id]
            bounds = layers.bounds[bend.id]
            assert (z >= bounds.low[i] - 1e-9).all()
            assert (z <= bounds.high[i] + 1e-9).all()
            if not bool(known.empty):
                assert (z[inside] >= known.bounds[bend.id].low - 1e-9).all()
                assert (z[inside] <= known.bounds[bend.id].high + 1e-9).all()


def check_lower_bounds(model, x, p, images, count, **options):
    """Upper bounds inflated three times: only the proof keeps lower bounds below what the attack finds."""
    x = x[:images]
    found = smallest(model, x, p=p, bounds=(0, 1), budget=300)
    given = torch.where(found.fooled, 3 * found.norm.double(), math.inf)
    answer = certify(model, x, p=p, bounds=(0, 1), upper=given, **options)
    best = torch.minimum(torch.where(found.fooled, found.norm.double(), math.inf), answer.upper)
    assert (answer.lower <= best * (1 + 1e-6)).all()
    assert ((answer.lower > 0) & best.isfinite()).any()
    for i in range(len(x)):
        if not answer.lower[i].isfinite():
            continue
        ball = unit_ball(x[i : i + 1], p)
        points = sample_ball(ball, answer.lower[i] * (1 - 1e-6), count).to(x.dtype).view(count, *x.shape[1:])
        assert (Classifier(model)(points).argmax(1) == answer.label[i]).all()
    return answer


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("name", small_networks())
def test_no_perturbation_lies_below_a_lower_bound(name, p):
    model, shape = small_networks()[name]
    check_lower_bounds(model.requires_grad_(False), torch.rand(2, *shape), p, 2, 300, seconds=PLENTY)


@pytest.mark.slow
@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("name", ["fc500-mnist", "mlp-mnist-small", "conv-mnist-certified", "conv-mnist-linf",
                                  "conv-mnist-l2", "lenet-mnist", "pooled", "normed"])  # fmt: skip
def test_no_perturbation_lies_below_a_lower_bound_on_eight_networks(name, p):
    """20 images, 10,000 points for each network and norm."""
    if "mnist" in name:
        model, x = (
            deepfool.models.load(name).requires_grad_(False),
            deepfool.datasets.load("mnist-sample").batch(range(20)),
        )
    else:
        model, shape = small_networks()[name]
        x = torch.rand(20, *shape)
    check_lower_bounds(model, x, p, 20, 500, seconds=1.0)


def test_something_is_proved_in_no_time():
    """The first ball is small where there is time for few passes, and of one pass at least."""
    for name in ("pooled", "sigmoid"):
        model, shape = small_networks()[name]
        answer = certify(model.requires_grad_(False), torch.rand(3, *shape), p=2, bounds=(0, 1), seconds=0)
        assert (answer.lower > 0).all()
        assert (answer.lower <= answer.upper).all()


def test_attacked_points_inside_certified_balls_keep_the_label():
    """Every attack, in every norm, on a network that trained weights were given to."""
    model = deepfool.models.load("mlp-mnist-small").requires_grad_(False)
    x = deepfool.datasets.load("mnist-sample").batch(range(3))
    for p in NORMS:
        answer = certify(model, x, p=p, bounds=(0, 1), seconds=PLENTY)
        for attack in (deepfool.deepfool, deepfool.fab, deepfool.fmn, deepfool.ddn):
            if attack is deepfool.ddn and p != 2:
                continue
            found = (
                attack(model, x, p=p, bounds=(0, 1)) if attack is not deepfool.ddn else attack(model, x, bounds=(0, 1))
            )
            size = norm(found.r.double().flatten(1), p)
            assert (size[found.fooled] >= answer.lower[found.fooled] * (1 - 1e-9)).all()


def test_a_contradiction_is_called_a_bug():
    model = nn.Linear(4, 3).requires_grad_(False)
    x = torch.rand(2, 4)
    true = certify(model, x, p=2, bounds=None)
    with pytest.raises(SoundnessError, match="please report it"):
        certify(model, x, p=2, bounds=None, upper=true.lower / 2)


def test_the_check_looks_at_what_branch_and_bound_proved(monkeypatch):
    """A bound that is too large by a factor is noticed, if the boundary is known to be nearer."""
    from deepfool.certificates import branching

    honest = branching.improve

    def boastful(*args):
        best = honest(*args)
        best.distance = best.distance * 3
        return best

    monkeypatch.setattr(branching, "improve", boastful)
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).requires_grad_(False)
    x = torch.rand(4, 4)
    with pytest.raises(SoundnessError):
        certify(model, x, p=2, bounds=None, seconds=PLENTY)


def test_what_a_failure_leaves_is_not_safe():
    """Scores that are not finite, and a tie at the input itself: nothing is proved."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double().requires_grad_(False)
    x = torch.rand(1, 3).double()
    with torch.no_grad():
        model[2].weight[1] = model[2].weight[0]
        model[2].bias[1] = model[2].bias[0]
    answer = certify(model, x, p=2, bounds=None, seconds=PLENTY)
    assert answer.status.tolist() == [Proof.NONE]
    assert answer.lower.tolist() == [0]
    assert answer.reason[0]


def test_nothing_reachable_is_infinite_and_exact():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).requires_grad_(False)
    with torch.no_grad():
        model[2].bias[0] = 100.0
    answer = certify(model, torch.rand(2, 3), p=2, bounds=(0, 1), seconds=PLENTY)
    assert answer.exact.all()
    assert answer.lower.isinf().all()
    assert "no perturbation inside the bounds" in answer.reason[0]


def test_bad_calls():
    model, x = nn.Linear(3, 2), torch.rand(2, 3)
    with pytest.raises(InputError, match="p = 1, 2 and inf"):
        certify(model, x, p=3, bounds=None)
    with pytest.raises(InputError, match="seconds"):
        certify(model, x, p=2, bounds=None, seconds=-1)
    with pytest.raises(InputError, match="upper"):
        certify(model, x, p=2, bounds=None, upper=[1.0])
    with pytest.raises(ModelError, match="float32 and float64"):
        certify(model.half(), x.half(), p=2, bounds=None)
    assert len(certify(nn.Linear(3, 2), x[:0], p=2, bounds=None)) == 0


def test_a_perturbation_from_outside_the_bounds_is_no_upper_bound():
    """An attack without a box, or on other features, does not answer this question."""
    torch.manual_seed(4)
    model = nn.Linear(4, 3).requires_grad_(False)
    x = torch.rand(8, 4)
    free = smallest(model, x, p=2)
    boxed = certify(model, x, p=2, bounds=(0, 1), upper=free)
    alone = certify(model, x, p=2, bounds=(0, 1))
    assert torch.allclose(boxed.lower, alone.lower, rtol=1e-3)
    inside = boxed.upper.isfinite()
    assert ((boxed.x >= 0) & (boxed.x <= 1)).all()
    assert (model(boxed.x).argmax(1) != boxed.label)[inside].all()


def test_progress_is_told():
    told = []
    certify(nn.Linear(3, 2), torch.rand(3, 3), p=2, bounds=None, on_progress=lambda *at: told.append(at))
    assert told == [(1, 3), (2, 3), (3, 3)]
