"""The default may leave classes out only where that cannot change the answer: models that have fooled it before."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from deepfool import Classifier, datasets, deepfool, smallest
from deepfool.attacks.shared import pruning
from deepfool.classifier.jacobian import Tangent


@pytest.fixture(autouse=True)
def worth_it(monkeypatch):
    """Rows of these small models would all be taken."""
    monkeypatch.setattr(pruning, "WORTH", 0)


def mlp(*widths):
    layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


class Ensemble(nn.Module):
    """Averages the probabilities of its members."""

    def __init__(self):
        super().__init__()
        self.members = nn.ModuleList(mlp(784, 30, 10) for _ in range(3))

    def forward(self, x):
        return torch.stack([member(x.flatten(1)).softmax(1) for member in self.members]).mean(0)


class Heads(nn.Module):
    """Some heads, each with a hidden layer and a share of the classes."""

    def __init__(self, count):
        super().__init__()
        self.body = mlp(784, 40)
        self.heads = nn.ModuleList(mlp(40, 12, 10 // count) for _ in range(count))

    def forward(self, x):
        h = self.body(x.flatten(1)).relu()
        return torch.cat([head(h) for head in self.heads], 1)


class Hierarchy(nn.Module):
    """p(group) * p(class | group)."""

    def __init__(self):
        super().__init__()
        self.body, self.group, self.within = mlp(784, 40), mlp(40, 12, 2), mlp(40, 12, 10)

    def forward(self, x):
        h = self.body(x.flatten(1)).relu()
        within = self.within(h).view(-1, 2, 5).log_softmax(2)
        return (self.group(h).log_softmax(1)[:, :, None] + within).flatten(1)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(784, 3), nn.ModuleList(mlp(784, 25, 10) for _ in range(3))

    def forward(self, x):
        x = x.flatten(1)
        weights = self.gate(x).softmax(1)
        return sum(weights[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts))


class Bypass(nn.Module):
    """A hidden layer, and a straight way past it."""

    def __init__(self):
        super().__init__()
        self.straight, self.deep = nn.Linear(784, 10), mlp(784, 30, 10)

    def forward(self, x):
        return self.straight(x.flatten(1)) + self.deep(x.flatten(1))


class Shared(nn.Module):
    """One hidden layer, called twice."""

    def __init__(self):
        super().__init__()
        self.first, self.hidden, self.last = nn.Linear(392, 30), nn.Linear(30, 30), nn.Linear(30, 10)

    def forward(self, x):
        top, bottom = (self.hidden(self.first(half).relu()) for half in x.flatten(1).split(392, dim=1))
        return self.last((top - bottom).relu())


class Uneven(nn.Module):
    """The classes' slopes differ by far more than chance would have it, and so do those of the hidden units."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(784, 30), nn.Linear(30, 10)
        self.first.weight.data *= torch.logspace(-1, 1, 30)[:, None]
        self.last.weight.data *= torch.logspace(-1, 1, 10)[:, None]

    def forward(self, x):
        return self.last(self.first(x.flatten(1)).relu())


MODELS = {
    "ensemble": Ensemble,
    "two heads": lambda: Heads(2),
    "ten heads": lambda: Heads(10),
    "hierarchy": Hierarchy,
    "experts": Experts,
    "bypass": Bypass,
    "shared": Shared,
    "uneven": Uneven,
}


@pytest.fixture(scope="module")
def digits():
    data = datasets.load("mnist-sample")
    return data.images().float() / 255, torch.as_tensor(data.labels)


@pytest.fixture(scope="module", params=MODELS, ids=lambda name: name.replace(" ", "-"))
def trained(request, digits):
    """The model after two epochs on a thousand digits: enough for classes to differ."""
    torch.manual_seed(3)
    x, y = digits
    model = MODELS[request.param]()
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(2):
        for rows in torch.randperm(len(x)).split(50):
            z = model(x[rows])
            loss = nn.functional.nll_loss(z.log() if isinstance(model, Ensemble) else z.log_softmax(1), y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return model.eval()


@pytest.mark.filterwarnings("ignore::deepfool.classifier.ProbabilityWarning")
@pytest.mark.parametrize("settings", [{}, {"p": "inf"}, {"bounds": (0, 1)}], ids=["l2", "linf", "box"])
def test_the_default_is_never_more_than_a_thousandth_larger_than_all_classes(trained, digits, settings):
    x = digits[0][:200]
    auto, every = deepfool(trained, x, **settings), deepfool(trained, x, candidates="all", **settings)
    assert bool((auto.status == every.status).all())
    assert int((auto.norm > 1.001 * every.norm).sum()) == 0


@pytest.mark.parametrize("p", [2, torch.inf])
@pytest.mark.parametrize("kind", ["dense", "sparse", "uneven"])
def test_features_at_their_bounds(kind, p):
    """Half of them cannot move, another half for each class, and the few that matter may be in either."""
    for seed in range(12):
        torch.manual_seed(seed)
        model = mlp(100, 16 + 16 * (seed % 3), 10)
        if kind == "sparse":
            model[0].weight.data *= 4 * (torch.rand_like(model[0].weight) < 0.08)
        elif kind == "uneven":
            model[0].weight.data *= torch.logspace(-1.5, 0.5, 100)[torch.randperm(100)]
        x = (torch.rand(60, 100) < 0.5).float()
        auto, every = (deepfool(model, x, p=p, bounds=(0, 1), candidates=c) for c in ("auto", "all"))
        assert int((auto.norm > 1.001 * every.norm).sum()) == 0
        assert auto.backwards.sum() < 0.5 * every.backwards.sum()


def test_a_class_a_thousand_times_steeper_than_the_others_is_found():
    w = torch.zeros(6, 64)
    w[1, 0] = w[2, 1] = w[3, 2] = 1
    w[4, 3] = 1000
    bias = torch.tensor([0, -1, -1, -1, -1.7, -9])
    linear = nn.Linear(64, 6)
    linear.weight.data, linear.bias.data = w, bias
    for model in (linear, lambda x: x @ w.T + bias):
        assert deepfool(model, torch.zeros(1, 64)).norm.item() == pytest.approx(1.02 * 1.7e-3, rel=1e-5)


@pytest.mark.parametrize(("build", "has_one"), [(lambda: mlp(784, 40, 30, 10), True), (Uneven, True), (Bypass, False),
                                                (Ensemble, False), (Experts, False), (Shared, False)])  # fmt: skip
@pytest.mark.filterwarnings("ignore::deepfool.classifier.ProbabilityWarning")
def test_a_last_hidden_layer_is_one_that_every_path_passes(build, has_one):
    f = Classifier(build())
    Tangent(f, torch.rand(3, 784), hidden=True)
    assert (f.hidden_layer is not None) == has_one


VANISHING = [10.0**-k for k in (30, 39, 45)]


def briefly(model, x):
    return smallest(model, x, budget=20)


@pytest.mark.parametrize("attack", [deepfool, briefly])
@pytest.mark.parametrize("scale", VANISHING)
@pytest.mark.parametrize("hidden", [False, True], ids=["affine", "hidden"])
def test_vanishing_gradients_end_within_a_bound(attack, scale, hidden):
    torch.manual_seed(0)
    net = mlp(64, 80, 10) if hidden else nn.Linear(64, 10)
    bias = -torch.arange(10.0)

    class Vanishing(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net(x) * scale + bias

    for model in (Vanishing(), lambda x: net(x) * scale + bias):
        found = attack(model, torch.rand(3, 64))
        # By far the most are those of the searches by scores and by decisions, 1000 each and a few to begin with.
        assert int(found.forwards.max()) < 2500
        assert int(found.backwards.max()) < 2000


@pytest.mark.parametrize("attack", [deepfool, briefly])
@pytest.mark.parametrize("factor", [6, 20, 100])
@pytest.mark.filterwarnings("ignore::deepfool.classifier.ProbabilityWarning")
def test_saturated_outputs_end_within_a_bound(attack, factor, digits):
    from deepfool.models import load

    net = load("lenet-mnist")
    for squash in (lambda z: torch.softmax(factor * z, 1), lambda z: torch.tanh(factor * z)):
        found = attack(lambda x, squash=squash: squash(net(x)), digits[0][:4])
        assert int((found.forwards + found.backwards).max()) < 2000
