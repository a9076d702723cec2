"""`smallest`: exact where the answer is known, better with every pass, honest where gradients mislead."""

import contextlib
import math
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from deepfool import Evidence, Status, affine, datasets, deepfool, models, smallest
from deepfool.attacks.shared.descents import MODEST, STRIDE, Descents
from deepfool.attacks.shared.ranking import Ranking
from deepfool.attacks.shared.starts import Starts
from deepfool.attacks.smallest import AGAIN, END, FINEST, HALF
from deepfool.boxes import project
from deepfool.classifier.jacobian import Tangent
from deepfool.errors import InputError
from tests.oracles import affine_case, mlp

NORMS = [1.0, 2.0, math.inf]


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("bounds", [None, (0, 1)])
@pytest.mark.parametrize("classes", [1, 2, 10, 100])
def test_affine_distances_are_reached(classes, bounds, p):
    model, x = affine_case(classes, 24, 20, seed=classes)
    exact = affine(model.weight if classes > 1 else model.weight[0], model.bias, x, p=p, bounds=bounds).norm
    result = smallest(model, x, p=p, bounds=bounds, budget=300, candidates=classes)
    reachable = exact.isfinite()
    assert (result.fooled == reachable).all()
    torch.testing.assert_close(result.norm[reachable], exact[reachable], rtol=1e-4, atol=0)


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("name", ["fc500-mnist", "lenet-mnist"])
def test_smaller_than_deepfool_on_real_networks(name, p):
    model, x = models.load(name), datasets.load("mnist-sample").batch(range(0, 1000, 10))
    plain = deepfool(model, x, p=p, bounds=(0, 1))
    small = smallest(model, x, p=p, bounds=(0, 1), budget=50)
    smaller = smallest(model, x, p=p, bounds=(0, 1), budget=100)
    assert small.fooled.all()
    larger = smaller.norm > plain.norm * (1 + 1e-5)
    assert larger.float().mean() <= (0.03 if p == 1 else 0)  # in l1 a row in a hundred, by less than 3 %, measured
    assert (smaller.norm <= 1.1 * plain.norm).all()
    assert smaller.norm.mean() < small.norm.mean() < 0.99 * plain.norm.mean()
    for size in (7, 40):
        again = torch.cat([model(part).argmax(1) for part in smaller.x.split(size)])
        assert (again == smaller.adv_label).all()
        assert (again != smaller.label).all()


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("name", ["lenet-cifar10", "conv-mnist-certified", "kwta-mnist"])
def test_a_larger_budget_continues_a_smaller_one(name, p):
    data = "cifar10-sample" if "cifar" in name else "mnist-sample"
    # In double: the budget changes which samples share a batch, and so the last bits, on which k-WTA's units depend.
    model, x = models.load(name).double(), datasets.load(data).batch(range(0, 500, 60)).double()
    before = smallest(model, x, p=p, bounds=(0, 1), budget=15)
    for budget in (25, 40, 70, 101, 180):
        now = smallest(model, x, p=p, bounds=(0, 1), budget=budget)
        assert (now.norm <= before.norm * (1 + 1e-9)).all()
        assert (now.forwards + now.backwards >= before.forwards + before.backwards).all()
        before = now


def test_restarts_in_l1_are_not_given_up_for_being_dense():
    model, x = models.load("lenet-mnist"), datasets.load("mnist-sample").batch(range(4))
    with patch.object(Descents, "start", autospec=True, side_effect=Descents.start) as start:
        smallest(model, x, p=1, bounds=(0, 1), budget=300)
    started = [row for call in start.call_args_list for row in call.args[1].tolist()]
    # A descent takes some 50 passes. Measured by their l1 norm, climbs were left after 2: up to 63 descents.
    assert max(started.count(row) for row in range(4)) <= 15


def test_starts_far_away_find_what_none_nearby_does():
    """Trained to be robust in linf, the network does not feel small changes: descents from nearby end in few places."""
    model, x = models.load("conv-mnist-linf"), datasets.load("mnist-sample").batch(range(0, 800, 50))
    found = smallest(model, x, bounds=(0, 1), budget=400).norm
    with patch("deepfool.attacks.shared.starts.REMOTE", 1e-3), patch("deepfool.attacks.shared.starts.AROUND", 1e-3):
        nearby = smallest(model, x, bounds=(0, 1), budget=400).norm
    assert found.mean() < 0.97 * nearby.mean()  # 0.958, measured


class _Ripples(nn.Module):
    """Uphill along one direction, with ripples along another that are steep everywhere and lead nowhere."""

    def forward(self, x):
        uphill, across = x[:, ::2].sum(1), x[:, 1::2].sum(1)
        height = uphill + 0.5 * torch.sin(20 * across) - 14.5
        return torch.stack([torch.zeros_like(height), height], 1)


@pytest.mark.parametrize("p", [1, 2, math.inf])
def test_the_mean_normal_leads_where_no_single_one_does(p):
    x, starts, follow = torch.full((6, 40), 0.5), [], Starts.mean_normal
    x += 0.01 * torch.rand(x.shape, generator=torch.Generator().manual_seed(0))

    def spy(self, rows):
        y = follow(self, rows)
        step = y - self.asked.x_0[rows]
        starts.append(step[:, ::2].sum(1) / step.abs().sum(1))
        return y

    with patch.object(Starts, "mean_normal", spy):
        found = smallest(_Ripples(), x, p=p, bounds=(0, 1), budget=400)
    assert found.fooled.all()
    single = 1 / (1 + 10 * (20 * x[:, 1::2].sum(1)).cos().abs())  # of a gradient at x_0
    assert torch.cat(starts).mean() > 1.5 * single.mean()


def test_no_batch_is_larger_than_the_one_that_was_asked_about():
    model, x = models.load("fc500-mnist"), datasets.load("mnist-sample").batch([0] * 6)  # they restart together
    sizes = []
    model.register_forward_pre_hook(lambda module, args: sizes.append(len(args[0])))
    with patch.object(Starts, "mean_normal", autospec=True, side_effect=Starts.mean_normal) as mean:
        smallest(model, x, bounds=(0, 1), budget=600)
    assert max(len(call.args[1]) for call in mean.call_args_list) > 1
    assert max(sizes) == 6


def test_budgets_hold_whatever_the_next_restart_costs():
    """On an affine model something fools at once, and each budget ends in another part of the sequence."""
    generator = torch.Generator().manual_seed(0)
    model, x = nn.Linear(30, 4), torch.rand((6, 30), generator=generator)
    model.weight.data, model.bias.data = torch.randn((4, 30), generator=generator), torch.zeros(4)
    for budget in range(60, 130):
        found = smallest(model, x, bounds=(0, 1), budget=budget)
        assert (found.forwards + found.backwards <= budget).all()


def test_restarts_in_l1_are_thinned_out():
    """What a restart finds first is dense. If only the first classes are thinned out, restarts find little in l1."""
    model, x = models.load("conv-mnist-linf"), datasets.load("mnist-sample").batch(range(0, 800, 50))
    found = smallest(model, x, p=1, bounds=(0, 1), budget=400).norm
    thins = Descents._thins
    with patch.object(Descents, "_thins", lambda self, rows: thins(self, rows) & (self.last_share[rows] >= HALF)):
        dense = smallest(model, x, p=1, bounds=(0, 1), budget=400).norm
    assert found.mean() < 0.95 * dense.mean()  # 0.82, measured


@pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 4, 4), (3, 2, 5)])
def test_restarts_start_inside_the_box_from_inputs_of_any_shape(shape):
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 8), nn.Tanh(), nn.Linear(8, 3))
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    x = torch.rand((5, *shape), generator=generator)
    starts = []
    turn = Starts.copy

    def spy(self, rows):
        y = turn(self, rows)
        starts.append((rows, y.clone()))
        return y

    with patch.object(Starts, "copy", spy):
        found = smallest(model, x, bounds=(0, 1), budget=500)
    assert found.fooled.all()
    assert sum(len(rows) for rows, _ in starts) >= 5
    for rows, y in starts:
        assert ((y >= 0) & (y <= 1)).all()
        if len(shape) > 1:  # the same numbers, elsewhere
            assert torch.equal(y.sort(1).values, x.flatten(1)[rows].sort(1).values)


class _Cliff(nn.Module):
    """Gently uphill, a cliff to the other class, then flat: a first step ends just beyond the cliff, and fools."""

    def forward(self, x):
        t = x.sum(1)
        height = 0.01 * t.clamp_max(2.15) + 10 * (t - 2.15).clamp(0, 0.15) - 1
        return torch.stack([torch.zeros_like(height), height], 1)


@pytest.mark.parametrize("p", NORMS)
def test_a_flat_place_that_fools_is_not_the_end_of_gradients(p):
    x = torch.full((3, 20), 0.02)
    found = smallest(_Cliff(), x, p=p, bounds=(0, 1), budget=100)
    assert found.fooled.all()
    assert (found.evidence == Evidence.GRADIENTS).all()
    assert (found.forwards + found.backwards <= 100).all()  # the scores alone took 1000
    exact = 2.24785 - x.sum(1)  # in l1: on the cliff, where its height is zero
    exact = exact / {1.0: 1, 2.0: 20**0.5, math.inf: 20}[p]
    assert (found.norm <= 1.02 * exact).all()


@pytest.mark.parametrize(("bounds", "wanted"), [((0, 1), ["class", "mean", "kick", "copy"]), (None, ["class", "kick"])])
def test_restarts_take_turns(bounds, wanted):
    model, x = models.load("fc500-mnist"), datasets.load("mnist-sample").batch(range(1))
    turns = []
    kinds = {"mean_normal": "mean", "kick": "kick", "shaken": "class", "copy": "copy"}
    with contextlib.ExitStack() as stack:
        for method, kind in kinds.items():
            run = getattr(Starts, method)

            def spy(self, rows, run=run, kind=kind):
                turns.extend([kind] * len(rows))
                return run(self, rows)

            stack.enter_context(patch.object(Starts, method, spy))
        smallest(model, x, bounds=bounds, budget=600)
    assert len(turns) >= 4
    assert turns == (wanted * len(turns))[: len(turns)]


def test_scores_are_woven_into_a_ranking_that_misled():
    ranking = Ranking(
        order=torch.tensor([[4, 1, 2, 3], [4, 1, 2, 3]]),
        distance=torch.tensor([[1.0, 2.0, 3.0, math.inf], [1.0, 2.0, 3.0, 9.0]]),
        slopes=torch.arange(8.0).view(2, 4, 1),
        gaps=torch.tensor([[7.0, 6.0, 5.0, 1.0], [7.0, 6.0, 5.0, 1.0]]),
    )
    ranking.weave_in_scores(torch.tensor([1]))
    assert ranking.order.tolist() == [[4, 1, 2, 3], [4, 3, 1, 2]]  # the nearest, the best score, the next nearest
    assert ranking.gaps[1].tolist() == [7, 1, 6, 5]
    assert ranking.slopes[1, :, 0].tolist() == [4, 7, 5, 6]
    assert ranking.distance[1].tolist() == [1, 1, 1, 1]
    ranking.weave_in_scores(torch.tensor([0]))  # class 3 has no gradient, so its score does not count
    assert ranking.order[0].tolist() == [4, 2, 1, 3]
    assert ranking.distance[0].tolist() == [1, 1, 1, math.inf]


def test_scores_halfway_to_a_point_that_fooled_count():
    ranking = Ranking(
        order=torch.tensor([[4, 1, 2, 3]]),
        distance=torch.tensor([[1.0, 2.0, 3.0, 9.0]]),
        slopes=torch.arange(4.0).view(1, 4, 1),
        gaps=torch.tensor([[7.0, 6.0, 5.0, 1.0]]),
    )
    lacking = torch.tensor([[0.0, 9.0, 1.0, 8.0, -1.0]])  # of the classes 0 to 4
    ranking.weave_in_scores(torch.tensor([0]), lacking)
    assert ranking.order[0].tolist() == [4, 2, 1, 3]  # halfway class 2 lacks 3, class 3 lacks 4.5, class 1 7.5


class _Funnel(nn.Module):
    """All scores but the first hang on one hidden unit, so that their gradients are parallel."""

    def forward(self, x):
        hidden = torch.tanh(x.sum(1, keepdim=True) - 1)
        rivals = hidden * torch.tensor([1.0, 0.9, 0.8]) - torch.tensor([0.0, 0.05, 0.1])
        return torch.cat([torch.zeros_like(hidden), rivals], 1)


@pytest.mark.parametrize(("p", "descents"), [(2.0, 1), (math.inf, 1), (1.0, 3)])
def test_classes_with_the_same_gradient_are_tried_once(p, descents):
    wanted = []
    start = Descents.start

    def spy(self, rows, **how):
        wanted.append(int(how["target"][0]))
        start(self, rows, **how)

    with patch.object(Descents, "start", spy):
        result = smallest(_Funnel(), torch.full((1, 6), 0.1), p=p, bounds=(0, 1), budget=100)
    assert result.fooled.all()
    assert wanted.index(-1) == descents  # the first without a class is the refinement


def test_after_a_kick_in_l2_steps_are_shorter_than_the_best_answer():
    model, x = models.load("conv-mnist-certified"), datasets.load("mnist-sample").batch(range(0, 60, 10))
    lengths = []
    step = Descents._step_shortly

    def spy(self, rows, y, w, height):
        reached = step(self, rows, y, w, height)
        lengths.append(((reached - y).norm(dim=1) / self.best.size[rows]).max())
        return reached

    with patch.object(Descents, "_step_shortly", spy):
        smallest(model, x, bounds=(0, 1), budget=250)
    assert 0.1 < max(lengths) <= STRIDE * (1 + 1e-5)


def _count_refinements(model, x):
    refined = [0] * len(x)
    start = Descents.start

    def spy(self, rows, **how):
        for i, aim in zip(rows.tolist(), how["aim"].tolist(), strict=True):
            refined[i] += aim < 0.1
        start(self, rows, **how)

    with patch.object(Descents, "start", spy):
        smallest(model, x, bounds=(0, 1), budget=400)
    return refined


def test_what_a_refinement_gains_is_refined_again(monkeypatch):
    model, x = models.load("conv-mnist-linf"), datasets.load("mnist-sample").batch(range(0, 60, 10))
    assert max(_count_refinements(model, x)) > 1
    monkeypatch.setattr("deepfool.attacks.smallest.POLISH", 10_000)
    monkeypatch.setitem(AGAIN, 2.0, math.inf)
    assert _count_refinements(model, x) == [1] * len(x)


@pytest.mark.parametrize(("p", "share"), [(1, END), (2, FINEST), (math.inf, FINEST)])
def test_the_last_of_the_refinements_are_finer(p, share):
    model, x = models.load("mlp-mnist-small"), datasets.load("mnist-sample").batch(range(2))
    shares = []
    start = Descents.start

    def spy(self, rows, **how):
        shares.extend(how["last_share"].tolist())
        start(self, rows, **how)

    with patch.object(Descents, "start", spy):
        smallest(model, x, p=p, bounds=(0, 1), budget=800)
    assert min(shares) == pytest.approx(share)


def test_a_slide_that_went_astray_goes_back_to_what_fooled():
    model, x = models.load("conv-mnist-certified"), datasets.load("mnist-sample").batch(range(0, 200, 10))
    returned = []
    slide = Descents._slide

    def spy(self, rows, y, w, d, fooled):
        slide(self, rows, y, w, d, fooled)
        back = (self.y[rows] == self.safe[rows]).all(1) & ~fooled
        returned.extend((self.aim[rows[back]] == MODEST).tolist())

    with patch.object(Descents, "_slide", spy):
        smallest(model, x, p=math.inf, bounds=(0, 1), budget=400)
    assert len(returned) > 0
    assert all(returned)


def test_the_company_of_a_sample_changes_nothing():
    model, x = models.load("conv-mnist-certified").double(), datasets.load("mnist-sample").batch(range(8)).double()
    together = smallest(model, x, bounds=(0, 1), budget=250)
    alone = [smallest(model, x[i : i + 1], bounds=(0, 1), budget=250) for i in (0, 5)]
    for i, one in zip((0, 5), alone, strict=True):
        torch.testing.assert_close(one.norm[0], together.norm[i], rtol=1e-6, atol=0)
        assert one.forwards[0] == together.forwards[i]


def test_until_it_has_converged():
    model, x = models.load("mlp-mnist-small"), datasets.load("mnist-sample").batch(range(6))
    ended = smallest(model, x, p=math.inf, bounds=(0, 1), budget=None)
    spent = ended.forwards + ended.backwards
    assert ended.fooled.all()
    assert ended.converged.all()
    assert ((spent > 100) & (spent < 5000)).all()
    short = smallest(model, x, p=math.inf, bounds=(0, 1), budget=100)
    assert (ended.norm <= short.norm).all()


def test_rows_say_whether_they_had_converged():
    model, x = models.load("conv-mnist-l2"), datasets.load("mnist-sample").batch(range(0, 200, 10))
    early, late = (smallest(model, x, bounds=(0, 1), budget=b) for b in (40, 600))
    assert early.converged.sum() < late.converged.sum()
    assert late.converged.float().mean() > 0.8


@given(
    st.integers(0, 10**6),
    st.sampled_from(NORMS),
    st.sampled_from([None, (0.0, 1.0)]),
    st.sampled_from([nn.ReLU, nn.Tanh]),
)
@settings(max_examples=9)
def test_properties(seed, p, bounds, kind):
    model = mlp((6, 16, 12, 5), kind, seed)
    x = torch.rand(9, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    plain = deepfool(model, x, p=p, bounds=bounds)
    result = smallest(model, x, p=p, bounds=bounds, budget=200)
    sure = result.fooled
    assert (plain.fooled <= sure).all()  # what DeepFool fools, this fools
    assert result.norm[plain.fooled].sum() <= plain.norm[plain.fooled].sum() * (1 + 1e-9)
    assert (model(result.x).argmax(1)[sure] != result.label[sure]).all()
    assert result.norm[~sure].isinf().all()
    if bounds:
        assert ((result.x >= 0) & (result.x <= 1)).all()
    spent = result.forwards + result.backwards
    plain_rows = sure & torch.tensor([not why for why in result.reason])  # the others say what they took more for
    assert (spent[plain_rows] <= 1.3 * 200 + 250).all()  # found late: refined


@pytest.mark.parametrize("p", NORMS)
def test_masks_and_targets(p):
    model, x = mlp((6, 16, 12, 5), nn.Tanh), torch.rand(12, 6, dtype=torch.float64)
    mask = torch.tensor([True, False, True, True, False, True])
    target = (model(x).argmax(1) + 2) % 5
    masked = smallest(model, x, p=p, mask=mask)
    assert (masked.r[:, ~mask] == 0).all()
    assert masked.fooled.float().mean() > 0.6
    aimed = smallest(model, x, p=p, target=target)
    assert (model(aimed.x).argmax(1)[aimed.fooled] == target[aimed.fooled]).all()
    assert aimed.fooled.float().mean() > 0.6
    free = smallest(model, x, p=p)
    both = aimed.fooled & free.fooled
    assert (aimed.norm[both] >= free.norm[both] * 0.95).all()


def test_the_passes_that_are_reported_are_the_passes_that_were_made():
    model, x = mlp((6, 16, 12, 5), nn.Tanh), torch.rand(12, 6, dtype=torch.float64)
    seen = [0]
    model.register_forward_pre_hook(lambda _, args: seen.__setitem__(0, seen[0] + len(args[0])))
    result = smallest(model, x, budget=400)
    assert seen[0] == result.forwards.sum()
    assert (result.forwards + result.backwards <= 400).all()


def test_a_larger_budget_finds_smaller_perturbations():
    model, x = models.load("fc500-mnist"), datasets.load("mnist-sample").batch(range(20))
    sizes = [smallest(model, x, p=1, bounds=(0, 1), budget=b).norm.mean() for b in (25, 50, 100)]
    assert sizes == sorted(sizes, reverse=True)


class Masked(nn.Module):
    """A network with something before or after it that hides its gradients."""

    def __init__(self, inner, before=lambda x: x, after=lambda z: z):
        super().__init__()
        self.inner, self.before, self.after = inner, before, after

    def forward(self, x):
        return self.after(self.inner(self.before(x)))


class NoGradient(torch.autograd.Function):
    """The identity, with a gradient of zero."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, *gradients):
        return torch.zeros_like(gradients[0])


REPAIRED = {  # the mask, what the reason names, and the most that the mean ratio may be (measured: benchmarks.masked)
    "8-level input": ({"before": lambda x: (7 * x).round() / 7}, "rounding", 1.2),
    "rounded scores": ({"after": lambda z: (2 * z).round() / 2}, "rounding", 1.15),
    "tanh": ({"after": torch.tanh}, "tanh", 1.1),
    "saturated": ({"after": lambda z: torch.tanh(1e4 * z)}, "tanh", math.inf),  # its ties make it another classifier
    "softmax": ({"after": lambda z: (20 * z).softmax(1)}, "softmax", 1.01),
}


@pytest.mark.filterwarnings("ignore::deepfool.classifier.ProbabilityWarning")
@pytest.mark.parametrize("mask", REPAIRED)
@pytest.mark.parametrize("p", [2, math.inf])
def test_masks_are_seen_through_and_named(mask, p):
    inner, x = models.load("fc500-mnist"), datasets.load("mnist-sample").batch(range(24))
    how, word, most = REPAIRED[mask]
    masked = Masked(inner, **how)
    bare, found = smallest(inner, x, p=p, bounds=(0, 1)), smallest(masked, x, p=p, bounds=(0, 1))
    assert found.fooled.all()
    assert (masked(found.x).argmax(1) != found.label).all()  # checked on the true model
    assert (found.evidence == Evidence.REPAIRED).all()
    assert all(word in why for why in found.reason)
    assert (found.norm / bare.norm).mean() < most


@pytest.mark.parametrize("hide", [NoGradient.apply, torch.detach])
def test_dead_gradients_lead_to_the_scores(hide):
    inner, x = models.load("fc500-mnist"), datasets.load("mnist-sample").batch(range(12))
    masked = Masked(inner, before=hide)
    bare = smallest(inner, x, p=math.inf, bounds=(0, 1))
    found = smallest(masked, x, p=math.inf, bounds=(0, 1))
    assert found.fooled.all()
    assert (masked(found.x).argmax(1) != found.label).all()
    assert (found.evidence == Evidence.SCORES).all()
    assert all("scores alone" in why for why in found.reason)
    assert (found.norm / bare.norm).mean() < 1.3


def test_where_even_the_scores_say_nothing_decisions_do():
    inner, x = models.load("fc500-mnist"), datasets.load("mnist-sample").batch(range(12))
    masked = Masked(inner, after=lambda z: 3.0 * torch.nn.functional.one_hot(z.argmax(1), 10))
    found = smallest(masked, x, bounds=(0, 1))
    assert found.fooled.float().mean() > 0.9
    assert (found.evidence[found.fooled] >= Evidence.SCORES).all()
    assert all(found.reason)
    assert (masked(found.x).argmax(1)[found.fooled] != found.label[found.fooled]).all()


class Sleeper(nn.Module):
    """Two scores, one of which sleeps: it has no gradient until a weighted mean of the features passes a threshold."""

    def __init__(self, d: int, threshold: float) -> None:
        super().__init__()
        weight = torch.linspace(1, 2, d) * torch.where(torch.arange(d) % 2 == 0, 1, -1)
        self.weight, self.threshold = weight / weight.abs().sum(), threshold

    def forward(self, x):
        awake = torch.relu(x @ self.weight - self.threshold)
        return torch.stack([torch.full_like(awake, 3), 60 * awake], 1)  # another label from 0.05 beyond it on


@pytest.mark.parametrize("p", NORMS)
def test_what_decisions_find_is_descended_from_where_it_has_gradients(p):
    """All samples around x_0 are asleep, so that only another sample of the batch says where to go."""
    net = Sleeper(64, 0.2)
    x = torch.full((2, 64), 0.5)
    x[1] += 0.5 * net.weight.sign()
    found = smallest(net, x, p=p, bounds=(0, 1))
    walls = (torch.zeros(1, 64), torch.ones(1, 64))
    truth, _ = project(x[:1], net.weight[None], torch.tensor([0.25]), *walls, p)
    assert found.norm[0] <= 1.005 * (truth - x[:1]).norm(p=p)
    assert "no gradient led from the input itself" in found.reason[0] or "decisions alone" in found.reason[0]


def test_weights_that_learn_behind_an_input_that_is_detached():
    net = nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 3))
    x = torch.rand(4, 6, generator=torch.Generator().manual_seed(0))
    found = smallest(lambda z: net(z.detach()), x, p=2)
    assert bool(found.fooled.all())


def test_what_it_cannot_do_is_said(fixed_random_stream):
    model, x = mlp((6, 16, 5), nn.Tanh), torch.rand(3, 6, dtype=torch.float64)
    with pytest.raises(InputError, match="p = 0, 1, 2 and inf, got 3"):
        smallest(model, x, p=3)
    with pytest.raises(InputError, match="budget must be a whole number >= 10"):
        smallest(model, x, budget=3)
    constant = smallest(lambda v: v[:, :2] * 0 + torch.tensor([2.0, 0.0]).double(), x)
    assert (constant.status == Status.STUCK).all()
    assert "raise the budget" in constant.reason[0]
    assert len(smallest(model, x[:0])) == 0


def test_no_more_classes_than_were_asked_for():
    model, x = models.load("fc500-mnist"), datasets.load("mnist-sample").batch(range(0, 1000, 50))
    asked = []
    take = Tangent.difference_rows

    def note(tangent, classes, reference):
        asked.append(classes.shape[1])
        return take(tangent, classes, reference)

    with patch.object(Tangent, "difference_rows", note):
        smallest(model, x, bounds=(0, 1), candidates=2, budget=50)
    assert max(asked) == 2
