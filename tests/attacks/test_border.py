"""Bad input gets a clear error; odd input is handled sample by sample."""

import math

import pytest
import torch
from torch import nn

from deepfool import Status, deepfool
from deepfool.errors import InputError
from tests.oracles import mlp


@pytest.fixture
def model():
    return mlp((4, 8, 3), nn.Tanh).float()


@pytest.mark.parametrize(
    ("x", "knobs", "message"),
    [
        (torch.ones(2, 4).long(), {}, r"floating-point.*int64.*x\.float\(\) / 255"),
        (torch.full((2, 4), math.nan), {}, r"finite.*2 rows \(0, 1\)"),
        (torch.tensor([[0.0] * 4, [math.inf] * 4]), {}, "finite.*row 1"),
        (torch.tensor(1.0), {}, "batch dimension"),
        ([[1.0, 2.0]], {}, "torch.Tensor, got list"),
        (torch.full((2, 4), 2.5), {"bounds": (0, 1)}, r"lie in \[0, 1\], got \[2.5, 2.5\].*normalisation inside"),
        (torch.rand(2, 4), {"bounds": (1, 0)}, "lowest <= highest"),
        (torch.rand(2, 4), {"bounds": 3}, "pair"),
        (torch.rand(2, 4), {"bounds": (torch.zeros(7), 1)}, r"broadcast to x's shape \(2, 4\), got \(7,\)"),
        (torch.rand(2, 4), {"p": 0.5}, r"p must be 0 or a number in \[1, inf\], got 0.5"),
        (torch.rand(2, 4), {"labels": [0]}, r"one entry per sample, \(2,\), got \(1,\)"),
        (torch.rand(2, 4), {"labels": [0, 3]}, r"lie in \[0, 2\] for 3 classes, got \[0, 3\]"),
        (torch.rand(2, 4), {"labels": [-1, 0]}, "lie in"),
        (torch.rand(2, 4), {"labels": torch.rand(2)}, "whole numbers"),
        (torch.rand(2, 4), {"target": 9}, "target must lie in"),
        (torch.rand(2, 4), {"mask": torch.ones(3)}, "mask must be"),
        (torch.rand(2, 4), {"max_iter": 0}, "max_iter must be a whole number >= 1"),
        (torch.rand(2, 4), {"candidates": 0}, "candidates must be"),
        (torch.rand(2, 4), {"candidates": "some"}, "candidates must be"),
        (torch.rand(2, 4), {"overshoot": -1.0}, "overshoot must be"),
    ],
)
def test_bad_input_is_refused(model, x, knobs, message):
    with pytest.raises(InputError, match=message):
        deepfool(model, x, **knobs)


def test_a_target_equal_to_the_prediction_is_refused(model):
    x = torch.rand(3, 4)
    with pytest.raises(InputError, match=r"target must differ.*3 rows"):
        deepfool(model, x, target=model(x).argmax(1))


def test_an_empty_batch_gives_an_empty_result():
    def never(_):
        raise AssertionError("the model must not be called")

    result = deepfool(never, torch.rand(0, 3, 8, 8))
    assert len(result) == 0
    assert result.x.shape == (0, 3, 8, 8)
    assert result.reason == ()


def test_misclassified_samples_are_returned_untouched(model):
    x = torch.rand(4, 4)
    label = model(x).argmax(1)
    wrong = label.clone()
    wrong[1] = (wrong[1] + 1) % 3
    result = deepfool(model, x, labels=wrong)
    assert result.status.tolist() == [0, Status.MISCLASSIFIED, 0, 0]
    assert result.norm[1] == 0
    assert torch.equal(result.x[1], x[1])
    assert result.backwards[1] == 0
    assert (result.fooled == torch.tensor([True, False, True, True])).all()


class Poisoned(nn.Module):
    """A good network whose answer is spoilt for inputs with a mark in the first feature."""

    def __init__(self, spoil):
        super().__init__()
        self.inner, self.spoil = mlp((4, 8, 3), nn.Tanh), spoil

    def forward(self, x):
        return self.spoil(self.inner(x), x, (x[:, :1] > 5).detach())


def break_the_gradient(z, x, marked):
    root = torch.where(marked, 0 * x[:, 1:2], x[:, 1:2] + 20).sqrt()  # the slope of a root is infinite at zero
    return z + root - root.detach()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda z, x, marked: z * torch.where(marked, math.nan, 1.0), "scores at the input"),
        (lambda z, x, marked: z * torch.where(marked, math.inf, 1.0), "scores at the input"),
        (lambda z, x, marked: torch.where(marked, z.detach(), z), "gradients are zero"),
        (break_the_gradient, "gradients are NaN"),
    ],
)
@pytest.mark.parametrize("bounds", [None, (-10.0, 10.0)])
def test_one_bad_sample_never_harms_the_others(spoil, reason, bounds):
    model = Poisoned(spoil)
    x = torch.rand(5, 4, dtype=torch.float64)
    clean = deepfool(model, x, bounds=bounds)
    x[2, 0] = 6.0
    result = deepfool(model, x, bounds=bounds)
    others = torch.tensor([0, 1, 3, 4])
    torch.testing.assert_close(result.r[others], clean.r[others])
    assert result.fooled[others].all()
    assert result.status[2] in (Status.STUCK, Status.EXHAUSTED)
    assert result.norm[2] == math.inf
    assert result.r[2].isfinite().all()
    assert reason in result.reason[2]


def test_exhausted_samples_say_so():
    result = deepfool(lambda x: torch.stack([1 + x[:, 0] ** 2, 0 * x[:, 0]], 1), torch.tensor([[0.7]]), max_iter=4)
    assert result.status.item() == Status.EXHAUSTED
    assert result.norm.item() == math.inf
    assert result.iterations.item() == 4
    assert "4 iterations" in result.reason[0]


def test_a_tie_is_a_boundary_at_distance_zero():
    model = nn.Linear(2, 2, bias=False)
    model.weight.data = torch.eye(2)
    result = deepfool(model, torch.tensor([[0.5, 0.5], [0.7, 0.7]]))
    assert result.norm[0] < 1e-3 or result.status[0] != Status.FOOLED


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("bounds", [None, (0.0, 1.0)])
def test_every_precision(dtype, bounds):
    model = mlp((4, 16, 3), nn.Tanh).to(dtype)
    x = torch.rand(12, 4).to(dtype)
    result = deepfool(model, x, bounds=bounds)
    assert result.x.dtype == dtype
    assert result.r.dtype == (dtype if dtype == torch.float64 else torch.float32)
    again = model(result.x).argmax(1)
    assert (again[result.fooled] == result.adv_label[result.fooled]).all()
    assert (result.adv_label != result.label)[result.fooled].all()
    assert result.fooled.float().mean() > 0.7
    torch.testing.assert_close((x.to(result.r.dtype) + result.r).to(dtype), result.x)


@pytest.mark.parametrize("shape", [(4,), (2, 2), (1, 2, 2), (4, 1, 1, 1)])
def test_every_shape(shape, model):
    x = torch.rand(6, 4)
    shaped = deepfool(nn.Sequential(nn.Flatten(), model), x.view(6, *shape))
    torch.testing.assert_close(shaped.r.flatten(1), deepfool(model, x).r)
    assert shaped.x.shape == (6, *shape)


def test_every_memory_layout():
    torch.manual_seed(3)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))
    seen = []
    net[0].register_forward_pre_hook(lambda _, args: seen.append(args[0].stride(1)))
    x = torch.rand(6, 3, 8, 8)
    plain = deepfool(net, x)
    seen.clear()
    last = deepfool(net, x.contiguous(memory_format=torch.channels_last))
    assert set(seen) == {1}  # the model saw channels last throughout
    odd = deepfool(net, torch.rand(8, 8, 3, 6).copy_(x.permute(3, 2, 1, 0)).permute(3, 2, 1, 0))
    for other in (last, odd):
        torch.testing.assert_close(other.r, plain.r, rtol=1e-4, atol=1e-6)


def test_bounds_per_feature(model):
    x = torch.full((3, 4), 0.5)
    lower, upper = torch.tensor([0.5, 0.0, 0.0, -3.0]), torch.tensor([0.5, 1.0, 9.0, 1.0])
    result = deepfool(model, x, bounds=(lower, upper))
    assert ((result.x >= lower) & (result.x <= upper)).all()
    assert (result.r[:, 0] == 0).all()


def test_the_result_says_what_happened(model):
    assert "3 fooled, median l2 norm" in repr(deepfool(model, torch.rand(3, 4)))


def test_finished_samples_cost_nothing_more(model):
    sizes = []
    model.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    result = deepfool(model, torch.rand(64, 4))
    assert sum(sizes) == result.forwards.sum() == 2 * result.iterations.sum()  # the first shares that of the prediction
    assert (result.backwards == 2 * result.iterations).all()
