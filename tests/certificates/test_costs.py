"""What certificates cost, counted in rows that are traced back, and what is said about it beforehand."""

import math

import pytest
import torch
from torch import nn

from deepfool import certifiable, certify
from deepfool.certificates import certifying, costs, margins, units
from deepfool.errors import InputError, ModelError


class Counter:
    """Rows of all backward passes."""

    def __init__(self, monkeypatch):
        self.rows = 0
        honest = units.trace_back

        def counted(graph, node, rows, *rest, **named):
            self.rows += len(rows.values)
            return honest(graph, node, rows, *rest, **named)

        for module in (units, margins):
            monkeypatch.setattr(module, "trace_back", counted)
        # Without time the first sample would begin with a smaller ball than the others.
        monkeypatch.setattr(certifying, "begin_with", lambda passes: 0.55)

    def of(self, times, samples, p):
        """A network with so many times eight rivals, all of them alike, on samples that repeat four of one class."""
        torch.manual_seed(0)
        body = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU())
        head = nn.Linear(12, 9)
        x = torch.rand(200, 6)
        labels = head(body(x)).argmax(1)
        label = int(labels.mode().values)
        rivals = [k for k in range(9) if k != label] * times
        last = nn.Linear(12, 1 + len(rivals))
        last.load_state_dict({k: v[[label, *rivals]] for k, v in head.state_dict().items()})
        x = x[labels == label][torch.arange(samples) % 4]
        self.rows = 0
        # No time for branch and bound: what is left is one whole pass.
        model = nn.Sequential(body, last).requires_grad_(False)
        certify(model, x, p=p, bounds=(0, 1), upper=[1.0] * samples, seconds=1e-9)
        return self.rows


@pytest.mark.parametrize("p", [2, math.inf])
def test_cost_grows_gently(monkeypatch, p):
    """Twice the classes or samples cost no more than twice."""
    counter = Counter(monkeypatch)
    few, more, most = (counter.of(1, n, p) for n in (4, 8, 16))
    assert 0 < more <= 2 * few
    assert most <= 2 * more
    twice = counter.of(2, 8, p)
    assert more < twice <= 2 * more
    assert counter.of(4, 8, p) <= 2 * twice


def test_what_it_takes_is_said_beforehand():
    small = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
    large = nn.Sequential(nn.Linear(6, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 3))
    x = torch.rand(1, 6)
    assert certifiable(small, x, p=2).units == 12
    assert certifiable(large, x, p=2).seconds > certifiable(small, x, p=2).seconds > 0


def test_what_cannot_be_certified_is_an_error_that_says_why():
    x = torch.rand(1, 6)
    with pytest.raises(ModelError, match="cannot be bounded"):
        certifiable(nn.Sequential(nn.Linear(6, 4), nn.Softsign(), nn.Linear(4, 3)), x, p=2)
    with pytest.raises(InputError, match="p = 1, 2 and inf"):
        certifiable(nn.Linear(6, 3), x, p=3)


def test_what_takes_too_long_is_refused(monkeypatch):
    """As long as a pass may take a minute, only large networks are: here it may take a microsecond."""
    monkeypatch.setattr(costs, "LEAST", 1e-6)
    model = nn.Sequential(nn.Linear(6, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 3))
    with pytest.raises(ModelError, match="one pass over its 800 units would take about"):
        certifiable(model, torch.rand(1, 6), p=2, seconds=0)
    assert certifiable(model, torch.rand(1, 6), p=2, seconds=10).units == 800
