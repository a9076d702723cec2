"""Rows in float32 prove no more than rows in float64 do: what they may have lost is taken off."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from deepfool import certify
from deepfool.certificates import operators, precision, timing
from deepfool.certificates.backward import Choices
from deepfool.certificates.ball import Ball
from deepfool.certificates.lowering import lower
from deepfool.certificates.margins import Margins
from deepfool.certificates.precision import Noise, choose
from deepfool.certificates.units import bound_rows, bound_rows_at_once, bound_units
from deepfool.classifier import Classifier
from tests.certificates.networks import small_networks

NORMS = (1, 2, math.inf)


class Branches(nn.Module):
    """A map that three others read, leaky units whose slope float32 does not have, and tanh."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 4, 3)
        self.last = nn.Linear(16, 3)

    def forward(self, x):
        h = F.leaky_relu(self.a(x), 0.7)
        h = F.relu(self.b(h)) + h - F.max_pool2d(h, 3, 1, 1)
        return self.last(torch.tanh(F.avg_pool2d(self.c(h), 2)).flatten(1))


def networks():
    kept = {name: each for name, each in small_networks().items() if name in ("normed", "grouped", "pooled")}
    torch.manual_seed(2)
    return {**kept, "branches": (Branches(), (2, 6, 6))}


def trace(model, x):
    f = Classifier(model.requires_grad_(False))
    with f.frozen():
        return lower(f, x)


def around(x, p):
    flat = x.double().flatten(1)
    return Ball.around(flat, p, torch.zeros_like(flat), torch.ones_like(flat), None)


def twin(layers):
    """The very same lines, for rows in float64: what they prove is what the rows in float32 are to stay below."""
    fields = ("chord", "height", "start", "rise", "sink", "centre")
    lines = {k: replace(v, **{name: getattr(v, name).double() for name in fields}) for k, v in layers.lines.items()}
    return replace(layers, lines=lines, noise=None)


def bound_all(graph, bend, ball, radius, layers, bound):
    """Both bounds of all units of a bend, in all samples."""
    node = bend.inputs[0]
    who = torch.arange(len(ball.x)).repeat_interleave(node.size)
    return bound(graph, node, torch.arange(node.size).repeat(len(ball.x)), who, ball, radius, layers)


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("name", networks())
def test_every_bound_is_below_its_twin(name, p):
    """And close to it: a thousandth of how far apart the bounds of a layer are is lost at most."""
    model, shape = networks()[name]
    x = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    graph, ball = trace(model, x), around(x, p)
    assert choose(graph) == torch.float32
    single, double = replace(graph, rows=torch.float32), replace(graph, rows=torch.float64)
    radius = torch.tensor([0.02, 0.3], dtype=torch.float64)
    layers = bound_units(single, ball, radius)
    for bend in graph.bends:
        for bound in (bound_rows, bound_rows_at_once):
            before = {k: v for k, v in layers.lines.items() if k < bend.id}
            if bound is bound_rows_at_once:
                before = {k: v.parallel for k, v in before.items()}
            here = layers.at(before)
            low, high = bound_all(single, bend, ball, radius, here, bound)
            true_low, true_high = bound_all(double, bend, ball, radius, twin(here), bound)
            width = true_high - true_low
            assert (low <= true_low + 1e-13).all()
            assert (high >= true_high - 1e-13).all()
            assert (true_low - low).max() <= 1e-3 * width.max()
            assert (high - true_high).max() <= 1e-3 * width.max()


@pytest.mark.parametrize("name", networks())
def test_margins_are_below_their_twins(name):
    """With slopes and multipliers of any size, as branch and bound has them."""
    model, shape = networks()[name]
    x = torch.rand(1, *shape, generator=torch.Generator().manual_seed(1))
    graph, ball = trace(model, x), around(x, 2)
    single, double = replace(graph, rows=torch.float32), replace(graph, rows=torch.float64)
    layers = bound_units(single, ball, torch.tensor([0.4], dtype=torch.float64))
    rows = 12
    spread = layers.of(torch.zeros(rows, dtype=torch.long))
    generator = torch.Generator().manual_seed(0)
    label, rival = torch.zeros(rows, dtype=torch.long), torch.arange(rows) % 2 + 1
    alpha, beta, sign = {}, {}, {}
    for k, v in spread.lines.items():
        alpha[k] = v.least + (1 - v.least) * torch.rand(v.start.shape, generator=generator)
        sign[k] = torch.randint(-1, 2, v.start.shape, generator=generator).float() * v.unstable
        beta[k] = 3 * torch.rand(v.start.shape, generator=generator) * (sign[k] != 0)
    slack = torch.zeros(rows, dtype=torch.float64)
    wide = Choices(*({k: v.double() for k, v in each.items()} for each in (alpha, beta, sign)))
    a, m = Margins(single, ball, label, rival, slack, None).bound(spread, Choices(alpha, beta, sign))
    true_a, true_m = Margins(double, ball, label, rival, slack, None).bound(twin(spread), wide)
    d = 2 * torch.rand(200, x[0].numel(), generator=generator, dtype=torch.float64) - 1
    d = 0.4 * d / d.norm(dim=1, keepdim=True)
    assert (m[:, None] + a @ d.T <= true_m[:, None] + true_a @ d.T + 1e-12).all()


def cancelling(seed):
    """Weights a thousand times larger than what is left of them; all units are active, so that bounds are exact."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 2)
    )  # fmt: skip
    with torch.no_grad():
        first, second = model[0], model[2]
        first.weight[1::2] = first.weight[::2] + 1e-3 * torch.randn_like(first.weight[::2])
        first.bias[:] = 10.0
        second.weight[:, 1::2] = 1e-2 * torch.randn_like(second.weight[:, 1::2]) - 1e3 * second.weight[:, ::2]
        second.weight[:, ::2] *= 1e3
    return model


def test_rounding_that_matters(monkeypatch):
    """Without the margin some lower bounds would be above the true minimum, and with it none is."""
    x = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    graph, ball = trace(cancelling(0), x), around(x, math.inf)
    radius = torch.tensor([0.05], dtype=torch.float64)
    bend = graph.bends[1]
    single, double = replace(graph, rows=torch.float32), replace(graph, rows=torch.float64)
    layers, exact = (bound_units(each, ball, radius) for each in (single, double))
    assert not layers.lines[graph.bends[0].id].unstable.any()
    below = {k: v for k, v in layers.lines.items() if k < bend.id}
    low, high = bound_all(single, bend, ball, radius, layers.at(below), bound_rows)
    least, most = bound_all(double, bend, ball, radius, exact.at({k: exact.lines[k] for k in below}), bound_rows)
    # The network is affine here: the least value is at a corner of the ball.
    rows = graph.run(torch.eye(64, dtype=torch.float64) * 1e-3 + ball.x)[bend.inputs[0].id].flatten(1)
    value = graph.run(ball.x)[bend.inputs[0].id].flatten(1)
    slope = (rows - value) / 1e-3
    down, up = (ball.x - ball.interval(radius)[0])[0], (ball.interval(radius)[1] - ball.x)[0]
    corner = value[0] - (torch.where(slope > 0, down[:, None], up[:, None]) * slope.abs()).sum(0)
    assert torch.allclose(least, corner, rtol=1e-6, atol=1e-6)
    assert (low <= least).all()
    assert (high >= most).all()
    bare = layers.at(below)
    for name in ("lost", "lost_in_sum", "lost_at_last", "lost_by_picking"):
        monkeypatch.setattr(Noise, name, lambda *args: 0.0)
    low, high = bound_all(single, bend, ball, radius, bare, bound_rows)
    assert (low > least + 1e-9).any()
    assert (high < most - 1e-9).any()


@pytest.mark.parametrize("scale", [1e20, 1e30])
@pytest.mark.parametrize("active", [False, True])
def test_numbers_that_float32_has_no_room_for_prove_nothing(scale, active):
    """Rows that overflow, with what they lose (1e30) and before it does (1e20, and no line adds anything)."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)
    ).double()  # fmt: skip
    x = torch.rand(1, 1, 6, 6, dtype=torch.float64)
    with torch.no_grad():
        model[0].weight *= scale
        model[0].bias[:] = 10 * scale if active else 0.0
        model[2].weight *= scale
        model[2].bias -= model[:3](x).mean((0, 2, 3))
        model[5].weight /= scale**2
    graph = trace(model, x)
    graph.rows = torch.float32
    ball = around(x, 2)
    layers = bound_units(graph, ball, torch.tensor([0.1], dtype=torch.float64))
    assert layers.lines[graph.bends[1].id].unstable.any()
    for bend in graph.bends:
        bounds, value = layers.bounds[bend.id], layers.centre[bend.inputs[0].id]
        assert ((bounds.low <= value) & (value <= bounds.high)).all()
    zeros = torch.zeros(1, dtype=torch.long)
    margins = Margins(graph, ball, zeros, zeros + 1, torch.zeros(1, dtype=torch.float64), zeros)
    assert margins.distance(layers)[0].isfinite().all()


def test_float32_is_chosen_where_it_pays_and_can_be_trusted(monkeypatch):
    model, shape = small_networks()["pooled"]
    graph = trace(model, torch.rand(1, *shape))
    assert choose(graph) == torch.float32
    dense = trace(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.rand(1, 4))
    assert choose(dense) == torch.float64
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert choose(graph) == torch.float64
    with monkeypatch.context() as patch:
        patch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
        assert choose(graph) == torch.float64
    with monkeypatch.context() as patch:
        patch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", "BF16")
        assert choose(graph) == torch.float64


@pytest.mark.parametrize("channels", [2, 8])
def test_a_convolution_in_lower_precision_is_noticed(monkeypatch, channels):
    graph = trace(nn.Sequential(nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)),
                  torch.rand(1, channels, 6, 6))  # fmt: skip
    assert choose(graph) == torch.float32
    honest = operators.Convolution._transpose_free

    def rounded(self, values):
        given = values.bfloat16().float() if values.dtype == torch.float32 else values
        return honest(self, given)

    monkeypatch.setattr(operators.Convolution, "_transpose_free", rounded)
    assert choose(graph) == torch.float64


def test_what_certify_proves_is_about_the_same_in_both(monkeypatch):
    model, shape = small_networks()["pooled"]
    x = torch.rand(3, *shape, generator=torch.Generator().manual_seed(3))
    upper = [1.0] * 3
    single = certify(model.requires_grad_(False), x, p=2, bounds=(0, 1), upper=upper, seconds=0)
    monkeypatch.setattr(precision, "_settings_allow", lambda: False)
    double = certify(model, x, p=2, bounds=(0, 1), upper=upper, seconds=0)
    assert torch.allclose(single.lower, double.lower, rtol=1e-2)


def test_a_pass_is_given_up_when_its_time_is_over(monkeypatch):
    """The clock advances whenever it is read. Without time for a second pass the first is all that there is."""
    model, shape = small_networks()["pooled"]
    ticks = iter(range(10**9))
    monkeypatch.setattr(timing, "now", lambda: float(next(ticks)))
    x = torch.rand(1, *shape, generator=torch.Generator().manual_seed(3))
    answer = certify(model.requires_grad_(False), x, p=2, bounds=(0, 1), upper=[2.0], seconds=20)
    assert answer.lower.item() > 0
    assert answer.seconds.item() <= 30
