"""Where models come from: a spec such as `timm:resnet18`, or an object, is resolved into a `Source`.

    NAME                          the zoo
    torchvision:NAME              torchvision's classifiers          ?weights=none&num_classes=10
    timm:NAME                     timm                               ?pretrained=false&num_classes=10
    hf:NAME or hf:DIRECTORY       transformers image classification  ?revision=main&mean=0.5&std=0.5&size=224
    onnx:FILE                     an ONNX file, through onnx2torch
    export:FILE.pt2               a torch.export program
    py:package.module:factory     your own code
    file:FILE.safetensors         weights, with the architecture given as `arch`

The resulting module takes inputs in [0, 1] and is in eval mode.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from deepfool.errors import DeepFoolError, InputError, ModelError, is_out_of_memory
from deepfool.models.building import Built, unknown_name
from deepfool.models.checkpoints import fill, read_state_dict
from deepfool.models.fingerprints import fingerprint
from deepfool.models.graphs import build_export, build_onnx, build_program
from deepfool.models.imagenet import list_names
from deepfool.models.jax_bridge import from_jax
from deepfool.models.libraries import build_huggingface, build_timm, build_torchvision
from deepfool.models.linear import LinearScores, from_sklearn
from deepfool.models.torchvision_operators import prepare_torchvision
from deepfool.values import check_flag

__all__ = ["PREFIXES", "Source", "as_module", "from_jax", "from_sklearn", "load", "resolve"]


@dataclass(frozen=True)
class Source:
    """A model that is ready to be measured, and what is known about it."""

    module: nn.Module
    spec: str
    input_shape: tuple[int, ...] | None
    classes: tuple[str, ...]
    fingerprint: str


def resolve(spec: Any, *, arch: Any = None, device: str | torch.device = "cpu") -> Source:
    """Load or build the model that a spec names; objects are treated as in `as_module`.

    `arch` is only for `file:`. It names the architecture of the weights, as another spec or as a module.

    >>> source = resolve(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)))
    >>> source.spec, source.module.training, len(source.fingerprint)
    ('torch.nn.modules.container.Sequential', False, 64)
    """
    if arch is not None and not (isinstance(spec, str) and spec.startswith("file:")):
        raise InputError(
            f"arch is only used with file:FILE, got arch={arch!r} with {spec!r}.",
            hint="leave arch out, or give the weights as file:FILE",
        )
    built = _build(spec, arch=arch)
    module = _place(built.module, device).eval()
    return Source(
        module=module,
        spec=spec if isinstance(spec, str) else _kind(spec),
        input_shape=built.input_shape,
        classes=built.classes,
        fingerprint=fingerprint(module, built.architecture),
    )


def _place(module: nn.Module, device: str | torch.device) -> nn.Module:
    if not isinstance(device, str | torch.device):
        raise InputError(f"device must be a name such as cpu or cuda:1, got {device!r:.80}.")
    try:
        return module.to(device)
    except (RuntimeError, AssertionError) as error:
        if is_out_of_memory(error):
            raise
        why = (str(error).splitlines() or [""])[0]
        raise InputError(f"the model cannot be moved to the device {str(device)!r}: {why}") from error


def load(name: Any, *, pretrained: bool = True, arch: Any = None) -> nn.Module:
    """A model in eval mode: a network of the zoo, any other spec that `--model` takes, or an object as in `as_module`.

    It takes a batch in [0, 1] and returns scores. `pretrained=False` skips the trained weights where the source allows
    that. `arch` is the architecture of the weights in `file:FILE`.

    >>> load("lenet-mnist")(torch.zeros(1, 1, 28, 28)).shape
    torch.Size([1, 10])
    >>> load("lenet-minst")
    Traceback (most recent call last):
    ...
    deepfool.errors.InputError: There is no network named 'lenet-minst'. Hint: did you mean lenet-mnist...
    """
    if check_flag(pretrained, "pretrained") or not isinstance(name, str):
        return resolve(name, arch=arch).module
    if arch is not None:
        raise InputError(f"arch is for trained weights, got arch={arch!r} with pretrained=False.")
    return _build_spec(name, pretrained=False).module.eval()


def as_module(model: Any) -> nn.Module:
    """Turn anything that this package accepts as a model into a module.

    A module is returned unchanged; a scikit-learn estimator, a `jax.jit` function, a torch.export program or a spec is
    converted. A plain function could be torch or JAX: for JAX use `from_jax(function)`.

    >>> linear = nn.Linear(2, 2)
    >>> as_module(linear) is linear
    True
    """
    return _build(model).module


def _build(spec: Any, *, arch: Any = None) -> Built:
    return _build_spec(spec, arch=arch) if isinstance(spec, str) else _build_object(spec)


def _build_object(model: Any) -> Built:
    if isinstance(model, Source):
        return Built(model.module, model.module, model.spec, model.input_shape, model.classes)
    if isinstance(model, nn.Module):
        return Built(model, model, architecture=_kind(model))
    if isinstance(model, torch.export.ExportedProgram):
        return build_program(model)
    if _comes_from(model, "sklearn"):
        return _build_linear(from_sklearn(model))
    if _comes_from(model, "jax", "jaxlib"):
        bridge = from_jax(model)
        return Built(bridge, bridge, architecture="jax")
    hint = "wrap a JAX function with deepfool.models.sources.from_jax, a torch function in an nn.Module"
    raise InputError(
        f"A model was expected (a spec, an nn.Module, a scikit-learn linear model, a jitted JAX function), "
        f"got {_kind(model)}.",
        hint=hint if callable(model) else f"a spec starts with {', '.join(PREFIXES)}, or is a name from the zoo",
    )


def _build_linear(module: LinearScores) -> Built:
    return Built(module, module, "sklearn", input_shape=(module.in_features,), classes=module.classes)


def _comes_from(model: Any, *packages: str) -> bool:
    """Whether the object's class or a base of it comes from one of these packages; nothing is imported."""
    return any(kind.__module__.split(".")[0] in packages for kind in type(model).__mro__)


def _kind(model: Any) -> str:
    return f"{type(model).__module__}.{type(model).__qualname__}"


def _build_spec(spec: str, *, arch: Any = None, pretrained: bool = True) -> Built:
    prefix, colon, rest = spec.partition(":")
    if not colon:
        return _build_zoo(spec, pretrained=pretrained)
    if prefix == "file":
        return _build_file(rest, arch)
    if prefix not in BUILDERS:
        error = unknown_name("source of models", prefix, [name[:-1] for name in PREFIXES])
        raise InputError(f"The spec {spec!r} does not start with a known source of models.", hint=error.hint)
    return BUILDERS[prefix](rest, pretrained=pretrained)


def _build_zoo(name: str, *, pretrained: bool) -> Built:
    try:
        zoo: Any = importlib.import_module("deepfool.models.zoo")
    except ModuleNotFoundError as error:
        if error.name != "deepfool.models.zoo":
            raise
        zoo = None
    if zoo is None or name not in zoo.ZOO:
        raise _not_in_zoo(name, list(zoo.ZOO) if zoo is not None else [])
    module = zoo.load(name) if pretrained else zoo.load(name, pretrained=False)
    classes = list_names() if getattr(zoo.ZOO[name], "data", "") == "imagenet" else ()
    return Built(module, module, name, tuple(zoo.ZOO[name].input_shape), classes)


def _not_in_zoo(name: str, names: list[str]) -> InputError:
    by_suffix = {".onnx": "onnx", ".pt2": "export", ".safetensors": "file", ".pt": "file", ".pth": "file"}
    prefix = by_suffix.get(Path(name).suffix.lower())
    if prefix:
        return InputError(f"There is no network named {name!r}.", hint=f"give a file as {prefix}:{name}")
    error = unknown_name("network", name, names)
    others = f"other models start with one of {', '.join(PREFIXES)}"
    hint = f"{error.hint}{'' if error.hint.endswith('?') else ';'} {others}" if error.hint else others
    return InputError(f"There is no network named {name!r}.", hint=hint)


def _build_python(text: str, *, pretrained: bool = True) -> Built:
    """Call the user's own factory; imports work from the current directory, as with `python -m`."""
    name, colon, factory = text.partition(":")
    if not (name and colon and factory):
        raise InputError(f"py:package.module:factory was expected, got 'py:{text}'.")
    prepare_torchvision()  # which the code may import
    try:
        found = getattr(_import_here(name), factory)
    except AttributeError:
        raise unknown_name(f"function in {name}", factory, _public_names(name)) from None
    if isinstance(found, nn.Module) or not callable(found):
        built = _build_object(found)  # already a model
    else:
        built = _build_object(_call_factory(text, found))
    return replace(built, architecture=f"py:{text}")


def _import_here(name: str) -> Any:
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise ModelError(f"The module {name} needs {error.name}, which is not installed.") from error
        raise InputError(
            f"There is no module {name!r} to import.",
            hint="it is searched in the current directory and in Python's import path",
        ) from error
    except Exception as error:
        raise ModelError(f"The module {name} could not be imported: {type(error).__name__}: {error}") from error
    finally:
        if here in sys.path:
            sys.path.remove(here)


def _public_names(name: str) -> list[str]:
    return [key for key in vars(sys.modules[name]) if not key.startswith("_")]


def _call_factory(text: str, factory: Callable[[], Any]) -> Any:
    try:
        return factory()
    except DeepFoolError:
        raise
    except Exception as error:
        raise ModelError(f"py:{text} raised {type(error).__name__}: {error}") from error


def _build_file(text: str, arch: Any) -> Built:
    """Build the architecture without weights, and load them from a file."""
    if arch is None:
        raise InputError(
            f"file:{text} holds only weights; an architecture was expected too.",
            hint="give it with --arch (arch= in Python), such as torchvision:resnet18 or a name from the zoo",
        )
    state = read_state_dict(text)
    if isinstance(arch, str):
        if arch.startswith(("file:", "onnx:", "export:")):
            raise InputError(
                f"An architecture was expected, got {arch!r}.",
                hint="use a name from the zoo, or torchvision:, timm:, hf: or py:",
            )
        built = _build_spec(arch, pretrained=False)
    else:
        built = _build_object(arch)
    # A file has the library's names, or, if it was written from our module, the names of the whole module.
    whole = built.module.state_dict().keys() == state.keys()
    fill(built.module if whole else built.network, state, file=text, architecture=str(built.architecture))
    return built


BUILDERS: dict[str, Callable[..., Built]] = {
    "torchvision": build_torchvision,
    "timm": build_timm,
    "hf": build_huggingface,
    "onnx": build_onnx,
    "export": build_export,
    "py": _build_python,
}
PREFIXES = (*(f"{name}:" for name in BUILDERS), "file:")
