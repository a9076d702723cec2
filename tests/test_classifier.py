import types
import warnings

import pytest
import torch
from torch import nn

from deepfool import Status, deepfool
from deepfool.classifier import Classifier, ProbabilityWarning
from deepfool.errors import InputError, ModelError
from tests.oracles import mlp


class Wrapped(nn.Module):
    def __init__(self, inner, wrap):
        super().__init__()
        self.inner, self.wrap = inner, wrap

    def forward(self, x):
        return self.wrap(self.inner(x))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda z: types.SimpleNamespace(logits=z, loss=None),
        lambda z: (z, "hidden"),
        lambda z: [z],
        lambda z: {"logits": z, "hidden": z * 2},
        lambda z: {"only": z},
    ],
)
def test_outputs_that_hold_the_scores_are_understood(wrap):
    inner, x = mlp((3, 5, 4), nn.Tanh), torch.randn(6, 3, dtype=torch.float64)
    torch.testing.assert_close(deepfool(Wrapped(inner, wrap), x).r, deepfool(inner, x).r)


@pytest.mark.parametrize("shape", ["(n,)", "(n, 1)"])
@pytest.mark.parametrize("threshold", [None, 0.1])
def test_a_single_score_is_algorithm_1(shape, threshold):
    inner, x = mlp((3, 5, 1), nn.Tanh), torch.randn(6, 3, dtype=torch.float64)
    model = inner if shape == "(n, 1)" else lambda v: inner(v)[:, 0]
    result = deepfool(model, x, threshold=threshold)
    cut = threshold or 0.0
    assert result.label.tolist() == (inner(x)[:, 0] > cut).long().tolist()
    assert (result.fooled & ((inner(result.x)[:, 0] > cut).long() == 1 - result.label)).all()
    assert (result.backwards == result.iterations).all()  # one row an iteration


def test_softmax_outputs_are_attacked_through_their_logarithm():
    inner, x = mlp((3, 5, 4), nn.Tanh), torch.randn(6, 3, dtype=torch.float64)
    with pytest.warns(ProbabilityWarning, match="softmax"):
        through = deepfool(nn.Sequential(inner, nn.Softmax(1)), x)
    torch.testing.assert_close(through.r, deepfool(inner, x).r, rtol=1e-6, atol=1e-9)


def test_sigmoid_outputs_are_attacked_through_their_log_odds():
    inner, x = mlp((3, 5, 1), nn.Tanh), torch.randn(6, 3, dtype=torch.float64)
    with pytest.warns(ProbabilityWarning, match="sigmoid"):
        through = deepfool(nn.Sequential(inner, nn.Sigmoid()), x)
    torch.testing.assert_close(through.r, deepfool(inner, x).r, rtol=1e-6, atol=1e-9)
    with pytest.warns(ProbabilityWarning):
        shifted = deepfool(nn.Sequential(inner, nn.Sigmoid()), x, threshold=0.8)
    cut = torch.logit(torch.tensor(0.8, dtype=torch.float64)).item()
    torch.testing.assert_close(shifted.r, deepfool(inner, x, threshold=cut).r, rtol=1e-5, atol=1e-7)


def test_what_the_user_says_about_probabilities_is_believed():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        z = Classifier(nn.Softmax(1), outputs="logits")(torch.zeros(1, 2))
    assert z.tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda x: torch.zeros(len(x), 2, 2), r"shape \(n, classes\).*got \(3, 2, 2\)"),
        (lambda x: torch.zeros(()), "got "),
        (lambda x: torch.zeros(5, 2), "5 rows of scores for a batch of 3"),
        (lambda x: torch.zeros(3, 0), "no class scores"),
        (lambda x: torch.zeros(3, 2).long(), "floating-point scores"),
        (lambda x: "cat", "got str"),
        (lambda x: {"a": x, "b": x}, "which entry"),
        (nn.Sequential(nn.Linear(4, 1), nn.Softmax(1)), "one class only"),
        (nn.Linear(9, 2), "the model raised RuntimeError.*shape"),
        (nn.Linear(4, 2).double(), "weights are torch.float64 and x is torch.float32"),
    ],
)
def test_outputs_that_are_no_scores_are_refused(model, message):
    with pytest.raises(ModelError, match=message):
        deepfool(model, torch.rand(3, 4))


def test_a_model_that_cannot_be_called_is_refused():
    with pytest.raises(InputError, match=r"nn\.Module or a function"):
        deepfool("resnet50", torch.rand(3, 4))


def busy_network() -> nn.Sequential:
    """Dropout, batch norm, a frozen layer, a hook, a gradient: all that an attack could disturb."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    net[0].weight.requires_grad_(False)
    net[4].eval()
    net[4].weight.grad = torch.ones_like(net[4].weight)
    net[2].register_forward_hook(lambda *_: None)
    return net


def snapshot(net):
    return (
        [m.training for m in net.modules()],
        [p.requires_grad for p in net.parameters()],
        [None if p.grad is None else p.grad.clone() for p in net.parameters()],
        {k: v.clone() for k, v in net.state_dict().items()},
        [len(m._forward_hooks) for m in net.modules()],
        torch.get_rng_state().clone(),
    )


def assert_same(a, b):
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        [assert_same(a[k], b[k]) for k in a]
    elif isinstance(a, (tuple, list)):
        assert len(a) == len(b)
        [assert_same(v, w) for v, w in zip(a, b, strict=True)]
    else:
        assert a == b


@pytest.mark.parametrize("failure", [None, KeyboardInterrupt, ValueError])
def test_the_model_is_left_as_it_was_found(failure):
    net, calls = busy_network(), [0]

    def interrupt(*_):
        calls[0] += 1
        assert not any(m.training for m in net.modules())
        torch.rand(3)  # a model may draw random numbers
        if failure and calls[0] == 3:
            raise failure("now")

    net.register_forward_pre_hook(interrupt)
    before = snapshot(net)
    if failure is None:
        deepfool(net, torch.randn(5, 4))
    else:
        with pytest.raises(KeyboardInterrupt if failure is KeyboardInterrupt else ModelError, match="now"):
            deepfool(net, torch.randn(5, 4, generator=torch.Generator().manual_seed(0)))
    after = snapshot(net)
    if failure is None:  # the test's own torch.randn moved the stream
        before, after = before[:-1], after[:-1]
    assert_same(before, after)


def test_random_streams_are_untouched():
    x, net = torch.randn(5, 4), busy_network()
    net.register_forward_pre_hook(lambda *_: torch.rand(7).sum() < 0 or None)  # draws at every pass
    before = torch.get_rng_state()
    deepfool(net, x)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
def test_attacks_work_where_gradients_are_switched_off(around):
    model = mlp((3, 5, 4), nn.Tanh)
    with around():
        x = torch.randn(6, 3, dtype=torch.float64)
        result = deepfool(model, x)
    assert (result.status == Status.FOOLED).all()


def test_x_is_not_modified_and_carries_no_graph():
    model, x = mlp((3, 5, 4), nn.Tanh), torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    before = x.detach().clone()
    result = deepfool(model, x)
    assert torch.equal(before, x)
    assert x.grad is None
    assert not result.x.requires_grad
    assert not result.r.requires_grad


def test_what_is_read_as_probabilities_does_not_depend_on_the_batch():
    """Logits that add up to 1 by chance, for one sample of a batch and for the sample alone."""
    model = nn.Linear(3, 2, bias=False)
    model.weight.data = torch.tensor([[0.7, 0.0, 2.0], [0.3, 0.0, -1.0]])
    x = torch.tensor([[1.0, 0.5, 0.0], [0.2, -0.4, 1.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(deepfool(model, x[:1]).norm, deepfool(model, x).norm[:1])
        assert Classifier(model)(x[:1]).tolist() == model(x[:1]).tolist()


def test_a_threshold_given_to_an_attack_is_not_lost_on_a_classifier():
    model, x = nn.Linear(3, 1), torch.rand(5, 3)
    f = Classifier(model)
    assert torch.equal(deepfool(f, x, threshold=0.9).label, (model(x)[:, 0] > 0.9).long())
    assert f.threshold is None
    found = deepfool(Classifier(model, threshold=0.9), x)
    assert torch.equal(found.r, deepfool(f, x, threshold=0.9).r)


def test_a_threshold_in_double_precision_is_cut_in_double_precision():
    torch.manual_seed(0)
    model, x = mlp((3, 8, 1), nn.Tanh), torch.randn(200, 3, dtype=torch.float64)
    model = nn.Sequential(model, nn.Sigmoid())
    with pytest.warns(ProbabilityWarning):
        found = deepfool(model, x, threshold=0.52, tighten=True)
    raised = found.fooled & (found.adv_label == 1)
    assert int(raised.sum()) > 20
    assert bool((model(found.x[raised])[:, 0] > 0.52).all())
    lowered = found.fooled & (found.adv_label == 0)
    assert bool((model(found.x[lowered])[:, 0] <= 0.52).all())


def test_buffers_that_a_model_changes_are_given_back_as_they_were():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(3, 2)
            self.register_buffer("calls", torch.zeros(()))
            self.register_buffer("last", torch.zeros(2))

        def forward(self, x):
            self.calls += 1
            self.last = self.net(x)[0].detach()
            return self.net(x)

    model = Counting()
    last = model.last
    deepfool(model, torch.rand(4, 3))
    assert model.calls.item() == 0
    assert model.last is last
    assert last.tolist() == [0, 0]


def test_threads_that_attack_one_model_leave_it_as_it_was():
    from concurrent.futures import ThreadPoolExecutor

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.Dropout(0.5), nn.ReLU(), nn.Linear(30, 4)).train()
    x = torch.randn(8, 20)
    expected = deepfool(model, x).norm
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: deepfool(model, x).norm, range(40)))
    assert all(layer.training for layer in model.modules())
    assert all(weight.requires_grad for weight in model.parameters())
    assert all(torch.equal(norm, expected) for norm in results)


def test_errors_in_the_backward_pass_name_the_model():
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x[:, :2] * 1

        @staticmethod
        def backward(ctx, g):
            raise RuntimeError("no way back")

    with pytest.raises(ModelError, match=r"backward pass.*no way back"):
        deepfool(Broken.apply, torch.rand(2, 3))


def test_weights_made_in_inference_mode_are_refused():
    with torch.inference_mode():
        model = nn.Linear(3, 2)
    with pytest.raises(ModelError, match=r"created in inference mode.*outside torch\.inference_mode"):
        with Classifier(model).frozen():
            pass
