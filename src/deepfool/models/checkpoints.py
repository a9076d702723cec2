"""Weight files: read without running anything that they hold, and loaded only if every name and shape fits."""

from __future__ import annotations

import contextlib
import os
import pickle
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from deepfool.errors import InputError, ModelError

CONVERT = (
    "where you trust the file, open it with the code that wrote it and save its tensors with "
    "safetensors.torch.save_file(model.state_dict(), 'model.safetensors')"
)
# Where training scripts commonly put the weights inside a larger checkpoint.
WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "network")


def read_state_dict(file: str | Path) -> dict[str, Tensor]:
    """Read named tensors from a .safetensors file, or from a .pt/.pth/.bin file of tensors only.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "model.pt"
    >>> torch.save({"state_dict": {"module.bias": torch.zeros(2)}}, path)
    >>> read_state_dict(path)
    {'bias': tensor([0., 0.])}
    """
    path = Path(file).expanduser()
    suffix = path.suffix.lower()
    if suffix not in {".safetensors", ".pt", ".pth", ".bin"}:
        raise _unreadable(path)
    if not path.is_file():
        raise InputError(f"A file of weights was expected, but there is no file {str(file)!r}.")
    content = _read_safetensors(path) if suffix == ".safetensors" else _read_pickle(path)
    state = _unwrap(content)
    if state is None:
        raise ModelError(
            f"{path} was expected to hold a state dict (names and tensors), it holds {_describe(content)}."
        )
    return _without_prefix(state, "module.")


def _unreadable(path: Path) -> InputError:
    prefix = {".onnx": "onnx", ".pt2": "export", ".py": "py"}.get(path.suffix.lower())
    hint = f"that kind of file goes in as {prefix}:{path}" if prefix else CONVERT
    return InputError(f"A .safetensors, .pt, .pth or .bin file was expected, got {str(path)!r}.", hint=hint)


def _read_safetensors(path: Path) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} could not be read as safetensors: {error}") from error


def _read_pickle(path: Path) -> Any:
    try:
        with warnings.catch_warnings():  # about pickles that it is going to refuse anyway
            warnings.filterwarnings("ignore", message="Detected pickle protocol")
            return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(
            f"{path} is not a plain file of tensors and was not opened: a pickle can run code ({reason}).",
            hint=CONVERT,
        ) from error


@contextlib.contextmanager
def weights_only() -> Iterator[None]:
    """Make every torch.load inside refuse pickled objects, also those of libraries that ask for a bare unpickle.

    >>> with weights_only():
    ...     os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"]
    '1'
    """
    key = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(key)
    os.environ[key] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[key]
        else:
            os.environ[key] = before


def _unwrap(content: Any) -> dict[str, Tensor] | None:
    if not isinstance(content, Mapping):
        return None
    if content and all(isinstance(value, Tensor) for value in content.values()):
        return {str(name): value for name, value in content.items()}
    for key in WRAPPERS:
        if isinstance(content.get(key), Mapping):
            return _unwrap(content[key])
    return None


def _describe(content: Any) -> str:
    if isinstance(content, Mapping):
        return f"a dict with {_few(str(key) for key in content) or 'nothing in it'}"
    return f"a {type(content).__name__}"


def _without_prefix(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Drop what DataParallel puts before every name."""
    if all(name.startswith(prefix) for name in state):
        return {name[len(prefix) :]: value for name, value in state.items()}
    return state


def fill(network: nn.Module, state: Mapping[str, Tensor], *, file: str, architecture: str) -> None:
    """Load a state dict; every name must be there on both sides, with the same shape.

    >>> fill(nn.Linear(2, 1), {"weight": torch.zeros(1, 2)}, file="w.pt", architecture="linear")
    Traceback (most recent call last):
    ...
    deepfool.errors.ModelError: w.pt does not fit linear: missing bias. Hint: ...
    """
    wanted = network.state_dict()
    differing = [
        f"{name} is {tuple(state[name].shape)} in the file, {tuple(value.shape)} in the network"
        for name, value in wanted.items()
        if name in state and state[name].shape != value.shape
    ]
    faults = [
        ("missing", [name for name in wanted if name not in state]),
        ("unexpected", [name for name in state if name not in wanted]),
        ("of another shape:", differing),
    ]
    found = [f"{fault} {_few(names)}" for fault, names in faults if names]
    if found:
        raise ModelError(
            f"{file} does not fit {architecture}: {'; '.join(found)}.",
            hint="check the architecture; for another number of classes add ?num_classes=N to it",
        )
    network.load_state_dict(dict(state), strict=True)


def _few(names: Any) -> str:
    listed = list(names)
    return ", ".join(listed[:5]) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "")
