from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from deepfool.errors import InputError, ModelError
from deepfool.models.checkpoints import read_state_dict
from deepfool.models.sources import resolve
from deepfool.models.torchvision_operators import import_torchvision

torchvision = import_torchvision(extra="torchvision", purpose="the tests")
SQUEEZENET = "torchvision:squeezenet1_1?num_classes=3"


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(0)
    return torchvision.models.squeezenet1_1(num_classes=3).eval()


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt", "w.pth", "w.bin", "wrapped.pt", "parallel.pt"])
def test_weights_of_a_library_fill_its_architecture(network: nn.Module, tmp_path: Path, name: str):
    state = network.state_dict()
    if name == "w.safetensors":
        save_file(state, tmp_path / name)
    elif name == "wrapped.pt":
        torch.save({"epoch": 3, "state_dict": state}, tmp_path / name)
    elif name == "parallel.pt":
        torch.save(nn.DataParallel(network).state_dict(), tmp_path / name)
    else:
        torch.save(state, tmp_path / name)
    source = resolve(f"file:{tmp_path / name}", arch=SQUEEZENET)
    x = torch.rand(2, 3, 64, 64)
    recipe = torchvision.models.SqueezeNet1_1_Weights.DEFAULT.transforms()
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (recipe.mean, recipe.std))
    with torch.no_grad():
        torch.testing.assert_close(source.module(x), network((x - mean) / std))


def test_weights_written_from_our_module_fill_it_again(tmp_path: Path):
    first = resolve(f"{SQUEEZENET}&weights=none")
    save_file(first.module.state_dict(), tmp_path / "whole.safetensors")
    second = resolve(f"file:{tmp_path / 'whole.safetensors'}", arch=SQUEEZENET)
    assert second.fingerprint == first.fingerprint
    assert second.spec == f"file:{tmp_path / 'whole.safetensors'}"


def test_a_module_may_be_the_architecture(tmp_path: Path):
    save_file({"weight": torch.ones(2, 3), "bias": torch.zeros(2)}, tmp_path / "linear.safetensors")
    source = resolve(f"file:{tmp_path / 'linear.safetensors'}", arch=nn.Linear(3, 2))
    assert source.module(torch.ones(1, 3)).tolist() == [[3.0, 3.0]]


def test_weights_that_do_not_fit_are_named(network: nn.Module, tmp_path: Path):
    state = network.state_dict()
    state["extra.weight"] = torch.zeros(1)
    del state["features.0.bias"]
    save_file(state, tmp_path / "w.safetensors")
    message = r"does not fit torchvision:squeezenet1_1: missing features\.0\.bias; unexpected extra\.weight\."
    with pytest.raises(ModelError, match=message):
        resolve(f"file:{tmp_path / 'w.safetensors'}", arch=SQUEEZENET)
    save_file(network.state_dict(), tmp_path / "three.safetensors")
    with pytest.raises(ModelError, match=r"classifier\.1\.weight is \(3, .* in the file, \(1000, .*num_classes=N"):
        resolve(f"file:{tmp_path / 'three.safetensors'}", arch="torchvision:squeezenet1_1")


@pytest.mark.parametrize("how", ["torch", "pickle", "legacy"])
def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path, bomb, how: str):
    path = tmp_path / "evil.pt"
    if how == "pickle":
        path.write_bytes(pickle.dumps({"weight": bomb}))
    else:
        torch.save({"weight": bomb}, path, _use_new_zipfile_serialization=how == "torch")
    with pytest.raises(ModelError, match=r"evil\.pt is not a plain file of tensors.*safetensors"):
        resolve(f"file:{path}", arch=nn.Linear(1, 1))


def test_a_whole_pickled_model_is_refused(tmp_path: Path):
    torch.save(nn.Linear(1, 1), tmp_path / "model.pt")
    with pytest.raises(ModelError, match=r"not a plain file of tensors.*save_file\(model\.state_dict\(\)"):
        resolve(f"file:{tmp_path / 'model.pt'}", arch=nn.Linear(1, 1))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.onnx", "give this kind of file as onnx:"),
        ("model.pt2", "give this kind of file as export:"),
        ("model.pkl", "save_file"),
        ("model.h5", "save_file"),
        ("none.safetensors", "there is no file"),
    ],
)
def test_other_files_are_refused_with_a_hint(tmp_path: Path, name: str, message: str):
    with pytest.raises(InputError, match=message):
        read_state_dict(tmp_path / name)


def test_broken_files_are_named(tmp_path: Path):
    for name in ("broken.safetensors", "broken.pt"):
        (tmp_path / name).write_bytes(b"1234567890")
        with pytest.raises(ModelError, match=name):
            read_state_dict(tmp_path / name)
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ModelError, match=r"state dict .* it holds a list"):
        read_state_dict(tmp_path / "list.pt")
    torch.save({"epoch": 1, "loss": 0.5}, tmp_path / "log.pt")
    with pytest.raises(ModelError, match="it holds a dict with epoch, loss"):
        read_state_dict(tmp_path / "log.pt")


def test_the_architecture_must_be_named_and_be_one(tmp_path: Path):
    save_file({"bias": torch.zeros(1)}, tmp_path / "w.safetensors")
    spec = f"file:{tmp_path / 'w.safetensors'}"
    with pytest.raises(InputError, match=r"holds only weights.*--arch"):
        resolve(spec)
    with pytest.raises(InputError, match="An architecture was expected"):
        resolve(spec, arch=spec)
    with pytest.raises(InputError, match="only used with file:FILE"):
        resolve("torchvision:resnet18", arch="torchvision:resnet18")
