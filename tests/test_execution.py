"""How a model is run: layouts, torch.compile, memory. The answers must not depend on it."""

import shutil

import pytest
import torch
from torch import nn

from deepfool import Run, deepfool, evaluate
from deepfool.models import load
from deepfool.runs.execution import compile_model, keep_freed_memory, lay_out, prefers_channels_last


def needs_a_compiler(test):
    """torch.compile needs a C++ compiler, and warns of parts of itself."""
    test = pytest.mark.filterwarnings("ignore::DeprecationWarning")(test)
    return pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")(test)


@pytest.fixture(scope="module", autouse=True)
def empty_compiler_cache(tmp_path_factory):
    """torch.compile keeps code between processes, and takes up what it compiled for another instruction set."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))
        yield


def test_the_layout_that_pays_is_that_of_the_wide_convolutions():
    assert prefers_channels_last(load("nin-cifar10"))
    assert not prefers_channels_last(load("lenet-mnist"))
    assert not prefers_channels_last(load("fc500-mnist"))


def test_the_layout_does_not_change_the_answer():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 4))
    x = torch.rand(5, 3, 8, 8)
    seen = []
    model.register_forward_pre_hook(lambda _, args: seen.append(args[0].is_contiguous()))
    plain, last = deepfool(model, x), deepfool(model, lay_out(x, channels_last=True))
    assert True in seen
    assert False in seen
    assert last.fooled.all()
    torch.testing.assert_close(last.norm, plain.norm, rtol=1e-4, atol=0)
    torch.testing.assert_close(last.r, plain.r, rtol=1e-3, atol=1e-5)
    assert torch.equal(lay_out(x.flatten(1), channels_last=True), x.flatten(1))


def test_evaluate_lays_images_out_as_the_model_likes_them(tmp_path):
    class Watched(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Conv2d(3, 64, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 4))

        def forward(self, x):
            assert not x.is_contiguous(), "the channels should be last"
            return self.net(x)

    run = evaluate(Watched(), (torch.rand(3, 3, 8, 8), torch.zeros(3).long()), out=tmp_path / "run")
    assert run.complete


def test_a_model_that_views_its_activations_is_given_the_layout_that_it_takes(tmp_path):
    class Viewing(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.linear = nn.Conv2d(3, 64, 3), nn.Linear(64 * 36, 4)

        def forward(self, x):
            return self.linear(self.conv(x).relu().view(len(x), -1))

    assert prefers_channels_last(Viewing())
    run = evaluate(Viewing(), (torch.rand(3, 3, 8, 8), torch.zeros(3).long()), out=tmp_path / "run")
    assert run.complete


@needs_a_compiler
def test_compiled_models_give_the_same_rows(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(70, 32), nn.Tanh(), nn.Linear(32, 6))
    data = torch.rand(12, 70), torch.zeros(12).long()
    plain = evaluate(model, data, out=tmp_path / "plain", batch_size=6)
    fast = evaluate(model, data, out=tmp_path / "compiled", batch_size=6, compile=True)
    for a, b in zip(plain.rows(), fast.rows(), strict=True):
        assert a["adv_label"] == b["adv_label"]
        assert a["r_l2"] == pytest.approx(b["r_l2"], rel=1e-4)
    assert Run(tmp_path / "compiled").manifest["identity"] != Run(tmp_path / "plain").manifest["identity"]


@needs_a_compiler
def test_a_compiled_model_takes_any_batch_and_several_gradients():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(70, 32), nn.Tanh(), nn.Linear(32, 6))
    compiled = compile_model(model)
    for n in (7, 3):
        x = torch.rand(n, 70)
        torch.testing.assert_close(deepfool(compiled, x).r, deepfool(model, x).r, rtol=1e-3, atol=1e-5)


def test_kept_memory_harms_nothing():
    keep_freed_memory()
    keep_freed_memory()
    assert torch.ones(2**24).sum() == 2**24
