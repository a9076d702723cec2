from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from deepfool.errors import InputError, MissingExtraError, ModelError
from deepfool.models.fingerprints import fingerprint
from deepfool.models.libraries import PreprocessingWarning, preprocessing_of
from deepfool.models.sources import resolve
from deepfool.models.torchvision_operators import OPERATORS, import_torchvision

torchvision = import_torchvision(extra="torchvision", purpose="the tests")
timm = pytest.importorskip("timm")
transformers = pytest.importorskip("transformers")


def picture(size: int = 256) -> Image.Image:
    """Smooth colours, so that a resize by one library or another is the same to the rounding."""
    rows, columns = np.mgrid[0:size, 0:size] / size
    return Image.fromarray((255 * np.stack([rows, columns, 0.5 * rows + 0.2], axis=2)).astype(np.uint8))


# --- torchvision


def test_torchvision_gives_what_its_own_pipeline_gives(gradients):
    torch.manual_seed(0)
    source = resolve("torchvision:resnet18?weights=none")
    assert source.input_shape == (3, 224, 224)
    assert source.classes == ()
    assert not source.module.training
    recipe = torchvision.models.ResNet18_Weights.DEFAULT.transforms()
    pixels = torchvision.transforms.functional.to_tensor(picture().crop((16, 16, 240, 240)))
    theirs = source.module[1](recipe(picture())[None])  # the crop in the middle: 224 out of 256
    with torch.no_grad():
        torch.testing.assert_close(source.module(pixels[None]), theirs, rtol=1e-4, atol=1e-4)
    gradients(source.module.double(), torch.rand(2, 3, 64, 64, dtype=torch.float64))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in which torchvision looks for weights before it downloads any."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    return folder


def test_torchvision_default_weights_are_found_in_its_cache(hub: Path):
    weights = torchvision.models.SqueezeNet1_1_Weights.DEFAULT
    network = torchvision.models.squeezenet1_1()
    torch.save(network.state_dict(), hub / Path(weights.url).name)
    source = resolve("torchvision:squeezenet1_1")
    assert source.classes[:2] == ("tench", "goldfish")
    assert len(source.classes) == 1000
    torch.testing.assert_close(source.module[1].state_dict(), network.state_dict(), rtol=0, atol=0)
    assert resolve("torchvision:squeezenet1_1?weights=IMAGENET1K_V1").fingerprint == source.fingerprint


def test_torchvision_weights_that_hold_code_are_not_opened(hub: Path, bomb):
    torch.save({"weights": bomb}, hub / Path(torchvision.models.SqueezeNet1_1_Weights.DEFAULT.url).name)
    with pytest.raises(ModelError, match="could run code"):
        resolve("torchvision:squeezenet1_1")


def test_torchvision_without_a_connection_says_what_to_do(hub: Path, monkeypatch: pytest.MonkeyPatch):
    def no_connection(*arguments: object, **options: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr("torch.hub.download_url_to_file", no_connection)
    with pytest.raises(
        ModelError, match=r"torchvision:resnet18 could not be built: OSError: no route to host.*file:FILE"
    ):
        resolve("torchvision:resnet18")


@pytest.mark.parametrize("name", ["googlenet", "inception_v3"])
def test_torchvision_networks_with_side_outputs_give_one_tensor(name: str):
    module = resolve(f"torchvision:{name}?weights=none&num_classes=7").module
    with torch.no_grad():
        assert module(torch.rand(1, 3, 96, 96)).shape == (1, 7)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("torchvision:resnet19", "no torchvision classifier named 'resnet19'. Hint: did you mean resnet18"),
        ("torchvision:fasterrcnn_resnet50_fpn", "no torchvision classifier"),
        ("torchvision:resnet18?weights=IMAGENET1K_V9", "no set of weights named 'IMAGENET1K_V9'. Hint: did you mean"),
        ("torchvision:resnet18?num_classes=10", "num_classes cannot be changed"),
        ("torchvision:resnet18?classes=10", "Unknown option 'classes'.*the options are weights, num_classes"),
        ("torchvision:resnet18?num_classes=ten", "'num_classes' in .* has an invalid value"),
        ("torchvision:resnet18?none", "Unknown option 'none'"),
        ("torchvision:", "A model name was expected"),
        ("timm:resnet18x", "no timm model named 'resnet18x'. Hint: did you mean resnet18"),
        ("timm:resnet18?pretrained=maybe", "neither true nor false"),
        ("timm:resnet18?checkpoint_path=x.pth", "Unknown option 'checkpoint_path'"),
        ("hf:./nowhere", "directory written by save_pretrained was expected"),
        ("hf:x/y?trust_remote_code=true", "Unknown option 'trust_remote_code'"),
    ],
)
def test_invalid_specs_are_explained(spec: str, message: str):
    with pytest.raises(InputError, match=message):
        resolve(spec)


def test_missing_operators_are_declared_without_a_body():
    """Where the compiled library loads, the operators work; where it does not, calling one fails as an operator."""
    boxes, weights = torch.tensor([[0.0, 0.0, 1.0, 1.0]]), torch.tensor([1.0])
    for name in OPERATORS:
        assert hasattr(torch.ops.torchvision, name)
    if torchvision.extension._has_ops():
        assert torch.ops.torchvision.nms(boxes, weights, 0.5).tolist() == [0]
    else:
        with pytest.raises((RuntimeError, NotImplementedError)):
            torch.ops.torchvision.nms(boxes, weights, 0.5)


# --- timm


def test_timm_gives_what_its_own_pipeline_gives(gradients):
    torch.manual_seed(0)
    source = resolve("timm:test_resnet?pretrained=false")
    network = source.module[1]
    assert source.input_shape == (3, 160, 160)
    assert source.classes == ()
    settings = timm.data.resolve_model_data_config(network)
    transform = timm.data.create_transform(**{**settings, "crop_pct": 1.0})
    image = picture(160)
    with torch.no_grad():
        theirs = network(transform(image)[None])
        ours = source.module(torchvision.transforms.functional.to_tensor(image)[None])
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    gradients(source.module.double(), torch.rand(2, 3, 64, 64, dtype=torch.float64))


def test_timm_takes_mean_and_std_from_the_model():
    """Not every network uses ImageNet's: this one wants [-1, 1]."""
    normalize = resolve("timm:test_vit?pretrained=false").module[0]
    assert normalize.mean.flatten().tolist() == [0.5] * 3
    assert normalize.std.flatten().tolist() == [0.5] * 3


def test_timm_trained_weights_come_with_their_classes(tmp_path: Path):
    network = timm.create_model("test_resnet", num_classes=3)
    timm.models.save_for_hf(
        network, tmp_path, model_args={"num_classes": 3}, model_config={"label_names": ["a", "b", "c"]}
    )
    source = resolve(f"timm:local-dir:{tmp_path}")
    assert source.classes == ("a", "b", "c")
    torch.testing.assert_close(source.module[1].state_dict(), network.state_dict(), rtol=0, atol=0)


def test_timm_imagenet_classes_have_names():
    from deepfool.models.libraries import _timm_classes

    names = _timm_classes(timm, timm.create_model("test_resnet"))
    assert len(names) == 1000
    assert names[1].startswith("goldfish")


# --- Hugging Face


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small vision transformer with random weights, as its authors would publish it."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("vit")
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=32, patch_size=8,
        id2label={0: "cat", 1: "dog", 2: "newt"}, label2id={"cat": 0, "dog": 1, "newt": 2},
    )  # fmt: skip
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    size = {"height": 32, "width": 32}
    transformers.ViTImageProcessor(size=size, image_mean=[0.4, 0.5, 0.6], image_std=[0.2, 0.25, 0.3]).save_pretrained(
        folder
    )
    return folder


def test_huggingface_gives_what_its_own_pipeline_gives(vit: Path, gradients, capfd):
    capfd.readouterr()
    source = resolve(f"hf:{vit}")
    assert capfd.readouterr() == ("", "")
    assert source.classes == ("cat", "dog", "newt")
    assert source.input_shape == (3, 32, 32)
    network = transformers.AutoModelForImageClassification.from_pretrained(vit).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(vit)
    image = picture(32)
    with torch.no_grad():
        theirs = network(**processor(images=image, return_tensors="pt")).logits
        ours = source.module(torchvision.transforms.functional.to_tensor(image)[None]).logits
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    gradients(source.module.double(), torch.rand(2, 3, 32, 32, dtype=torch.float64))


def test_huggingface_architecture_without_its_weights(vit: Path):
    torch.manual_seed(1)
    fresh = resolve(f"hf:{vit}?pretrained=false")
    assert fresh.fingerprint != resolve(f"hf:{vit}").fingerprint


def test_the_folder_of_a_huggingface_model_is_not_part_of_its_fingerprint(vit: Path, tmp_path: Path):
    shutil.copytree(vit, tmp_path / "copy")
    source = resolve(f"hf:{tmp_path / 'copy'}")
    before = resolve(f"hf:{vit}").fingerprint
    assert source.fingerprint == before
    alone = fingerprint(source.module)
    source.module(torch.rand(1, 3, 32, 32))
    assert fingerprint(source.module) == alone
    config = json.loads((tmp_path / "copy" / "config.json").read_text())
    (tmp_path / "copy" / "config.json").write_text(json.dumps(config | {"hidden_act": "relu"}))
    assert resolve(f"hf:{tmp_path / 'copy'}").fingerprint != before


@pytest.fixture
def bare(vit: Path, tmp_path: Path) -> Path:
    """A model without the configuration of its image processor, as a training script may leave it."""
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((vit / name).read_bytes())
    return tmp_path


def test_huggingface_without_a_processor_is_normalised_as_usual_and_says_so(bare: Path):
    with pytest.warns(PreprocessingWarning, match=r"mean 0\.485, 0\.456, 0\.406 and std .* give --mean and --std"):
        source = resolve(f"hf:{bare}")
    assert source.input_shape == (3, 32, 32)
    assert source.module[0].mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])


def test_huggingface_with_a_given_normalisation(vit: Path, bare: Path):
    source = resolve(f"hf:{bare}?mean=0.5&std=0.25,0.5,0.5&size=48")
    assert source.input_shape == (3, 48, 48)
    assert source.module[0].std.flatten().tolist() == [0.25, 0.5, 0.5]
    same = resolve(f"hf:{vit}?mean=0.5&std=0.25,0.5,0.5")
    assert same.fingerprint == source.fingerprint, "it goes before the configuration"


@pytest.mark.parametrize(
    ("options", "match"),
    [("mean=0.5", "mean and std go together"), ("mean=1,2&std=1", "3 channels"), ("mean=0&std=0", "must be positive"),
     ("mean=a&std=1", "invalid value")],
)  # fmt: skip
def test_huggingface_with_a_normalisation_that_does_not_fit(bare: Path, options: str, match: str):
    with pytest.raises(InputError, match=match):
        resolve(f"hf:{bare}?{options}")


def test_huggingface_name_that_cannot_be_reached():
    with pytest.raises(ModelError, match="hf:nobody/nothing could not be built"):
        resolve("hf:nobody/nothing")


def test_processors_that_shift_and_reverse_channels_are_read_right():
    image = np.array(picture(64))
    pixels = torch.tensor(image).permute(2, 0, 1).float()[None] / 255
    square = {"height": 64, "width": 64}
    processors = [
        transformers.EfficientNetImageProcessor(size=square, rescale_factor=1 / 127.5, rescale_offset=True),
        transformers.MobileViTImageProcessor(size={"shortest_edge": 64}, crop_size=square, do_flip_channel_order=True),
        transformers.ViTImageProcessor(size=square, do_normalize=False, do_rescale=False),
    ]
    for processor in processors:
        layers, shape = preprocessing_of(processor)
        theirs = processor(images=image, return_tensors="pt")["pixel_values"]
        assert shape == (3, 64, 64)
        torch.testing.assert_close(torch.nn.Sequential(*layers)(pixels), theirs.float(), rtol=1e-4, atol=1e-4)


def test_a_processor_that_is_not_affine_is_refused():
    class Gamma:
        def __call__(self, images: np.ndarray, return_tensors: str) -> dict[str, torch.Tensor]:
            return {"pixel_values": (torch.tensor(images).permute(2, 0, 1)[None] / 255) ** 2.2}

    with pytest.raises(ModelError, match="Gamma does more to a pixel"):
        preprocessing_of(Gamma())


def test_a_processor_that_pads_is_refused():
    class Padding:
        def __call__(self, images: np.ndarray, return_tensors: str) -> dict[str, torch.Tensor]:
            pixels = torch.tensor(images).permute(2, 0, 1)[None] / 255 - 0.5
            return {"pixel_values": torch.nn.functional.pad(pixels, (8, 8))}

    with pytest.raises(ModelError, match="image of one colour"):
        preprocessing_of(Padding())


# --- extras


@pytest.mark.parametrize(
    ("package", "spec", "extra"),
    [
        ("torchvision", "torchvision:resnet18", "torchvision"),
        ("timm", "timm:resnet18", "timm"),
        ("transformers", "hf:x/y", "hf"),
    ],
)
def test_a_missing_library_names_its_extra(package: str, spec: str, extra: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, package)
    monkeypatch.setattr(sys, "meta_path", [Hidden(package), *sys.meta_path])
    with pytest.raises(
        MissingExtraError, match=rf'needs the package {package}. Hint: pip install "deepfool\[{extra}\]"'
    ):
        resolve(spec)


class Hidden:
    """An import finder for which one package is not installed."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.split(".")[0] == self.package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
