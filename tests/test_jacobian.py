import gc
import weakref

import pytest
import torch
from torch import nn

from deepfool.classifier import Classifier, jacobian
from deepfool.classifier.jacobian import Tangent, cross_entropy, difference
from deepfool.errors import ModelError
from tests.oracles import mlp


def gather_rows(f, x, classes, reference):
    return torch.cat([rows for _, rows in Tangent(f, x).difference_rows(classes, reference)], 1)


def expected_rows(model, x, classes, reference):
    whole = torch.stack([torch.autograd.functional.jacobian(lambda v: model(v[None])[0], sample) for sample in x])
    n = torch.arange(len(x))
    return whole[n[:, None], classes] - whole[n, reference][:, None]


class NoBatchingRule(torch.autograd.Function):
    """Squares its input, with a detour through NumPy on the way back that no batched backward pass can take."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * torch.from_numpy(grad.numpy())


class Unbatchable(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(NoBatchingRule.apply(x))


@pytest.fixture
def case():
    model = mlp((6, 9, 5), nn.Tanh)
    x = torch.randn(4, 6, dtype=torch.float64)
    classes = torch.tensor([[0, 3], [1, 2], [4, 3], [0, 1]])
    return model, x, classes, torch.tensor([1, 0, 2, 3])


def test_rows_are_differences_of_gradients(case):
    model, x, classes, reference = case
    torch.testing.assert_close(gather_rows(Classifier(model), x, classes, reference), expected_rows(*case))


@pytest.mark.parametrize("budget", [1, 3000, 10**9])
def test_chunks_change_nothing(case, budget):
    model, x, classes, reference = case
    f = Classifier(model, memory_budget=budget)
    torch.testing.assert_close(gather_rows(f, x, classes, reference), expected_rows(*case))
    assert Tangent(f, x).rows_at_once(2) == (2 if budget > 1 else 1)


def test_an_operator_without_a_batching_rule_falls_back_to_single_rows(case):
    model, x, classes, reference = case
    f = Classifier(Unbatchable(model))
    rows = gather_rows(f, x, classes, reference)
    assert not f.batched_rows
    torch.testing.assert_close(rows, expected_rows(f.model, x, classes, reference))


@pytest.mark.parametrize(("limit", "alone"), [(jacobian.ALONE, 0), (1, 2)])
def test_large_rows_are_taken_one_after_another(case, monkeypatch, limit, alone):
    model, x, classes, reference = case
    single, passes = Tangent._differentiate, []

    def counted(tangent, seed, *, keep):
        passes.append(keep)
        return single(tangent, seed, keep=keep)

    monkeypatch.setattr(jacobian, "ALONE", limit)
    monkeypatch.setattr(Tangent, "_differentiate", counted)
    f = Classifier(model)
    torch.testing.assert_close(gather_rows(f, x, classes, reference), expected_rows(*case))
    assert len(passes) == alone
    assert f.batched_rows


def test_batched_rows_are_used_where_they_can_be(case):
    model, x, classes, reference = case
    f = Classifier(model)
    gather_rows(f, x, classes, reference)
    assert f.batched_rows


def test_memory_is_bounded_whatever_the_number_of_classes():
    """The rows of 1000 classes at 224 pixels would take 600 MB a sample; a chunk keeps to its budget."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 1000)
    )
    f = Classifier(model, memory_budget=64 * 2**20)
    x = torch.rand(1, 3, 224, 224)
    tangent = Tangent(f, x)
    largest = 0
    for _, rows in tangent.difference_rows(torch.arange(1, 1000)[None], torch.tensor([0])):
        largest = max(largest, rows.numel() * rows.element_size())
    assert 0 < largest <= 64 * 2**20


def test_scores_cut_from_the_input_are_reported():
    with pytest.raises(ModelError, match="differentiate"):
        Tangent(Classifier(lambda x: x.detach() * 2), torch.rand(2, 3))


def test_one_row_of_any_combination(case):
    model, x = case[0], case[1]
    seeds = torch.randn(len(x), model(x).shape[1], dtype=x.dtype)
    y = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad((model(y) * seeds).sum(), y)
    torch.testing.assert_close(Tangent(Classifier(model), x).row(seeds), expected.flatten(1))


def test_the_seeds_of_the_cross_entropy_are_its_gradient():
    z = (3 * torch.randn(30, 7, dtype=torch.float64)).requires_grad_()
    y = torch.arange(30) % 7
    loss, weight, direction = cross_entropy(z, y)
    expected = nn.functional.cross_entropy(z, y, reduction="none")
    torch.testing.assert_close(loss, expected)
    (g,) = torch.autograd.grad(expected.sum(), z)
    torch.testing.assert_close(weight[:, None] * direction, g)


def test_the_direction_of_the_cross_entropy_survives_saturation():
    z = torch.tensor([[500.0, 100.0, 99.0]])
    _, weight, direction = cross_entropy(z, torch.tensor([0]))
    assert weight.item() == 0
    torch.testing.assert_close(direction, torch.tensor([[-1.0, 0.7311, 0.2689]]), rtol=1e-3, atol=0)


def test_a_difference_of_a_class_with_itself_is_nothing():
    assert (
        difference(torch.rand(2, 3), torch.tensor([1, 2]), torch.tensor([1, 0]))
        == torch.tensor([[0.0] * 3, [-1, 0, 1]])
    ).all()


def test_inputs_of_a_single_number():
    f = Classifier(lambda x: torch.stack([x, 2 * x, 0 * x], 1))
    rows = [
        w
        for _, w in Tangent(f, torch.tensor([1.0, 2.0])).difference_rows(
            torch.tensor([[1, 2]] * 2), torch.zeros(2).long()
        )
    ]
    torch.testing.assert_close(torch.cat(rows, 1), torch.tensor([[[1.0], [-1.0]]] * 2))


def test_the_graph_of_the_first_pass_is_freed():
    """The first pass of a classifier measures its activations; it must not keep them."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
    kept = []
    model[1].register_forward_hook(lambda _, __, output: kept.append(weakref.ref(output)))
    tangent = Tangent(Classifier(model), torch.rand(5, 4))
    list(tangent.difference_rows(torch.tensor([[1, 2]] * 5), torch.zeros(5, dtype=torch.long)))
    del tangent
    gc.collect()
    assert kept[0]() is None
