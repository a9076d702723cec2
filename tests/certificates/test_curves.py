"""Lines around tanh hold everywhere and are close, and what is proved with them is never too much."""

import math

import pytest
import torch
from torch import nn

from deepfool import certify
from deepfool.certificates.curves import lines_around, undecided
from deepfool.certificates.graph import Tanh
from deepfool.certificates.relaxation import Bounds


def intervals():
    """All pairs of a grid that reaches where tanh is flat, and very narrow and very wide ones."""
    grid = torch.linspace(-6, 6, 49, dtype=torch.float64)
    low, high = (v.flatten() for v in torch.meshgrid(grid, grid, indexing="ij"))
    keep = low <= high
    low, high = low[keep], high[keep]
    narrow = grid.repeat(3)
    width = torch.tensor([1e-12, 1e-8, 1e-6], dtype=torch.float64).repeat_interleave(len(grid))
    wide = torch.tensor([-300.0, -40.0, 30.0, -1e4, -1e4], dtype=torch.float64)
    ends = torch.tensor([300.0, -30.0, 700.0, 1e-3, 1e4], dtype=torch.float64)
    return torch.cat([low, narrow, wide]), torch.cat([high, narrow + width, ends])


def test_lines_around_tanh_hold_on_every_interval():
    low, high = intervals()
    lines = lines_around(Tanh(0, (len(low),)), Bounds(low[None], high[None]), 1.0, low[None])
    for share in torch.linspace(0, 1, 201, dtype=torch.float64):
        z = low + share * (high - low)
        y = z.tanh()
        assert (lines.chord[0] * z + lines.height[0] >= y).all()
        assert (lines.start[0] * z + lines.floor[0] <= y).all()


def test_lines_around_tanh_are_close():
    """On a narrow interval they are apart by its width squared, and no more than tanh moves on any."""
    low, high = intervals()
    lines = lines_around(Tanh(0, (len(low),)), Bounds(low[None], high[None]), 1.0, low[None])
    width = high - low
    for z in (low, (low + high) / 2, high):
        apart = (lines.chord - lines.start)[0] * z + (lines.height - lines.floor)[0]
        assert (apart[(width > 1e-3) & (width < 0.3)] <= width[(width > 1e-3) & (width < 0.3)].square()).all()
        assert (apart <= 2.01).all()
    assert not undecided(Tanh(0, (1,)), torch.tensor([30.0]), torch.tensor([40.0])).any()


@pytest.mark.parametrize("p", [1, 2, math.inf])
@pytest.mark.parametrize("layer", [nn.Tanh(), nn.Sigmoid()])
def test_one_unit_in_closed_form(layer, p):
    """The score is squash(w x + b) - c, with one rival: the distance is that of the plane w x + b = squash^-1(c)."""
    first, last = nn.Linear(3, 1).double(), nn.Linear(1, 2).double()
    with torch.no_grad():
        first.weight[:], first.bias[:] = torch.tensor([[1.0, -2.0, 0.5]]), 0.4
        last.weight[:], last.bias[:] = torch.tensor([[1.0], [0.0]]), torch.tensor([0.0, 0.6])
    x = torch.tensor([[1.0, 0.0, 0.2], [0.9, -0.4, 0.0], [-1.0, 0.3, 0.1]], dtype=torch.float64)
    answer = certify(nn.Sequential(first, layer, last).requires_grad_(False), x, p=p, bounds=None, seconds=1)
    edge = math.atanh(0.6) if isinstance(layer, nn.Tanh) else math.log(0.6 / 0.4)
    dual = {1: math.inf, 2: 2, math.inf: 1}[p]
    true = (first(x)[:, 0].detach() - edge).abs() / torch.linalg.vector_norm(first.weight[0].detach(), dual)
    assert (answer.lower <= true * (1 + 1e-9)).all()
    assert (answer.lower >= 0.9 * true).all()
