"""The last hidden layer: where it is found, and that looking there changes nothing but the number of rows."""

import math

import pytest
import torch
from torch import nn

from deepfool import Classifier, deepfool
from deepfool.attacks.shared import pruning
from deepfool.attacks.shared.pruning import TRUST, Slopes
from deepfool.attacks.shared.task import prepare
from deepfool.classifier.jacobian import Tangent
from deepfool.classifier.last_hidden_layer import find_hidden_layer, follow_layers
from deepfool.models import load as load_model


def slopes_of(model, x, reference):
    """The estimate and the truth, (n, c) each, scaled to a mean of one over the other classes of a sample."""
    tangent = Tangent(Classifier(model), x, hidden=True)
    estimate = tangent.relative_slopes(reference)
    c = tangent.scores.shape[1]
    every = torch.arange(c).expand(len(x), c)
    true = torch.cat([w.norm(dim=2) for _, w in tangent.difference_rows(every, reference)], 1)
    return (s / (s.sum(1, keepdim=True) / (c - 1)) for s in (estimate, true))


def test_behind_an_isometry_the_estimate_is_exact():
    """All that lies before that layer keeps lengths, so the slopes at the input are those at that layer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 20), nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 7))
    for layer in model[:2]:
        nn.init.orthogonal_(layer.weight)
    estimate, true = slopes_of(model, torch.randn(5, 20), torch.arange(5))
    torch.testing.assert_close(estimate, true)


def test_on_a_real_network_the_estimate_is_off_by_a_tenth_or_so():
    model = load_model("lenet-mnist")
    torch.manual_seed(0)
    x = torch.rand(30, 1, 28, 28)
    reference = model(x).argmax(1)
    estimate, true = slopes_of(model, x, reference)
    others = reference[:, None] != torch.arange(10)
    assert (estimate / true)[others].log().std() < 0.15
    assert true[others].log().std() > (estimate / true)[others].log().std()


def test_what_the_last_layer_is_given_serves_where_more_would_cost_too_much():
    wide = nn.Sequential(nn.Conv2d(1, 64, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 100))
    x = torch.rand(2, 1, 12, 12, requires_grad=True)
    with follow_layers(wide) as calls:
        scores = wide(x)
    layer, hidden = find_hidden_layer(calls, x, scores)
    assert layer.layer is wide[3]
    assert not layer.returned
    assert hidden.shape == (2, 64)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # people still have scripted models
@pytest.mark.parametrize("build", [lambda m: m.forward, torch.jit.script], ids=["function", "scripted"])
def test_where_no_layer_can_be_seen_more_classes_are_looked_at_and_the_answer_is_the_same(build, monkeypatch):
    monkeypatch.setattr(pruning, "WORTH", 0)  # rows of so small a model would all be taken
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 10)).eval()
    x = torch.randn(40, 100)
    seen, unseen = deepfool(model, x), deepfool(build(model), x)
    torch.testing.assert_close(seen.r, unseen.r, rtol=1e-3, atol=1e-5)
    assert unseen.backwards.sum() > seen.backwards.sum()


def test_a_single_layer_has_no_hidden_layer():
    assert (
        Tangent(Classifier(nn.Linear(9, 5)), torch.rand(3, 9), hidden=True).relative_slopes(torch.zeros(3).long())
        is None
    )


def test_activations_in_place_and_ways_around_the_layer_do_no_harm():
    class Around(nn.Module):
        """The last hidden layer has no say at all."""

        def __init__(self):
            super().__init__()
            self.unused, self.one, self.last = nn.Linear(70, 70), nn.Linear(70, 70), nn.Linear(70, 8)
            self.act = nn.ReLU(inplace=True)

        def forward(self, x):
            hidden = self.act(self.one(x))
            self.unused(x)
            return self.last(hidden) + 0

    torch.manual_seed(0)
    model, x = Around(), torch.randn(20, 70)
    every, auto = deepfool(model, x, candidates="all"), deepfool(model, x)
    torch.testing.assert_close(every.r, auto.r, rtol=1e-3, atol=1e-5)


def test_no_hook_is_left_and_a_classifier_can_be_used_again():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 10))
    f = Classifier(model)
    x = torch.randn(30, 100)
    first, second = deepfool(f, x), deepfool(f, x)
    assert torch.equal(first.backwards, second.backwards)
    assert all(not layer._forward_hooks for layer in model.modules())


def test_a_sample_that_the_layer_says_nothing_of_changes_nothing_for_the_others():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(100, 50, bias=False), nn.ReLU(), nn.Linear(50, 10))
    model[0].weight.data.abs_()
    x = torch.rand(3, 100)
    x[1] = -1.0  # no unit of the last hidden layer is active
    with prepare(model, x, p=2, classes=True) as task:
        slopes = Slopes(task)
        assert slopes.ask_hidden_layer(task.rows, task.model.linearise_inputs(task.rows))
    torch.testing.assert_close(slopes.trust[:, 0], torch.tensor([TRUST, math.inf, TRUST]))
    assert (slopes.expected[1] == 1).all()
