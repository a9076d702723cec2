"""Operations that hide gradients: the values stay as they are, to the bit; the gradients come back."""

import gc
import math
import warnings
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from deepfool.attacks.shared.task import prepare
from deepfool.classifier import Classifier, ProbabilityWarning
from deepfool.classifier.jacobian import Tangent, difference
from deepfool.classifier.unmasking import CUT_OFF, Unmasking, find_masks
from tests.oracles import mlp


def points(n=5, d=6, dtype=torch.float64, seed=0):
    return torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def slope(function, x):
    """The gradient of the sum of what the function returns, seen through."""
    x = x.clone().requires_grad_()
    with Unmasking() as mode:
        y = function(x)
    (g,) = torch.autograd.grad(y.sum(), x)
    return y.detach(), g, tuple(mode.roundings.met)


def bits(tensor):
    """Floating-point numbers as whole ones, so that -0.0 differs from 0.0."""
    return tensor.contiguous().view({8: torch.int64, 4: torch.int32, 2: torch.int16}[tensor.element_size()])


def in_place(change):
    def function(x):
        y = 1 * x
        change(y)
        return y

    return function


ROUNDINGS = {
    "round": lambda x: x.round(),
    "torch.round": torch.round,
    "by keyword": lambda x: torch.round(input=x),
    "special": torch.special.round,
    "decimals": lambda x: x.round(decimals=1),
    "floor": torch.floor,
    "ceil": lambda x: x.ceil(),
    "trunc": torch.trunc,
    "fix": torch.fix,
    "sign": lambda x: x.sign(),
    "round_": in_place(lambda y: y.round_()),
    "torch.floor_": in_place(torch.floor_),
    "of a view": in_place(lambda y: y[:, 1:].trunc_()),
}
QUOTIENTS = {
    "//": lambda x: x // 0.5,
    "floor_divide": lambda x: torch.floor_divide(x, 0.5),
    "div": lambda x: torch.div(x, 0.5, rounding_mode="trunc"),
    "method": lambda x: x.div(0.5, rounding_mode="floor"),
    "//=": in_place(lambda y: y.floor_divide_(0.5)),
    "div_": in_place(lambda y: y.div_(0.5, rounding_mode="floor")),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", [*ROUNDINGS, *QUOTIENTS])
def test_roundings_keep_their_values_and_pass_gradients_on(name, dtype):
    function, expected = (ROUNDINGS[name], 1.0) if name in ROUNDINGS else (QUOTIENTS[name], 2.0)
    x = torch.cat([3 * points(dtype=dtype), torch.tensor([[-0.2, 0.0, -0.0, 0.5, 1.5, 1e4]], dtype=dtype)])
    y, g, met = slope(function, x)
    assert torch.equal(bits(y), bits(function(x.clone())))
    assert y.dtype == dtype
    assert (g == expected).all()
    assert len(met) == 1
    assert met[0].startswith("rounding (")


def test_a_number_divided_by_the_input():
    y, g, _ = slope(lambda x: 7 // x, points() + 10)
    assert torch.equal(y, 7 // (points() + 10))
    torch.testing.assert_close(g, -7 / (points() + 10) ** 2)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * 255).to(torch.uint8).float() / 255,
        lambda x: (x * 255).byte() / 255,
        lambda x: (255 * x).int().clamp(0, 255).to(torch.int64).view(-1, 6).to(x.dtype) / 255.0,
        lambda x: 0.5 * (x * 510).long() / 255,
    ],
)
def test_whole_numbers_and_back(function):
    x = torch.rand(5, 6, generator=torch.Generator().manual_seed(1))
    y, g, met = slope(function, x)
    assert torch.equal(y, function(x))
    torch.testing.assert_close(g, torch.ones_like(g))
    assert met == ("rounding (to whole numbers)",)


def test_a_leaf_that_is_rounded_in_place_is_still_an_error():
    with pytest.raises(RuntimeError, match="leaf"):
        slope(lambda x: x.round_(), points())


def test_what_does_not_come_from_the_input_is_no_mask():
    weights = points(6, 4).round()

    def model(x):
        scale = torch.floor(torch.tensor(3.7)) // 2
        with torch.no_grad():
            x.round()
        return x @ weights.sign() * scale

    assert find_masks(Classifier(model), points()) == ()


ENDINGS = {
    "softmax": (nn.Softmax(dim=1), lambda z: F.softmax(z, 1), lambda z: z.softmax(-1), torch.nn.Softmax(-1)),
    "log_softmax": (nn.LogSoftmax(dim=1), lambda z: F.log_softmax(z, dim=-1), lambda z: torch.log_softmax(z, 1)),
    "sigmoid": (nn.Sigmoid(), torch.sigmoid, F.sigmoid, torch.special.expit, lambda z: (1 * z).sigmoid_()),
    "logsigmoid": (nn.LogSigmoid(), F.logsigmoid),
    "tanh": (nn.Tanh(), torch.tanh, lambda z: (1 * z).tanh_(), lambda z: torch.tanh(input=z)),
}
CASES = [(name, i) for name, made in ENDINGS.items() for i in range(len(made))]


def ending(name, i, body=None):
    """A network that ends like this, and the network before."""
    body = mlp((6, 9, 4), nn.Tanh) if body is None else body
    last = ENDINGS[name][i]
    return (nn.Sequential(body, last) if isinstance(last, nn.Module) else lambda x: last(body(x))), body


@pytest.mark.parametrize(("name", "i"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_guide_is_read_before_the_end(name, i, dtype):
    model, body = ending(name, i, mlp((6, 9, 4), nn.Tanh).to(dtype))
    x, seeds = points(dtype=dtype), difference(torch.zeros(5, 4, dtype=dtype), torch.arange(5) % 3, torch.arange(5) % 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ProbabilityWarning)
        f = Classifier(model)
        assert find_masks(f, x) == (f"{name} at the end",)
        plain, tangent = Tangent(f, x), Tangent(f, x, unmask=True)
    assert torch.equal(tangent.scores, plain.scores)
    assert plain.guide is plain.scores
    torch.testing.assert_close(tangent.guide, body(x).detach())
    torch.testing.assert_close(tangent.row(seeds), Tangent(Classifier(body, outputs="logits"), x).row(seeds))


AFTER = {
    "scaled": lambda p: 3 * p / 2 - 1 + torch.tensor(0.5),
    "logarithm": lambda p: torch.log(p + 1e-9),
    "clipped": lambda p: p.clamp(1e-6, 1 - 1e-6),
    "rounded": lambda p: p.round(decimals=2),
    "reshaped": lambda p: p[:, :, None].squeeze(-1).reshape(len(p), -1).contiguous(),
    "converted": lambda p: p.to(torch.float32).double(),
    "in a dict": lambda p: {"logits": p, "loss": p.sum()},
    "twice": lambda p: p.softmax(1),
}


@pytest.mark.parametrize("name", AFTER)
def test_what_keeps_the_order_may_follow(name):
    body = mlp((6, 9, 4), nn.Tanh)
    f = Classifier(lambda x: AFTER[name](body(x).softmax(1)), outputs="logits")
    tangent = Tangent(f, points(), unmask=True)
    torch.testing.assert_close(tangent.guide, body(points()).detach())
    assert find_masks(f, points())[-1] == "softmax at the end"


@pytest.mark.parametrize(
    "after",
    [
        lambda p: -p,
        lambda p: 1 - p,
        lambda p: p * torch.arange(4),
        lambda p: p @ torch.eye(4).to(p),
        lambda p: p + p**2,
    ],
)
def test_what_may_change_the_order_ends_it(after):
    body = mlp((6, 9, 4), nn.Tanh)
    f = Classifier(lambda x: after(body(x).tanh()), outputs="logits")
    tangent = Tangent(f, points(), unmask=True)
    assert tangent.guide is tangent.scores
    assert find_masks(f, points()) == ()


def test_a_softmax_over_samples_is_no_ending():
    assert find_masks(Classifier(lambda x: x.softmax(0)), points()) == ()


def test_an_output_changed_in_place_is_no_ending():
    assert find_masks(Classifier(lambda x: x.tanh().mul_(-1)), points()) == ()


@pytest.mark.parametrize(
    ("last", "threshold", "outputs", "cut"),
    [
        (nn.Sigmoid(), None, "probabilities", 0.0),
        (nn.Sigmoid(), 0.8, "auto", math.log(4)),
        (torch.sigmoid, 0.8, "logits", math.log(4)),
        (lambda z: torch.sigmoid(z)[:, 0], 0.8, "logits", math.log(4)),
        (lambda z: (torch.tanh(z) + 1) / 2, 0.6, "logits", math.atanh(0.2)),
        (nn.Tanh(), None, "auto", 0.0),
        (F.logsigmoid, -0.5, "logits", -math.log(math.expm1(0.5))),
    ],
)
def test_a_single_score(last, threshold, outputs, cut):
    body = mlp((6, 9, 1), nn.Tanh)
    model = nn.Sequential(body, last) if isinstance(last, nn.Module) else lambda x: last(body(x))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ProbabilityWarning)
        tangent = Tangent(Classifier(model, threshold=threshold, outputs=outputs), points(), unmask=True)
    expected = torch.cat([torch.zeros(5, 1), body(points()).detach() - cut], 1)
    torch.testing.assert_close(tangent.guide, expected.to(tangent.guide))
    assert torch.equal(tangent.guide.argmax(1), tangent.scores.argmax(1))


def test_a_threshold_that_no_score_crosses_leaves_all_as_it_is():
    f = Classifier(lambda x: torch.sigmoid(x[:, :1]), outputs="logits")  # always above 0
    tangent = Tangent(f, points(), unmask=True)
    assert tangent.guide is tangent.scores


class Nested(nn.Module):
    """Rounded inputs, a rounded layer deep inside, and a saturated end."""

    def __init__(self):
        super().__init__()
        self.first, self.second = mlp((6, 9, 8), nn.Tanh), nn.Sequential(mlp((8, 9, 4), nn.ReLU), nn.Softmax(1))

    def forward(self, x):
        return {"logits": self.second(torch.floor(self.first((x * 7).round() / 7) * 10) / 10)}


def test_masks_are_named_in_order():
    f = Classifier(Nested(), outputs="probabilities")
    names = ("rounding (round)", "rounding (floor)", "softmax at the end")
    assert find_masks(f, points()) == names
    tangent = Tangent(f, points(), hidden=True, unmask=True)
    slopes = tangent.relative_slopes(tangent.scores.argmax(1))
    assert slopes is not None
    assert slopes.isfinite().all()
    rows = torch.cat([w for _, w in tangent.difference_rows(torch.tensor([[1, 2]] * 5), torch.zeros(5).long())], 1)
    assert (rows != 0).any(2).all()


def test_half_precision():
    body = mlp((6, 9, 4), nn.Tanh).half()
    f = Classifier(lambda x: torch.tanh(20 * body((x * 7).round() / 7)))
    x = points(dtype=torch.float16)
    tangent = Tangent(f, x, unmask=True)
    assert torch.equal(tangent.scores, f(x).detach())
    assert tangent.guide.dtype == torch.float32
    assert (tangent.row(difference(tangent.guide, torch.ones(5).long(), torch.zeros(5).long())) != 0).any(1).all()


def test_inside_vmap_nothing_is_seen():
    f = Classifier(torch.vmap(lambda row: row.round()))
    assert find_masks(f, points()) == ()
    assert torch.equal(Tangent(f, points(), unmask=True).scores, points().round())


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_scripted_model_is_left_as_it_is():
    model = torch.jit.trace(ending("softmax", 0)[0], points(), check_trace=False)
    f = Classifier(model, outputs="probabilities")
    assert find_masks(f, points()) == ()
    tangent = Tangent(f, points(), unmask=True)
    assert tangent.guide is tangent.scores


def test_a_compiled_model_is_not_compiled_again():
    calls = []

    def count(graph, _):
        calls.append(graph)
        return graph.forward

    model = torch.compile(mlp((6, 9, 4), nn.Tanh), backend=count)
    f = Classifier(model, outputs="logits")
    Tangent(f, points())
    before = len(calls)
    assert find_masks(f, points()) == ()
    Tangent(f, points(), unmask=True)
    assert len(calls) == before


def test_scores_that_are_cut_off_have_a_name_and_no_slope():
    f = Classifier(lambda x: x.detach() * 2)
    assert find_masks(f, points()) == (CUT_OFF,)
    tangent = Tangent(f, points(), unmask=True)
    rows = [w for _, w in tangent.difference_rows(torch.tensor([[1, 2]] * 5), torch.zeros(5).long())]
    assert not torch.cat(rows).any()
    assert not tangent.row(torch.ones(5, 6, dtype=torch.float64)).any()


def test_nothing_is_kept_alive():
    kept = []

    def model(x):
        kept.append(weakref.ref(y := (x * 7).round()))
        return torch.tanh(y) * 2

    tangent = Tangent(Classifier(model), points(), unmask=True)
    assert tangent.guide is not tangent.scores
    del tangent
    gc.collect()
    assert kept[0]() is None


def test_the_counted_model_follows_the_guide():
    body = mlp((6, 9, 4), nn.Tanh)
    x = points()
    y = x + 0.1
    with prepare(lambda v: torch.tanh(30 * body(v)), x, p=2) as task:
        plain = task.model.gradient(task.rows, y)
        z, guide, w = task.model.guided_gradient(task.rows, y)
        assert guide is z
        assert torch.equal(z, plain[0])
        assert torch.equal(w, plain[1])
        tolerance = task.model.rounding.tolerance.clone()
        task.model.unmask(find_masks(task.model.f, task.asked.like))
        assert task.model.masks == ("tanh at the end",)
        spent = task.model.spent(task.rows)
        z, guide, w = task.model.guided_gradient(task.rows, y)
        assert (task.model.spent(task.rows) == spent + 2).all()
        assert torch.equal(z, plain[0])
        torch.testing.assert_close(guide, 30 * body(y).detach())
        assert (w != 0).any(1).all()
        torch.testing.assert_close(task.model.linearise_inputs(task.rows).guide, 30 * body(x).detach())
        # What may be rounding is judged by the scores, which are all below 1.
        assert (task.model.rounding.tolerance < 1e3 * tolerance).all()


def test_the_margin_of_the_guide_is_chosen_by_the_guide():
    """Where the scores are saturated and tie, the guide still says which class is the rival."""
    scale = torch.tensor([[100.0, 50.0, 80.0, 1.0, 1.0, 1.0]], dtype=torch.float64)
    x = torch.ones(1, 6, dtype=torch.float64)
    with prepare(lambda v: torch.tanh(v * scale), x, p=2) as task:
        task.model.unmask(("tanh at the end",))
        _, guide, w = task.model.guided_gradient(task.rows, x)
        rival = guide.scatter(1, task.asked.label[:, None], -math.inf).argmax(1)
        assert rival.item() == 2
        assert w[0, 2].item() == pytest.approx(80)
