"""What must hold for every attack: on classifiers with a known answer, and on any other."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import deepfool as package
from deepfool import Classifier, Status, ddn, deepfool, fab, fgsm, fmn, lbfgs, superdeepfool
from deepfool.attacks.shared.registry import find_attack, name_attack, takes
from deepfool.errors import InputError
from deepfool.norms import norm
from tests.attacks.test_border import Poisoned, break_the_gradient
from tests.oracles import affine_case, boxed_distance, free_distances, mlp, score_differences

INF = math.inf
QUICK = {
    "deepfool": partial(deepfool, tighten=True),
    "superdeepfool": superdeepfool,
    "ddn": partial(ddn, steps=30),
    "fmn-1": partial(fmn, p=1, steps=30),
    "fmn-2": partial(fmn, p=2, steps=30),
    "fmn-inf": partial(fmn, p=INF, steps=30),
    "fab-1": partial(fab, p=1, steps=15),
    "fab-2": partial(fab, p=2, steps=15),
    "fab-inf": partial(fab, p=INF, steps=15),
    "fab-one-by-one": partial(fab, steps=8, one_by_one=3),
    "lbfgs": partial(lbfgs, max_iter=10, brackets=6, bisections=2, candidates=2),
    "fgsm": partial(fgsm, eps=0.4),
}
every_attack = pytest.mark.parametrize("attack", QUICK.values(), ids=QUICK)
boxes = pytest.mark.parametrize("bounds", [None, (0.0, 1.0)])


def exact_distances(model, x, p, bounds):
    if bounds:
        found = [boxed_distance(model, v.numpy(), p, *bounds) for v in x]
    else:
        found = [free_distances(*score_differences(model, v.numpy())[1:], p).min() for v in x]
    return torch.tensor(found, dtype=torch.float64)


def before_rounding_decides(attack):
    """A descent walks along the boundary, where rounding can decide what is fooled: it is compared for a few steps."""
    return partial(attack, steps=6) if isinstance(attack, partial) and attack.func in (ddn, fmn) else attack


def network(seed=0, n=12, classes=5, kind=nn.Tanh, dtype=torch.float64):
    model = mlp((6, 16, 12, classes), kind, seed, gain=2.5).to(dtype)  # enough for several classes within reach
    return model, torch.rand(n, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


@boxes
@pytest.mark.parametrize("p", [1, 2, INF])
@pytest.mark.parametrize("seed", [3, 11])
def test_newton_like_attacks_are_exact_on_affine_classifiers(p, bounds, seed):
    model, x = affine_case(10, 24, 20, seed)
    exact = exact_distances(model, x, p, bounds)
    attacks = [partial(deepfool, p=p, tighten=True), partial(fab, p=p)] + ([superdeepfool] if p == 2 else [])
    for attack in attacks:
        result = attack(model, x, bounds=bounds)
        assert result.fooled.all()
        torch.testing.assert_close(result.norm, exact, rtol=1e-4, atol=0)
        assert (result.norm > exact * (1 - 1e-9)).all() or bounds  # the oracle in the box is good to 1e-6 or so


@boxes
@pytest.mark.parametrize("p", [1, 2, INF])
def test_descents_come_within_two_percent_on_affine_classifiers(p, bounds):
    """They start well beyond the boundary, so that what they gain is their own."""
    model, x = affine_case(10, 24, 20, seed=3)
    exact = exact_distances(model, x, p, bounds)
    start = deepfool(model, x, p=p, bounds=bounds, overshoot=2.0 if bounds and p >= 2 else 0.1)
    assert (start.norm > 1.05 * exact).any()
    attacks = [partial(fmn, p=p)] + ([partial(ddn, sharpness=100.0)] if p == 2 else [])
    for attack in attacks:
        result = attack(model, x, bounds=bounds, start=start)
        assert result.fooled.all()
        assert (result.norm / exact).max() < 1.02
        assert (result.norm / exact).min() > 1 - 1e-6


@boxes
def test_lbfgs_comes_within_two_percent_on_affine_classifiers(bounds):
    model, x = affine_case(6, 24, 6, seed=11)
    result = lbfgs(model, x, bounds=bounds, candidates=5, sharpness=30.0)
    ratio = result.norm / exact_distances(model, x, 2, bounds)
    assert ratio.max() < 1.02
    assert ratio.min() > 1 - 1e-6


@boxes
def test_descents_from_the_input_itself_fool_everyone_and_are_mostly_exact(bounds):
    """Away from the nearest class or at distances far from their first step they lose some: hence `start`."""
    model, x = affine_case(10, 24, 40, seed=3)
    for p in (1, 2, INF):
        exact = exact_distances(model, x, p, bounds)
        for attack in [partial(fmn, p=p)] + ([partial(ddn, sharpness=100.0)] if p == 2 else []):
            result = attack(model, x, bounds=bounds)
            assert result.fooled.all()
            assert (result.norm / exact).median() < 1.01


def test_soft_scores_mislead_the_cross_entropy_and_sharpness_mends_that():
    model, x = affine_case(10, 24, 20, seed=11)
    exact = exact_distances(model, x, 2, None)
    start = deepfool(model, x, overshoot=0.5)
    soft, sharp = (ddn(model, x, start=start, sharpness=s).norm / exact for s in (1.0, 100.0))
    assert soft.max() > 1.1
    assert sharp.max() < 1.02


@every_attack
@boxes
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_marked_fooled_is_fooled_in_any_batch(attack, bounds, dtype):
    model, x = network(1, n=24, dtype=dtype)
    result = attack(model, x, bounds=bounds)
    assert result.fooled.float().mean() > 0.6
    for size in (1, 7, 24):
        again = torch.cat([model(part) for part in result.x.split(size)]).argmax(1)
        assert (again[result.fooled] != result.label[result.fooled]).all()
        assert (again[result.fooled] == result.adv_label[result.fooled]).all()
    assert result.norm[~result.fooled].isinf().all()
    assert all(bool(reason) != fooled for reason, fooled in zip(result.reason, result.fooled.tolist(), strict=True))
    torch.testing.assert_close(norm(result.r, result.p)[result.fooled], result.norm[result.fooled])
    torch.testing.assert_close(x + result.r, result.x)
    if bounds:
        assert ((result.x >= 0) & (result.x <= 1)).all()


@every_attack
@boxes
def test_a_batch_equals_its_samples_one_by_one(attack, bounds):
    attack = before_rounding_decides(attack)
    model, x = network(2, n=6)
    together = attack(model, x, bounds=bounds)
    for i in range(len(x)):
        alone = attack(model, x[i : i + 1], bounds=bounds)
        assert alone.status[0] == together.status[i]
        torch.testing.assert_close(alone.r[0], together.r[i], rtol=1e-4, atol=1e-6)
        assert alone.forwards[0] == together.forwards[i]
        assert alone.backwards[0] == together.backwards[i]


class Counting(nn.Module):
    """A model that notes, by a mark in the last feature, how often each sample went through it, forth and back."""

    def __init__(self, inner, n):
        super().__init__()
        self.inner, self.forwards, self.backwards = inner, torch.zeros(n).long(), torch.zeros(n).long()

    def forward(self, x):
        who = x[:, -1].detach().round().long()
        self.forwards.index_add_(0, who, torch.ones_like(who))
        z = self.inner(x[:, :-1])
        if z.requires_grad:
            z.register_hook(lambda _: self.note(who))
        return z

    def note(self, who):
        self.backwards.index_add_(0, who, torch.ones_like(who))


@every_attack
@boxes
def test_the_passes_reported_are_those_that_the_model_saw(attack, bounds):
    inner, x = network(3, n=10)
    x = torch.cat([x, torch.arange(10.0, dtype=x.dtype)[:, None]], 1)
    box = None if bounds is None else (torch.tensor([0.0] * 7).double(), torch.tensor([1.0] * 6 + [9.0]).double())
    model = Counting(inner, 10)
    mask = torch.tensor([True] * 6 + [False])
    f = Classifier(model)
    f.batched_rows = False  # one backward pass per row, which the hook can count
    result = attack(f, x, bounds=box, mask=mask)
    assert torch.equal(result.forwards, model.forwards)
    assert torch.equal(result.backwards, model.backwards)
    assert (result.backwards > 0).all()


@every_attack
@boxes
def test_masked_features_stay(attack, bounds):
    model, x = network(4)
    mask = torch.tensor([True, False, True, False, True, True])
    result = attack(model, x, bounds=bounds, mask=mask)
    assert (result.r[:, ~mask] == 0).all()
    assert result.fooled.any()


@every_attack
@boxes
def test_targets_are_reached(attack, bounds):
    model, x = network(5)
    label = model(x).argmax(1)
    target = (label + 1) % 5
    result = attack(model, x, bounds=bounds, target=target)
    assert (model(result.x).argmax(1)[result.fooled] == target[result.fooled]).all()
    assert (result.adv_label[result.fooled] == target[result.fooled]).all()
    if attack is not QUICK["fgsm"]:
        assert result.fooled.float().mean() > (0.2 if bounds else 0.5)


@every_attack
def test_misclassified_samples_are_returned_untouched(attack):
    model, x = network(6, n=4)
    wrong = model(x).argmax(1)
    wrong[1] = (wrong[1] + 1) % 5
    result = attack(model, x, labels=wrong)
    assert result.status[1] == Status.MISCLASSIFIED
    assert result.norm[1] == 0
    assert torch.equal(result.x[1], x[1])
    assert result.backwards[1] == 0
    assert result.forwards[1] == 1
    assert not result.fooled[1]
    assert (result.status[torch.tensor([0, 2, 3])] != Status.MISCLASSIFIED).all()


@every_attack
@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda z, x, marked: z * torch.where(marked, math.nan, 1.0), "scores at the input"),
        (lambda z, x, marked: torch.where(marked, z.detach(), z), "zero"),
        (break_the_gradient, "not finite|NaN"),
    ],
)
def test_one_bad_sample_never_harms_the_others(attack, spoil, reason):
    attack = before_rounding_decides(attack)
    model = Poisoned(spoil)
    x = torch.rand(4, 4, dtype=torch.float64)
    clean = attack(model, x)
    x[2, 0] = 6.0
    result = attack(model, x)
    others = torch.tensor([0, 1, 3])
    torch.testing.assert_close(result.r[others], clean.r[others])
    assert torch.equal(result.status[others], clean.status[others])
    assert result.status[2] == Status.STUCK
    assert result.norm[2] == INF
    assert result.r[2].isfinite().all()
    assert any(part in result.reason[2] for part in reason.split("|"))


@every_attack
def test_what_cannot_be_fooled_is_exhausted_or_stuck(attack):
    result = attack(lambda x: torch.stack([1 + x[:, 0] ** 2, 0 * x[:, 0]], 1), torch.tensor([[0.7], [1.2]]))
    assert ((result.status == Status.EXHAUSTED) | (result.status == Status.STUCK)).all()
    assert result.norm.isinf().all()
    assert all(result.reason)


@every_attack
def test_an_empty_batch_gives_an_empty_result(attack):
    result = attack(lambda _: pytest.fail("the model must not be called"), torch.rand(0, 3, 8, 8))
    assert len(result) == 0
    assert result.x.shape == (0, 3, 8, 8)


@every_attack
@pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 3, 2)])
def test_every_shape(attack, shape):
    model, x = network(7, n=4)
    shaped = attack(nn.Sequential(nn.Flatten(), model), x.view(4, *shape))
    assert shaped.x.shape == (4, *shape)
    torch.testing.assert_close(shaped.r.flatten(1), attack(model, x).r)


@every_attack
def test_inputs_of_a_single_number(attack):
    result = attack(lambda x: torch.stack([2 * x, 1 - x], 1), torch.tensor([0.7, 0.2]))
    assert result.fooled.all()
    assert result.x.shape == (2,)


@every_attack
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(attack, dtype):
    model, x = network(8, n=8, dtype=dtype)
    result = attack(model, x, bounds=(0, 1))
    assert result.x.dtype == dtype
    again = model(result.x).argmax(1)
    assert (again[result.fooled] == result.adv_label[result.fooled]).all()
    assert (again[result.fooled] != result.label[result.fooled]).all()
    assert result.fooled.float().mean() >= 0.5


@every_attack
def test_single_scores(attack):
    model = mlp((6, 16, 1), nn.Tanh, gain=2.5)
    _, x = network(9, n=6)
    result = attack(model, x)
    assert (model(result.x)[:, 0] > 0).long()[result.fooled].equal(result.adv_label[result.fooled])
    assert result.fooled.any()


@every_attack
def test_the_model_is_given_back_as_it_was(attack):
    model, x = network(10, n=3)
    model.train()
    weights = [w.clone() for w in model.parameters()]
    x_before, random = x.clone(), torch.get_rng_state()
    attack(model, x)
    assert model.training
    assert all(w.requires_grad and w.grad is None for w in model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))
    assert torch.equal(x, x_before)
    assert torch.equal(random, torch.get_rng_state())


@given(st.integers(0, 10**6), st.sampled_from([nn.ReLU, nn.Tanh]), st.sampled_from([None, (0.0, 1.0)]))
@settings(max_examples=6)
def test_the_stronger_attacks_beat_deepfool_on_average(seed, kind, bounds):
    model, x = network(seed, n=16, kind=kind)
    for p in (2.0, INF):
        plain = deepfool(model, x, p=p, bounds=bounds)
        rivals = [fmn(model, x, p=p, bounds=bounds, start=plain), fab(model, x, p=p, bounds=bounds)]
        if p == 2:
            rivals += [superdeepfool(model, x, bounds=bounds), ddn(model, x, bounds=bounds, start=plain)]
        for rival in rivals:
            both = plain.fooled & rival.fooled
            assert rival.norm[both].mean() <= plain.norm[both].mean() * 1.001


@pytest.mark.parametrize("attack", [ddn, fmn], ids=["ddn", "fmn"])
def test_never_larger_than_the_start(attack):
    model, x = network(11, n=30)
    start = deepfool(model, x, bounds=(0, 1))
    for given_ in (start, start.x):
        result = attack(model, x, bounds=(0, 1), start=given_, steps=20)
        # x_0 + (start - x_0) is start but for the last bit.
        assert (result.norm[start.fooled] <= start.norm[start.fooled] * (1 + 1e-12)).all()
        assert result.norm[start.fooled].mean() < start.norm[start.fooled].mean()


def test_a_start_keeps_to_the_mask():
    model, x = network(11)
    mask = torch.tensor([True, True, True, True, True, False])
    result = ddn(model, x, mask=mask, start=deepfool(model, x), steps=10)
    assert (result.r[:, ~mask] == 0).all()


def test_fab_one_by_one_is_at_least_as_small_as_its_best_class():
    model, x = network(12, n=20)
    together = fab(model, x, one_by_one=4, steps=20, tighten=False)
    label = model(x).argmax(1)
    for shift in range(1, 5):
        alone = fab(model, x, target=(label + shift) % 5, steps=20, tighten=False)
        assert (together.norm <= alone.norm * (1 + 1e-9))[alone.fooled].float().mean() > 0.9
    few = fab(model, x, candidates=2, steps=5, tighten=False)
    assert (few.backwards == 2 * few.iterations).all()


def test_lbfgs_is_never_larger_than_fgsm_and_keeps_to_the_box():
    model, x = network(13, n=6, kind=nn.ReLU)
    found = lbfgs(model, x, bounds=(0, 1), candidates=4)
    assert ((found.x >= 0) & (found.x <= 1)).all()
    for eps in (0.05, 0.1, 0.2, 0.4):
        step = fgsm(model, x, eps=eps, bounds=(0, 1))
        assert (norm(step.r, 2)[step.fooled] >= found.norm[step.fooled]).all()
    assert found.fooled.float().mean() > 0.7


def test_more_classes_never_make_lbfgs_larger():
    model, x = network(14, n=6)
    one, four = lbfgs(model, x, candidates=1), lbfgs(model, x, candidates=4)
    assert (four.norm <= one.norm).all()
    assert (four.backwards > one.backwards).all()


@pytest.mark.parametrize(
    ("attack", "knobs", "message"),
    [
        (fmn, {"p": 3}, "fmn works in the norms p = 1, 2 and inf"),
        (fab, {"p": 1.5}, "fab works in the norms"),
        (ddn, {"steps": 0}, "steps must be a whole number >= 1"),
        (ddn, {"gamma": 1.5}, "gamma must be a number between 0 and 1"),
        (ddn, {"first_norm": 0}, "first_norm must be"),
        (ddn, {"sharpness": -1}, "sharpness must be"),
        (ddn, {"start": torch.rand(3, 3)}, r"start must hold a point for each input, \(2, 6\), got \(3, 3\)"),
        (fmn, {"start": torch.full((2, 6), math.nan)}, "start must be finite"),
        (fmn, {"step_size": 0}, "step_size must be"),
        (fab, {"one_by_one": 0}, "one_by_one must be"),
        (fab, {"beta": 1.0}, "beta must be"),
        (fab, {"eta": 0.5}, "eta must be"),
        (superdeepfool, {"overshoot": -1}, "overshoot must be"),
        (superdeepfool, {"turns": 0}, "turns must be"),
        (lbfgs, {"candidates": 0}, "candidates must be"),
        (lbfgs, {"bisections": -1}, "bisections must be"),
        (fgsm, {"eps": -1.0}, "eps must be a number between 0 and inf"),
        (superdeepfool, {"bounds": (0, 0.1)}, "x must lie in"),
    ],
)
def test_bad_knobs_are_refused(attack, knobs, message):
    model, x = network(n=2)
    with pytest.raises(InputError, match=message):
        attack(model, x, **knobs)


@pytest.mark.parametrize("name", ["superdeepfool", "ddn", "fmn", "fab", "fgsm", "lbfgs"])
def test_every_attack_has_a_name(name):
    assert name_attack(find_attack(name)) == name
    assert find_attack(name) is getattr(package, name)
    assert takes(find_attack(name), "labels")
