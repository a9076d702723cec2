"""The search by scores alone: near the smallest where gradients are dead, and the same in any company."""

import math
from itertools import pairwise

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from deepfool import Evidence, Status, smallest
from deepfool.attacks.shared.groups import cover, tile
from deepfool.attacks.shared.scores import CAUTION, search_by_scores
from deepfool.attacks.shared.task import prepare
from tests.oracles import mlp


@pytest.fixture(scope="module")
def digits():
    """A network for 8 x 8 pictures in double precision, and 16 pictures."""
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16), torch.tensor(labels)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 10)).double()
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(80):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[:1200]), y[:1200]).backward()
        optimizer.step()
    return net.eval(), x[1200:1216].view(-1, 1, 8, 8)


def cut_off(net):
    """The same scores, with no way back to the input."""
    return lambda x: net(x.detach())


def attack(model, x, queries, *, p=math.inf, seed=0, random=None, **arguments):
    with prepare(model, x, p=p, **arguments) as task:
        random = torch.Generator().manual_seed(seed) if random is None else random
        found = search_by_scores(task, task.rows, queries, random)
        result = task.result()
    assert torch.equal(found, result.fooled[task.rows])
    return result


@pytest.mark.parametrize("bounds", [None, (0, 1)])
@pytest.mark.parametrize(("p", "factor"), [(math.inf, 1.1), (2, 1.15), (1, 1.3)])
def test_near_the_smallest_where_there_is_no_gradient(digits, p, factor, bounds):
    net, x = digits
    found = attack(cut_off(net), x, 600, p=p, bounds=bounds)
    assert found.fooled.all()
    assert (net(found.x).argmax(1) != found.label).all()
    assert (found.forwards <= 601).all()
    assert not found.backwards.any()
    assert (found.evidence == Evidence.SCORES).all()
    assert set(found.reason) == {CAUTION}
    reference = smallest(net, x, p=p, bounds=bounds, budget=200)
    assert (found.norm / reference.norm).mean() < factor


@pytest.mark.parametrize("levels", [1, 7])
def test_inputs_that_are_rounded_without_a_gradient(digits, levels):
    """Features have to move far to be felt at all: half a level, and half of the range for black and white."""
    net, x = digits
    found = attack(lambda v: net((v.detach() * levels).round() / levels), x, 600, bounds=(0, 1))
    assert found.fooled.sum() >= 14
    assert found.norm[found.fooled].mean() < (0.55 if levels == 1 else 0.15)


def test_more_queries_continue_fewer(digits):
    net, x = digits
    sizes = [attack(cut_off(net), x, queries, bounds=(0, 1)).norm for queries in (60, 120, 180, 260, 400, 700)]
    for fewer, more in pairwise(sizes):
        assert (more <= fewer).all()
    assert (sizes[-1] < sizes[1]).any()


def test_the_company_changes_nothing(digits):
    net, x = digits
    together = attack(cut_off(net), x, 300, bounds=(0, 1))
    alone = torch.cat([attack(cut_off(net), x[i : i + 1], 300, bounds=(0, 1)).norm for i in range(4)])
    torch.testing.assert_close(alone, together.norm[:4], rtol=1e-6, atol=0)
    mixed = attack(cut_off(net), x.flip(0), 300, bounds=(0, 1))
    torch.testing.assert_close(mixed.norm.flip(0), together.norm, rtol=1e-6, atol=0)


def test_a_generator_for_each_sample(digits):
    net, x = digits
    draws = [torch.Generator().manual_seed(i) for i in range(4)]
    together = attack(cut_off(net), x[:4], 300, bounds=(0, 1), random=draws)
    third = attack(cut_off(net), x[2:3], 300, bounds=(0, 1), random=[torch.Generator().manual_seed(2)])
    torch.testing.assert_close(third.norm, together.norm[2:3], rtol=1e-6, atol=0)


@pytest.mark.parametrize("p", [1, 2, math.inf])
def test_mask_and_bounds_are_kept(digits, p):
    net, x = digits
    mask = torch.zeros(1, 8, 8, dtype=torch.bool)
    mask[:, :, 2:6] = True
    found = attack(cut_off(net), x, 400, p=p, mask=mask, bounds=(0, 1))
    assert found.fooled.any()
    assert not found.r[:, ~mask].any()
    assert (found.x >= 0).all()
    assert (found.x <= 1).all()


def test_a_target_is_reached(digits):
    net, x = digits
    target = (net(x).argmax(1) + 1) % 10
    found = attack(cut_off(net), x, 400, target=target, bounds=(0, 1))
    assert found.fooled.all()
    assert torch.equal(net(found.x).argmax(1), target)


def test_a_single_score_of_flat_inputs():
    net = mlp((300, 20, 1), nn.Tanh)  # more features than groups
    x = torch.randn(6, 300, dtype=torch.float64)
    found = attack(cut_off(net), x, 800, p=2)
    reference = smallest(net, x, p=2)
    assert found.fooled.all()
    assert (found.norm / reference.norm).mean() < 1.5


@pytest.mark.parametrize(
    "scores",
    [
        lambda x: torch.tensor([[3.0, 1.0]]).repeat(len(x), 1).to(x),
        lambda x: nn.functional.one_hot((x.sum((1, 2, 3)) > 1e9).long(), 2).to(x) * 3,
        lambda x: x.flatten(1)[:, :2].floor() * math.nan if x.sum() > 1e9 else torch.ones(len(x), 2).to(x) * 2,
    ],
    ids=["constant", "decisions only", "tied"],
)
def test_scores_that_say_nothing_end_the_search_early(digits, scores):
    _, x = digits
    found = attack(scores, x, 10_000, bounds=(0, 1))
    assert not found.fooled.any()
    assert (found.forwards <= 10).all()
    assert (found.status == Status.EXHAUSTED).all()


def test_too_few_queries_for_anything(digits):
    net, x = digits
    assert (attack(cut_off(net), x, 2).forwards == 1).all()
    assert (attack(cut_off(net), x, 20).forwards <= 21).all()
    assert len(attack(cut_off(net), x[:0].new_zeros(1, 1, 8, 8), 5)) == 1


def test_half_precision(digits):
    net, x = digits
    found = attack(lambda v: net(v.detach().double()), x.half(), 300, bounds=(0, 1))
    assert found.fooled.all()
    assert found.x.dtype == torch.float16
    assert (net(found.x.double()).argmax(1) != found.label).all()


def test_squares_in_each_channel():
    groups = tile((2, 5, 5), 2).view(2, 5, 5)
    assert groups.unique().numel() == 18
    assert (groups[0, :2, :2] == groups[0, 0, 0]).all()
    assert not set(groups[0].flatten().tolist()) & set(groups[1].flatten().tolist())


def test_as_many_groups_as_there_may_be():
    assert cover((1, 28, 28), 256)[0] == 2
    assert cover((3, 32, 32), 256)[0] == 4
    assert cover((300,), 256)[0] == 2
    assert cover((512, 1, 1), 256)[0] == 2
    assert cover((), 256)[1].tolist() == [0]
    assert cover((7,), 256)[1].tolist() == list(range(7))
