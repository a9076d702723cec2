"""What a training makes small: bounds hold, PGD keeps to its ball, and a recipe carries its objective."""

import json
from dataclasses import asdict, replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from deepfool.errors import InputError, ModelError
from deepfool.models.conv_mnist import conv_mnist
from deepfool.models.preprocessing import Normalize
from deepfool.training.intervals import bound, bound_margins
from deepfool.training.objectives import Adversarial, Certified, Plain, read_objective
from deepfool.training.pgd import climb
from deepfool.training.sgd import Recipe, train

ROBUST = [Adversarial("linf", eps=0.1, steps=3), Adversarial("l2", eps=0.5, steps=3), Certified(eps=0.05)]


def make_network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        Normalize([0.5], [0.25]), nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.ReLU(),
        nn.Sequential(nn.Conv2d(4, 4, 2, groups=2), nn.ReLU()), nn.Flatten(), nn.Linear(36, 5),
    )  # fmt: skip


def make_data(count=48):
    stream = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 1, 8, 8), dtype=torch.uint8, generator=stream)
    return images, images.float().mean((1, 2, 3)).gt(127).long()


def near(x, eps, stream):
    """A point of the box and the ball: half of the time a corner, where bounds are reached."""
    noise = 2 * torch.rand(x.shape, generator=stream) - 1
    corner = torch.rand(len(x), 1, 1, 1, generator=stream) < 0.5
    return (x + eps * torch.where(corner, noise.sign(), noise)).clamp(0, 1)


@pytest.mark.parametrize("eps", [0.0, 0.02, 0.3])
@torch.no_grad()
def test_interval_bounds_contain_every_output(eps):
    stream = torch.Generator().manual_seed(1)
    x, y = torch.rand(6, 1, 8, 8, generator=stream), torch.arange(6) % 5
    for network in (make_network(), make_network()[:3]):
        centre, radius = bound(network, x, eps)
        assert bool((radius >= 0).all())
        for _ in range(200):
            found = network(near(x, eps, stream))
            assert bool(((found - centre).abs() <= radius + 1e-5).all())
    network = make_network()
    margins, (centre, radius) = bound_margins(network, x, y, eps), bound(network, x, eps)
    for _ in range(200):
        found = network(near(x, eps, stream))
        assert bool((found - found.gather(1, y[:, None]) <= margins + 1e-5).all())
    loose = centre + radius - (centre - radius).gather(1, y[:, None])
    assert bool((margins <= loose + 1e-5).all()), "the last layer and the difference together are tighter"


@torch.no_grad()
def test_without_a_hidden_layer_interval_bounds_are_exact():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 3))
    x, y = 0.3 + 0.4 * torch.rand(20, 6), torch.randint(0, 3, (20,))
    weights, scores = network[0].weight, network(x)
    exact = scores - scores.gather(1, y[:, None]) + 0.1 * (weights[None] - weights[y][:, None]).abs().sum(2)
    torch.testing.assert_close(bound_margins(network, x, y, 0.1), exact)


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (nn.Sequential(nn.Tanh(), nn.Linear(2, 2)), "Tanh"),
        (nn.Sequential(nn.Linear(2, 2), nn.ReLU()), "last layer"),
        (nn.Linear(2, 2), "nn.Sequential"),
    ],
)
def test_what_has_no_interval_bounds_is_named(network, words):
    with pytest.raises(ModelError, match=words):
        bound_margins(network, torch.rand(1, 2), torch.tensor([0]), 0.1)


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.2), ("l2", 1.0)])
def test_pgd_stays_in_ball_and_box_and_raises_the_loss(norm, eps):
    network = make_network()
    x, y = torch.rand(16, 1, 8, 8, generator=torch.Generator().manual_seed(2)), torch.arange(16) % 5
    moved = climb(network, x, y, norm=norm, eps=eps, steps=20, generator=torch.Generator().manual_seed(0))
    again = climb(network, x, y, norm=norm, eps=eps, steps=20, generator=torch.Generator().manual_seed(0))
    assert torch.equal(moved, again)
    assert moved.min() >= 0
    assert moved.max() <= 1
    assert not moved.requires_grad
    assert all(weight.grad is None for weight in network.parameters())
    size = torch.linalg.vector_norm((moved - x).flatten(1), ord=2 if norm == "l2" else torch.inf, dim=1)
    assert bool((size <= eps * (1 + 1e-5)).all())
    before, after = (F.cross_entropy(network(z), y, reduction="none") for z in (x, moved))
    assert bool((after > before).all())


def test_pgd_knows_two_norms():
    with pytest.raises(InputError, match="'l1'"):
        climb(nn.Identity(), torch.rand(1, 2), torch.tensor([0]), norm="l1", eps=0.1, steps=1)


def test_robust_accuracy_of_an_affine_network_is_the_one_by_hand():
    """There PGD reaches the worst point and interval bounds are exact, so both measures are the truth."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 2)).eval()
    x = 0.3 + 0.4 * torch.rand(200, 1, 2, 2)
    with torch.no_grad():
        network[1].bias -= network(torch.full((1, 1, 2, 2), 0.5))[0]  # the boundary goes through the middle
        scores, weights = network(x), network[1].weight
        y, gap = scores.argmax(1), (scores[:, 0] - scores[:, 1]).abs()
        truth = (gap > 0.1 * (weights[0] - weights[1]).abs().sum()).float().mean().item()
    assert 0.1 < truth < 0.9
    by_bounds, by_pgd = Certified(eps=0.1).measure(network, x, y)
    assert (by_bounds["by"], by_pgd["by"], by_pgd["samples"]) == ("interval bounds", "PGD", 200)
    assert by_bounds["accuracy"] == pytest.approx(truth, abs=1e-6)
    assert by_pgd["accuracy"] == pytest.approx(truth, abs=1e-6)
    assert Plain().measure(network, x, y) == []


@pytest.mark.parametrize("objective", ROBUST)
def test_a_robust_loss_is_at_least_the_clean_one_and_grows_with_the_radius(objective):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network, x, y = conv_mnist(), torch.rand(8, 1, 28, 28), torch.arange(8)
        losses = [objective.loss(network, x, y, done).item() for done in (1e-6, 0.1, 1.0)]
    clean = Plain().loss(network, x, y, 1.0).item()
    assert losses[0] == pytest.approx(clean, rel=1e-3), "the radius rises from 0"
    assert clean < losses[1] < losses[2]


@pytest.mark.parametrize("objective", [Plain(), *ROBUST])
def test_a_recipe_carries_its_objective_through_json(objective):
    recipe = Recipe(1, 0.1, clip=1.0, objective=objective)
    read = Recipe(**json.loads(json.dumps(asdict(recipe))))
    assert replace(read, crops=()) == recipe


def test_an_unknown_objective_lists_the_known_ones():
    with pytest.raises(InputError, match="adversarial"):
        read_objective({"kind": "robust"})


class KilledError(Exception):
    pass


@pytest.mark.parametrize("objective", ROBUST)
def test_a_resumed_robust_training_ends_with_the_same_weights(tmp_path, objective):
    recipe = Recipe(epochs=3, learning_rate=0.05, batch_size=16, clip=1.0, objective=objective)
    unbroken = train(make_network(), *make_data(), recipe)

    def kill(progress):
        if (progress.epoch, progress.batch) == (1, 2):
            raise KilledError

    with pytest.raises(KilledError):
        train(make_network(), *make_data(), recipe, checkpoint=tmp_path / "run.pt", on_progress=kill)
    torch.rand(17)  # another process has another random state
    resumed = train(make_network(), *make_data(), recipe, checkpoint=tmp_path / "run.pt")
    for first, second in zip(unbroken.state_dict().values(), resumed.state_dict().values(), strict=True):
        assert torch.equal(first, second)
    other = replace(recipe, objective=Plain())
    with pytest.raises(InputError, match="another recipe"):
        train(make_network(), *make_data(), other, checkpoint=tmp_path / "run.pt")
