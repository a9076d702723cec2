from __future__ import annotations

import copy
import dataclasses
import enum
import importlib.util
import logging
import os
import pickle
import subprocess
import sys
import types
from collections.abc import Iterator
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from deepfool.errors import InputError, ModelError
from deepfool.models.fingerprints import fingerprint
from deepfool.models.sources import PREFIXES, Source, as_module, resolve

# --- objects


def test_a_module_passes_through_in_eval_mode():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(4, 3))
    assert as_module(model) is model
    source = resolve(model)
    assert source.module is model
    assert not model.training
    assert (source.input_shape, source.classes) == (None, ())
    with pytest.raises(dataclasses.FrozenInstanceError):
        source.spec = "another"  # type: ignore[misc]
    assert as_module(source) is model


@pytest.mark.parametrize("thing", [42, None, [nn.Linear(1, 1)]])
def test_what_is_no_model_is_refused(thing: object):
    with pytest.raises(InputError, match=r"A model was expected .* got builtins\..*torchvision:"):
        as_module(thing)


# --- specs


def test_unknown_prefixes_and_names_are_answered_with_what_there_is():
    with pytest.raises(InputError, match="did you mean timm"):
        resolve("tim:resnet18")
    with pytest.raises(InputError, match="there are export, file, hf, onnx, py, timm, torchvision"):
        resolve("nowhere:x")
    with pytest.raises(InputError, match=r"There is no network named 'no-such-net'.*torchvision:, timm:, hf:, onnx:"):
        resolve("no-such-net")
    for file, prefix in (("a.onnx", "onnx"), ("b.pt2", "export"), ("c.safetensors", "file"), ("d.pth", "file")):
        with pytest.raises(InputError, match=f"give a file as {prefix}:{file}"):
            resolve(file)
    assert PREFIXES == ("torchvision:", "timm:", "hf:", "onnx:", "export:", "py:", "file:")


@pytest.fixture
def zoo(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A zoo of one, with the surface of the real one: the resolver is tested apart from the networks."""
    module = types.ModuleType("deepfool.models.zoo")

    def load(name: str, *, pretrained: bool = True) -> nn.Module:
        model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
        nn.init.constant_(model[1].weight, float(pretrained))
        return model

    module.ZOO = {"tiny-mnist": types.SimpleNamespace(input_shape=(1, 2, 2))}  # type: ignore[attr-defined]
    module.load = load  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "deepfool.models.zoo", module)
    return module


def test_zoo_names(zoo: types.ModuleType, tmp_path: Path):
    source = resolve("tiny-mnist")
    assert source.input_shape == (1, 2, 2)
    assert source.module[1].weight.unique().tolist() == [1.0]
    with pytest.raises(InputError, match="did you mean tiny-mnist"):
        resolve("tiny-minst")
    torch.save({"1.weight": torch.full((2, 4), 7.0), "1.bias": torch.zeros(2)}, tmp_path / "w.pt")
    filled = resolve(f"file:{tmp_path / 'w.pt'}", arch="tiny-mnist")
    assert filled.module[1].weight.unique().tolist() == [7.0]


@pytest.mark.skipif(importlib.util.find_spec("deepfool.models.zoo") is None, reason="the zoo is not in this checkout")
def test_the_real_zoo_is_reached():
    source = resolve("lenet-mnist")
    assert source.input_shape == (1, 28, 28)
    assert source.module(torch.rand(2, 1, 28, 28)).shape == (2, 10)


# --- own code

OWN = """
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

ready = nn.Linear(2, 2)

def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3))

def estimator():
    return LogisticRegression().fit([[0.0, 1.0], [1.0, 0.0]], ["no", "yes"])

def broken():
    raise KeyError("weights")

def nothing():
    return None
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A user's module in the current directory, which is not on the import path."""
    (tmp_path / "own_models.py").write_text(OWN)
    (tmp_path / "own_needy.py").write_text("import no_such_package_at_all\n")
    (tmp_path / "own_wrong.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    yield "own_models"
    assert sys.path == before
    for name in ("own_models", "own_needy", "own_wrong"):
        sys.modules.pop(name, None)


def test_own_code_is_imported_from_the_working_directory(own: str, gradients):
    torch.manual_seed(0)
    source = resolve(f"py:{own}:network")
    assert source.spec == "py:own_models:network"
    gradients(source.module.double(), torch.rand(2, 1, 2, 2, dtype=torch.float64))
    assert isinstance(resolve(f"py:{own}:ready").module, nn.Linear)
    assert resolve(f"py:{own}:estimator").classes == ("no", "yes")


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ("py:own_models:netwrk", InputError, "no function in own_models named 'netwrk'. Hint: did you mean network"),
        ("py:own_models:broken", ModelError, "py:own_models:broken raised KeyError: 'weights'"),
        ("py:own_models:nothing", InputError, r"A model was expected .* got builtins\.NoneType"),
        ("py:own_models", InputError, "py:package.module:factory was expected"),
        ("py:own_modles:network", InputError, "There is no module 'own_modles'.*current directory"),
        ("py:own_needy:network", ModelError, "own_needy needs no_such_package_at_all"),
        ("py:own_wrong:network", ModelError, "own_wrong could not be imported: ZeroDivisionError"),
    ],
)
def test_own_code_that_fails_says_where(own: str, spec: str, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        resolve(spec)


# --- fingerprints


def test_fingerprints_see_weights_buffers_names_layers_and_architecture():
    def build(kind: type[nn.Module] = nn.ReLU) -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), kind())

    first = fingerprint(build())
    assert fingerprint(build()) == first
    weight, buffer = build(), build()
    with torch.no_grad():
        weight[0].weight[0, 0].nextafter_(torch.tensor(9.0))
        buffer[1].running_mean[0] += 1
    renamed = nn.Sequential()
    for name, child in zip("abc", build(), strict=True):
        renamed.add_module(name, child)
    others = [weight, buffer, renamed, build(nn.Tanh), build().double(), build().bfloat16()]
    assert len({first, fingerprint(build(), "resnet"), *map(fingerprint, others)}) == 8


class Own(nn.Module):
    """A class of a user, with settings of all kinds and with state of all kinds."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.slope, self._private, self.shape, self.names = 0.1, 3, (2, 2), {"a": [1, 2]}
        self.act: Any = torch.tanh
        self.config: Any = SimpleNamespace(depth=2)
        self.partial: Any = partial(nn.functional.leaky_relu, negative_slope=0.1)
        self.kind, self.dtype, self.scale = Kind.ONE, torch.float32, torch.tensor([1.0, 2.0])
        self.offset = np.zeros(2)
        for name, value in settings.items():
            setattr(self, name, value)
        self.calls, self.last, self.seen, self.history, self.by_size = 0, None, {}, [], {1: 1}
        self.listeners, self.logger = [print], logging.getLogger("own")

    @cached_property
    def doubled(self) -> float:
        return 2 * self.slope

    def remember(self, x: torch.Tensor) -> None:
        self.last = x
        self.history.append(len(x))
        self.by_size[len(x)] = self.calls

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.remember(x)
        self.seen[tuple(x.shape)] = x
        return self.act(x * self.doubled)  # type: ignore[no-any-return]


class Kind(enum.Enum):
    ONE = 1
    TWO = 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (nn.LeakyReLU(0.1), nn.LeakyReLU(0.2)),
        (nn.MaxPool2d(2, 1), nn.MaxPool2d(2, 2)),
        (nn.MaxPool2d(2, dilation=1), nn.MaxPool2d(2, dilation=2)),
        (nn.BatchNorm1d(3, eps=1e-5), nn.BatchNorm1d(3, eps=1e-3)),
        (nn.Flatten(1), nn.Flatten(2)),
        (nn.Softmax(0), nn.Softmax(1)),
        (nn.Sequential(nn.ELU(1.0)), nn.Sequential(nn.ELU(0.5))),
        *(
            (Own(), Own(**changed))
            for changed in (
                {"slope": 0.2}, {"_private": 4}, {"shape": (2, 3)}, {"names": {"a": [1, 3]}}, {"act": torch.sigmoid},
                {"config": SimpleNamespace(depth=3)}, {"kind": Kind.TWO}, {"dtype": torch.float64},
                {"partial": partial(nn.functional.leaky_relu, negative_slope=0.2)}, {"slope": None},
                {"scale": torch.tensor([1.0, 3.0])}, {"offset": np.ones(2)}, {"added": "later"},
            )
        ),
    ],
)  # fmt: skip
def test_fingerprints_see_settings(one: nn.Module, other: nn.Module):
    assert fingerprint(one) != fingerprint(other)
    assert fingerprint(one) == fingerprint(copy.deepcopy(one))


@pytest.mark.parametrize("changed", [{"num_heads": 4}, {"batch_first": True}])
def test_fingerprints_see_the_heads_of_attention(changed: dict[str, Any]):
    def build(**settings: Any) -> nn.Module:
        torch.manual_seed(0)
        return nn.MultiheadAttention(**{"embed_dim": 8, "num_heads": 2, **settings})

    assert fingerprint(build()) == fingerprint(build()) != fingerprint(build(**changed))


def test_fingerprints_do_not_see_state():
    model = Own()
    before = fingerprint(model)
    model(torch.ones(3, 2))
    assert model.calls == 1
    assert "doubled" in vars(model)
    model.register_forward_hook(lambda *_: None)
    model.found_by_a_hook = torch.ones(2)
    assert fingerprint(model) == before
    recurrent = nn.LSTM(2, 2)
    assert fingerprint(pickle.loads(pickle.dumps(recurrent))) == fingerprint(recurrent)


def test_fingerprints_see_the_code_of_graphs():
    class Scaled(nn.Module):
        def __init__(self, by: float) -> None:
            super().__init__()
            self.by = by

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.by

    def trace(by: float) -> nn.Module:
        return torch.fx.symbolic_trace(Scaled(by))

    assert fingerprint(trace(2.0)) == fingerprint(trace(2.0)) != fingerprint(trace(3.0))


ZOO_PRINTS = """
import torch
from deepfool.models.sources import resolve
for name in ("fc500-mnist", "lenet-mnist", "lenet-cifar10", "nin-cifar10"):
    source = resolve(name)
    print(source.fingerprint)
"""


def test_fingerprints_of_the_zoo_hold_across_processes_and_passes():
    done = subprocess.run(
        [sys.executable, "-c", ZOO_PRINTS], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "7"},
    )  # fmt: skip
    for name, expected in zip(
        ("fc500-mnist", "lenet-mnist", "lenet-cifar10", "nin-cifar10"), done.stdout.split(), strict=True
    ):
        source = resolve(name)
        assert source.fingerprint == expected
        x = torch.rand(1, *(source.input_shape or ()), requires_grad=True)
        source.module(x).sum().backward()
        assert fingerprint(source.module, name) == expected


def test_fingerprints_do_not_depend_on_layout_or_mode():
    model = nn.Conv2d(3, 4, 3)
    before = fingerprint(model)
    assert fingerprint(model.to(memory_format=torch.channels_last).eval()) == before


def test_source_has_the_fields_that_a_manifest_needs():
    assert [field.name for field in dataclasses.fields(Source)] == [
        "module", "spec", "input_shape", "classes", "fingerprint",
    ]  # fmt: skip


def test_load_takes_every_source_that_the_command_line_takes(tmp_path, monkeypatch):
    """A name, a prefix with or without weights, a file with its architecture, a module."""
    from safetensors.torch import save_file

    from deepfool import models

    (tmp_path / "mine.py").write_text("import torch\ndef net():\n    return torch.nn.Linear(4, 3)\n")
    monkeypatch.chdir(tmp_path)
    assert models.load("py:mine:net")(torch.zeros(1, 4)).shape == (1, 3)
    save_file(models.load("lenet-mnist").state_dict(), tmp_path / "w.safetensors")
    again = models.load("file:w.safetensors", arch="lenet-mnist")
    x = torch.rand(2, 1, 28, 28)
    torch.testing.assert_close(again(x), models.load("lenet-mnist")(x))
    assert not torch.allclose(models.load("lenet-mnist", pretrained=False)(x), again(x))
    bare = models.load("torchvision:squeezenet1_1?num_classes=4", pretrained=False)
    assert bare(torch.rand(1, 3, 64, 64)).shape == (1, 4)
    assert not bare.training
    module = torch.nn.Linear(2, 2)
    assert models.load(module) is module
    with pytest.raises(InputError, match="does not start with a known source"):
        models.load("tinn:resnet18")
