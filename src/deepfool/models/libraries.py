"""Image classifiers from torchvision, timm and Hugging Face transformers, with their normalisation inside the model.

Resizing and cropping belong to the data: they change the shape of an input, not the space that attacks search.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from deepfool.errors import InputError, ModelError, require
from deepfool.models.building import Built, flag, split_options, unknown_name
from deepfool.models.checkpoints import weights_only
from deepfool.models.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Normalize
from deepfool.models.torchvision_operators import import_torchvision


def build_torchvision(text: str, *, pretrained: bool) -> Built:
    """Build `NAME[?weights=DEFAULT|none|IMAGENET1K_V1][&num_classes=N]` from torchvision's classifiers."""
    models = import_torchvision(extra="torchvision", purpose="torchvision:NAME").models
    name, options = split_options(text, {"weights": str, "num_classes": int})
    if name not in (names := models.list_models(module=models)):
        raise unknown_name("torchvision classifier", name, names)
    available = models.get_model_weights(name)
    weights = _torchvision_weights(available, options.pop("weights", "DEFAULT")) if pretrained else None
    if weights is not None and options:
        raise InputError(
            f"num_classes cannot be changed for pretrained weights, got {text!r}.",
            hint="add weights=none, or give the trained weights as file:FILE with this as the architecture",
        )
    builder = models.get_model_builder(name)
    if weights is None and "init_weights" in inspect.signature(_class_built_by(builder)).parameters:
        options["init_weights"] = False  # avoids a torchvision warning; the weights are not used for training
    network = _fetch(f"torchvision:{name}", lambda: builder(weights=weights, progress=False, **options))
    recipe = (weights or available.DEFAULT).transforms()  # without weights: the preprocessing of the default weights
    return Built(
        module=nn.Sequential(Normalize(recipe.mean, recipe.std), network),
        network=network,
        architecture=f"torchvision:{name}",
        input_shape=(3, recipe.crop_size[0], recipe.crop_size[0]),
        classes=tuple(weights.meta["categories"]) if weights is not None else (),
    )


def _class_built_by(builder: Callable[..., nn.Module]) -> Any:
    """The class in a builder's return annotation; the builder accepts its arguments too."""
    annotation = inspect.signature(builder).return_annotation
    return getattr(sys.modules[builder.__module__], annotation) if isinstance(annotation, str) else annotation


def _torchvision_weights(available: Any, wanted: str) -> Any:
    if wanted.lower() == "none":
        return None
    try:
        return available[wanted]
    except KeyError:
        raise unknown_name("set of weights", wanted, [*available.__members__, "none"]) from None


def build_timm(text: str, *, pretrained: bool) -> Built:
    """Build `NAME[?pretrained=false][&num_classes=N]` with timm; `local-dir:` and `hf-hub:` names are passed on."""
    import_torchvision(extra="timm", purpose="timm:NAME")  # timm imports it
    timm = require("timm", extra="timm", purpose="timm:NAME")
    name, options = split_options(text, {"pretrained": flag, "num_classes": int})
    if ":" not in name and not timm.is_model(name):
        raise unknown_name("timm model", name, timm.list_models())
    trained = options.pop("pretrained", True) and pretrained
    network = _fetch(f"timm:{name}", lambda: timm.create_model(name, pretrained=trained, **options))
    data = timm.data.resolve_model_data_config(network)
    return Built(
        module=nn.Sequential(Normalize(data["mean"], data["std"]), network),
        network=network,
        architecture=f"timm:{name}",
        input_shape=tuple(data["input_size"]),
        classes=_timm_classes(timm, network) if trained and not options else (),
    )


def _timm_classes(timm: Any, network: Any) -> tuple[str, ...]:
    names = network.pretrained_cfg.get("label_names")
    if names:
        return tuple(names)
    if not (subset := timm.data.infer_imagenet_subset(network)):
        return ()
    info = timm.data.ImageNetInfo(subset)
    return tuple(info.index_to_description(index) for index in range(info.num_classes()))


def build_huggingface(text: str, *, pretrained: bool) -> Built:
    """Build `NAME_OR_DIRECTORY[?revision=R]` with transformers; code in the repository is never run."""
    if importlib.util.find_spec("torchvision") is not None:
        import_torchvision(extra="hf", purpose="hf:NAME")  # transformers uses it where it is installed
    transformers = require("transformers", extra="hf", purpose="hf:NAME")
    known: dict[str, Callable[[str], Any]] = {
        "revision": str, "pretrained": flag, "mean": _read_numbers, "std": _read_numbers, "size": int,
    }  # fmt: skip
    name, options = split_options(text, known)
    given = {key: options.pop(key) for key in ("mean", "std", "size") if key in options}
    if name.startswith((".", "/", "~")) and not Path(name).expanduser().is_dir():
        raise InputError(f"A directory written by save_pretrained was expected, but there is no directory {name!r}.")
    trained = options.pop("pretrained", True) and pretrained
    name = str(Path(name).expanduser()) if name.startswith("~") else name
    settings = {"trust_remote_code": False, **options}
    config = _fetch(f"hf:{name}", lambda: transformers.AutoConfig.from_pretrained(name, **settings))
    if given or _lacks_processor(name):
        preprocessing, shape = _choose_preprocessing(f"hf:{name}", config, **given)
    else:
        find = transformers.AutoImageProcessor.from_pretrained
        preprocessing, shape = preprocessing_of(_fetch(f"hf:{name}", lambda: find(name, **settings)))
    family = transformers.AutoModelForImageClassification
    if trained:
        with _silent(transformers):
            network = _fetch(f"hf:{name}", lambda: family.from_pretrained(name, config=config, **settings))
    else:
        network = family.from_config(config, trust_remote_code=False)
    return Built(
        module=nn.Sequential(*preprocessing, network),
        network=network,
        architecture=f"hf:{config.model_type}",
        input_shape=shape,
        classes=tuple(str(config.id2label[index]) for index in range(config.num_labels)),
    )


class PreprocessingWarning(UserWarning):
    """A model that does not say how its inputs are normalised."""


def _read_numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def _lacks_processor(name: str) -> bool:
    """Whether a directory has a model but not the configuration of its image processor."""
    folder = Path(name)
    files = ("preprocessor_config.json", "processor_config.json")
    return (folder / "config.json").is_file() and not any((folder / file).is_file() for file in files)


def _choose_preprocessing(
    spec: str, config: Any, mean: tuple[float, ...] = (), std: tuple[float, ...] = (), size: int | None = None
) -> tuple[list[nn.Module], tuple[int, ...] | None]:
    """The normalisation that was asked for; ImageNet's, with a warning, if none was."""
    channels = int(getattr(config, "num_channels", 3) or 3)
    if bool(mean) != bool(std):
        raise InputError(f"{spec}: mean and std go together, got only one of them.", hint="?mean=0.5&std=0.5")
    if not mean and channels != 3:
        raise InputError(
            f"{spec} has no preprocessor_config.json and {channels} channels, so its normalisation is not known.",
            hint="give --mean and --std (?mean=0.5&std=0.5 in the spec).",
        )
    if not mean:
        mean, std = IMAGENET_MEAN, IMAGENET_STD
        warnings.warn(
            f"{spec} has no preprocessor_config.json: its inputs are normalised as is usual for ImageNet, by mean "
            f"{_list_numbers(mean)} and std {_list_numbers(std)}. Hint: give --mean and --std if it was trained "
            f"otherwise (?mean=0.5&std=0.5 in the spec).",
            PreprocessingWarning, stacklevel=2,
        )  # fmt: skip
    mean, std = (values * channels if len(values) == 1 else values for values in (mean, std))
    if not len(mean) == len(std) == channels or min(std) <= 0:
        raise InputError(
            f"{spec} has {channels} channels: mean and std need one number, or one for each, and std must be positive, "
            f"got {_list_numbers(mean)} and {_list_numbers(std)}."
        )
    side = size or getattr(config, "image_size", None)
    return [Normalize(mean, std)], (channels, side, side) if isinstance(side, int) else None


def _list_numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


@contextlib.contextmanager
def _silent(transformers: Any) -> Iterator[None]:
    """Turn off the progress bar of transformers: only the command line draws."""
    settings = transformers.utils.logging
    drawn = settings.is_progress_bar_enabled()
    settings.disable_progress_bar()
    try:
        yield
    finally:
        if drawn:
            settings.enable_progress_bar()


class ReverseChannels(nn.Module):
    """RGB to BGR, and back.

    >>> ReverseChannels()(torch.arange(3.0).view(1, 3, 1, 1)).flatten().tolist()
    [2.0, 1.0, 0.0]
    """

    def forward(self, x: Tensor) -> Tensor:
        return x.flip(1)


def preprocessing_of(processor: Any) -> tuple[list[nn.Module], tuple[int, ...]]:
    """Find out what an image processor does to a pixel by giving it images of a single colour.

    Processors rescale, shift, normalise and reorder channels under many names and defaults. Resizing and cropping do
    not change an image of a single colour. So black and white give the two coefficients of each channel, and a third
    colour gives the order of the channels and checks that there is nothing else.
    """
    black, white, colour = (_show(processor, rgb) for rgb in ((0, 0, 0), (255, 255, 255), (51, 102, 204)))
    shape = tuple(black.shape)
    lowest, highest, seen = (image.double().mean(dim=(1, 2)) for image in (black, white, colour))
    slope = highest - lowest
    normalize = Normalize((-lowest / slope).tolist(), (1 / slope).tolist())
    rgb = torch.tensor([0.2, 0.4, 0.8], dtype=torch.float64)
    for order in ([], [ReverseChannels()]):
        expected = slope * (rgb.flip(0) if order else rgb) + lowest
        if len(slope) == 3 and torch.allclose(expected, seen, atol=1e-4):
            return [*order, normalize], shape
    raise ModelError(
        f"{type(processor).__name__} does more to a pixel than an affine map per channel.",
        hint="build the model with its preprocessing inside in your own code, and give it as py:package.module:factory",
    )


def _show(processor: Any, rgb: tuple[int, int, int]) -> Tensor:
    image = np.full((256, 256, 3), rgb, dtype=np.uint8)
    pixels: Tensor = processor(images=image, return_tensors="pt")["pixel_values"][0]
    if pixels.ndim != 3 or float((pixels.amax(dim=(1, 2)) - pixels.amin(dim=(1, 2))).max()) > 1e-3:
        raise ModelError(
            f"{type(processor).__name__} was expected to keep an image of one colour uniform, "
            f"got shape {tuple(pixels.shape)}."
        )
    return pixels


def _fetch(spec: str, build: Callable[[], Any]) -> Any:
    """Run code that may use a cache, the disk or the network, and turn its errors into one that names the model."""
    try:
        with weights_only():
            return build()
    except pickle.UnpicklingError as error:
        raise ModelError(f"The weights of {spec} are a pickle that could run code; they were not opened.") from error
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        raise ModelError(
            f"{spec} could not be built: {type(error).__name__}: {error}",
            hint="weights are downloaded on first use; without a connection, load your own as file:FILE and name the "
            "architecture",
        ) from error
