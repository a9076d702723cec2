"""Models that answer otherwise when they are asked again are told apart from those that round."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

from deepfool import evaluate
from deepfool.metrics import summarize
from deepfool.models.sources import resolve
from deepfool.runs.consistency import InconsistentModelWarning, look_twice
from tests import nets


class Coupled(nn.Module):
    """Normalised by the statistics of the batch, whatever the mode."""

    def __init__(self):
        super().__init__()
        self.body = nets.small()

    def forward(self, x):
        return functional.batch_norm(self.body(x), None, None, training=True)


def coupled_images():
    normalise = nn.BatchNorm2d(4, track_running_stats=False)
    return nn.Sequential(nn.Conv2d(1, 4, 3), normalise, nn.Flatten(), nn.Linear(64, 3))


class Flickering(nn.Module):
    """Another answer each time, without a random number."""

    def __init__(self):
        super().__init__()
        self.body, self.calls = nets.small(), 0

    def forward(self, x):
        self.calls += 1
        return self.body(x) * (1 + 0.1 * (self.calls % 2))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("lenet-mnist", "float16"), ("lenet-mnist", "bfloat16"), ("lenet-mnist", "float32"),
        ("lenet-mnist", "float64"), ("nin-cifar10", "float32"),
    ],
)  # fmt: skip
def test_rounding_is_not_taken_for_noise(name, dtype):
    source = resolve(name)
    facts = look_twice(source.module, torch.rand(8, *source.input_shape), dtype=getattr(torch, dtype))
    assert facts["repeatable"]
    assert facts["independent"]


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_tolerance_follows_the_scores(dtype, scale):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 500), nn.ReLU(), nn.Linear(500, 500), nn.ReLU(), nn.Linear(500, 10))
    with torch.no_grad():
        model[-1].weight.mul_(scale)
        model[-1].bias.mul_(scale)
    facts = look_twice(model, torch.rand(8, 300), dtype=dtype)
    assert facts["repeatable"]
    assert facts["independent"]


@pytest.mark.parametrize("model", [nets.Noisy(1e-3), nets.Noisy(10.0), Flickering()])
def test_noise_is_seen(model):
    facts = look_twice(model, nets.points(8)[0])
    assert facts["repeatable"] is False
    assert facts["difference"] > 0


def test_a_model_that_depends_on_the_batch_is_seen():
    facts = look_twice(Coupled(), nets.points(8)[0])
    assert (facts["repeatable"], facts["independent"]) == (True, False)
    assert look_twice(coupled_images(), torch.rand(8, 1, 6, 6))["independent"] is False


def test_what_cannot_be_found_out_is_not_claimed():
    assert look_twice(nets.Narrow(0), nets.points(8)[0])["repeatable"] is None
    one = look_twice(nets.small(), nets.points(1)[0])
    assert (one["repeatable"], one["independent"]) == (True, None)


def test_a_look_leaves_the_model_and_the_random_stream_alone():
    model, noisy = Flickering().train(), nets.noisy()
    state = torch.random.get_rng_state()
    look_twice(model, nets.points(8)[0], dtype=torch.float64)
    look_twice(noisy, nets.points(8)[0])
    assert model.calls == 0
    assert model.training
    assert next(model.parameters()).dtype == torch.float32
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_run_notes_it_warns_once_and_tells_its_readers(tmp_path):
    with pytest.warns(InconsistentModelWarning, match="other scores for the same inputs") as seen:
        run = evaluate(nets.noisy(), nets.points(16), out=tmp_path / "noisy", batch_size=4)
    assert len(seen) == 1
    assert run.manifest["sessions"][0]["scores"]["repeatable"] is False
    assert "scores" not in run.identity
    assert sum("other scores for the same inputs" in each for each in summarize(run)["warnings"]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluate(nets.noisy(), nets.points(16), out=tmp_path / "noisy", batch_size=4)  # nothing is left to measure
    with pytest.warns(InconsistentModelWarning, match="depend on the others in its batch"):
        evaluate(coupled_images(), (torch.rand(8, 1, 6, 6), None), out=tmp_path / "coupled", batch_size=4, max_iter=3)


def test_a_healthy_model_is_not_warned_of(tmp_path):
    run = evaluate(nets.small(), nets.points(16), out=tmp_path / "run")
    scores = run.manifest["sessions"][0]["scores"]
    assert (scores["repeatable"], scores["independent"]) == (True, True)
    assert summarize(run)["warnings"] == []
