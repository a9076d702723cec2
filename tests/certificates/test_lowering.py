"""A lowered network computes what the model computes; what cannot be lowered is refused by name."""

import math

import pytest
import torch
from torch import nn

import deepfool
from deepfool.certificates.costs import check_cost, estimate
from deepfool.certificates.lowering import lower
from deepfool.certificates.operators import Convolution, Edges, Pad, Rearrange, Reshape, Scale, Taps
from deepfool.certificates.rows import Rows
from deepfool.classifier import Classifier
from deepfool.errors import ModelError
from tests.certificates.networks import small_networks


def lowered(model, x, **options):
    f = Classifier(model, **options)
    with f.frozen():
        return lower(f, x), f


@pytest.mark.parametrize("name", small_networks())
def test_the_graph_is_the_model(name):
    model, shape = small_networks()[name]
    x = torch.rand(5, *shape)
    graph, f = lowered(model, x)
    assert torch.allclose(graph(x.double().flatten(1)).float(), f(x), atol=1e-5)


@pytest.mark.parametrize("name", ["lenet-mnist", "lenet-cifar10", "conv-mnist-linf"])
def test_networks_of_the_zoo(name):
    model = deepfool.models.load(name)
    x = torch.rand(2, *((3, 32, 32) if "cifar" in name else (1, 28, 28)))
    graph, f = lowered(model, x)
    assert torch.allclose(graph(x.double().flatten(1)).float(), f(x), atol=1e-4)


def test_a_last_softmax_or_sigmoid_is_left_out():
    body = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    x = torch.rand(6, 4)
    graph, _ = lowered(nn.Sequential(body, nn.Softmax(1)), x, outputs="probabilities")
    assert torch.allclose(graph(x.double()).float(), body(x), atol=1e-5)
    single = nn.Linear(4, 1)
    graph, _ = lowered(nn.Sequential(single, nn.Sigmoid()), x, outputs="probabilities", threshold=0.3)
    assert torch.allclose(graph(x.double())[:, 1].float(), single(x)[:, 0] - math.log(0.3 / 0.7), atol=1e-5)


def test_a_sigmoid_whose_threshold_is_not_one_of_probabilities_is_refused():
    """sigmoid(z) > 0.3 is not z > 0.3."""
    model = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
    with pytest.raises(ModelError, match="not read as a probability"):
        lowered(model, torch.rand(2, 4), outputs="logits", threshold=0.3)


@pytest.mark.parametrize(
    ("layer", "words"),
    [(nn.GELU(), r"gelu \(layer '1'\)"), (nn.Softplus(), r"softplus \(layer '1'\)"), (nn.Softmax(1), "softmax"),
     (nn.LeakyReLU(-0.5), "slope -0.5")],
)  # fmt: skip
def test_what_cannot_be_bounded_is_refused_by_name(layer, words):
    with pytest.raises(ModelError, match=words):
        lowered(nn.Sequential(nn.Linear(4, 4), layer, nn.Linear(4, 2)), torch.rand(2, 4))


def test_what_depends_on_values_or_chance_is_refused():
    factors = iter(range(1, 100))
    with pytest.raises(ModelError, match="depends on its values"):
        lowered(lambda x: x if x.sum() > 0 else -x, torch.rand(2, 3))
    with pytest.raises(ModelError, match="two values that both depend"):
        lowered(lambda x: x * x.flip(1), torch.rand(2, 3))
    with pytest.raises(ModelError, match="random numbers, mix the samples"):
        lowered(lambda x: x * next(factors), torch.rand(2, 3))


def test_a_network_that_takes_too_long_is_refused_before_any_work():
    model = deepfool.models.load("nin-cifar10")
    graph, _ = lowered(model, torch.rand(1, 3, 32, 32))
    with pytest.raises(ModelError, match=r"742,528 units would take about .* s a sample"):
        check_cost(estimate(graph), 1.0)
    check_cost(estimate(graph), 1e9)


OPERATORS = [
    Convolution(torch.randn(4, 3, 3, 3, dtype=torch.float64), None, (3, 11, 10), (2, 2), (1, 1), (1, 1), 1),
    Convolution(torch.randn(4, 2, 3, 2, dtype=torch.float64), None, (4, 20, 18), (3, 3), (2, 0), (2, 1), 2),
    Taps((3, 12, 12), 1, 2, 6, {0: 1.0, 1: -1.0}, 2),
    Taps((3, 12, 12), 2, 2, 5, {0: 1.0, 2: -1.0}, 3),
    Edges((3, 12, 12), 1, 1, 2),
    Edges((3, 12, 12), 2, 0, 1),
    Pad((3, 6, 6), (1, 2, 0, 1)),
    Pad((3, 6, 6), (1, -1, 2, -2)),
    Scale(torch.randn(3, 1, 1, dtype=torch.float64), None, (3, 5, 5)),
    Reshape((3, 4, 4), (48,)),
    Rearrange(lambda h: h.flip(2), (3, 4, 4), (3, 4, 4), None),
]


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda o: type(o).__name__)
def test_transposes_as_windows_and_as_whole_rows(operator):
    """<L'r, h> = <r, L h>: for rows that are stored as windows, and for the same rows in full."""
    index = torch.randint(0, math.prod(operator.shape), (40,))
    rows = Rows.pick(operator.shape, index, torch.float64)
    h = torch.randn(1, *operator.before, dtype=torch.float64)
    expected = operator.linear(h).flatten(1)[0, index]
    for each in (rows, rows.dense()):
        assert torch.allclose((operator.transpose(each).flat() * h.flatten(1)).sum(1), expected)
    back = operator.transpose(rows)
    assert torch.allclose((back.read(h, None) * back.values).flatten(1).sum(1), expected)
    assert (operator.spread(h.abs()) >= operator.linear(h).abs() - 1e-12).all()
