"""How often a GPU would have to wait for the host: counted on a CPU that is treated as if it were another device."""

import math

import pytest
import torch
from torch import nn

import deepfool as df
from deepfool import norms
from deepfool.attacks import deepfool as algorithm
from deepfool.attacks.shared import pruning
from tests.syncing import Syncs


@pytest.fixture
def elsewhere(monkeypatch):
    """As on a device whose numbers are not at hand, and on a network whose rows are worth leaving out."""
    monkeypatch.setattr(norms, "ON_THE_HOST", ())
    monkeypatch.setattr(pruning, "WORTH", 0)


def make_case(classes, samples, seed=0):
    """A network that takes several steps."""
    torch.manual_seed(seed)
    layers = [nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 32), nn.Tanh(), nn.Linear(32, classes)]
    with torch.no_grad():
        for layer in layers[::2]:
            layer.weight.mul_(6)
    return nn.Sequential(*layers).eval(), torch.rand(samples, 64)


def count_per_step(monkeypatch, classes, samples, **how):
    """The most in one iteration, and how many iterations there were."""
    model, x = make_case(classes, samples)
    step, counts = algorithm.Walk.step, []
    with Syncs() as syncs:

        def counted(self, rows, **kwargs):
            before = syncs.total
            rows = step(self, rows, **kwargs)
            counts.append(syncs.total - before)
            return rows

        monkeypatch.setattr(algorithm.Walk, "step", counted)
        df.deepfool(model, x, **how)
    monkeypatch.setattr(algorithm.Walk, "step", step)
    return max(counts), len(counts)


def test_what_is_counted():
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    mask = x > 2
    y = x.clone()
    for action, kind in (
        (lambda: x[0, 0].item(), "_local_scalar_dense"), (lambda: bool(mask.any()), "_local_scalar_dense"),
        (lambda: int(x.sum()), "_local_scalar_dense"), (lambda: float(x.sum()), "_local_scalar_dense"),
        (lambda: mask.nonzero(), "nonzero"), (lambda: x[mask], "boolean index"), (lambda: x.tolist(), "tolist"),
        (lambda: y.__setitem__(mask, x[1]), "boolean index"), (lambda: torch.unique(x), "_unique2"),
        (lambda: torch.equal(x, y), "equal"), (lambda: x.numpy(), "numpy"),
    ):  # fmt: skip
        with Syncs() as syncs:
            action()
        assert dict(syncs.found) == {kind: 1}
    with Syncs() as syncs:
        torch.where(mask, x, y).sum(1).argsort().topk(1)
        y[mask] = 0.0
        y[torch.tensor([0])] = x[torch.tensor([1])]
        len(x), x.shape
    assert syncs.total == 0


@pytest.mark.parametrize(
    ("how", "most"),
    [
        ({"candidates": "all"}, 2), ({"candidates": "all", "p": 1}, 2), ({"candidates": 3, "p": math.inf}, 2),
        ({"candidates": "all", "bounds": (0, 1)}, 12), ({"candidates": "all", "bounds": (0, 1), "p": math.inf}, 12),
        ({"candidates": "auto"}, 10), ({"candidates": "auto", "bounds": (0, 1)}, 28),
    ],
    ids=str,
)  # fmt: skip
def test_deepfool_waits_no_more_for_more_classes_or_samples(elsewhere, monkeypatch, how, most):
    """`auto` takes a few rounds of gradients, of which each may try several classes in a box."""
    longest = 0
    for classes, samples in ((10, 4), (10, 128), (40, 4), (40, 128)):
        found, steps = count_per_step(monkeypatch, classes, samples, overshoot=0.002, **how)
        assert found <= most, (classes, samples)
        longest = max(longest, steps)
    assert longest > 1


@pytest.mark.parametrize("bounds", [None, (0, 1)])
@pytest.mark.parametrize("p", [1, 2, math.inf])
@pytest.mark.parametrize("candidates", ["all", "auto"])
def test_the_answers_are_the_same_elsewhere(monkeypatch, p, bounds, candidates):
    model, x = make_case(12, 40)
    model, x = model.double(), x.double()
    here = df.deepfool(model, x, p=p, bounds=bounds, candidates=candidates)
    monkeypatch.setattr(norms, "ON_THE_HOST", ())
    there = df.deepfool(model, x, p=p, bounds=bounds, candidates=candidates)
    assert torch.equal(here.status, there.status)
    assert torch.equal(here.adv_label, there.adv_label)
    torch.testing.assert_close(here.r, there.r, rtol=1e-6, atol=1e-9)


def test_smallest_waits_a_bounded_number_of_times(elsewhere):
    """What it is today, 5 to 11 times for each of its passes: it may get less."""
    for classes, samples in ((10, 8), (10, 32), (40, 8)):
        model, x = make_case(classes, samples)
        for p, most in ((2, 10), (1, 12)):
            with Syncs() as syncs:
                df.smallest(model, x, p=p, budget=40)
            assert syncs.total <= most * 40 + 3 * samples, (classes, samples, p)


@pytest.mark.parametrize("p", [1, 2, math.inf])
def test_smallest_is_the_same_elsewhere(monkeypatch, p):
    """Projections are found in another way there, and begin elsewhere."""
    model, x = make_case(10, 12)
    model, x = model.double(), x.double()
    here = df.smallest(model, x, p=p, budget=40, bounds=(0, 1))
    monkeypatch.setattr(norms, "ON_THE_HOST", ())
    there = df.smallest(model, x, p=p, budget=40, bounds=(0, 1))
    assert torch.equal(here.status, there.status)
    torch.testing.assert_close(here.norm, there.norm, rtol=1e-3, atol=0)
