"""A hash that identifies a model: the weights to the last bit, the classes of the layers, and their settings."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from deepfool.models.settings import list_settings


def fingerprint(module: nn.Module, architecture: str = "") -> str:
    """Return the sha256 over all parameters and buffers, and over the class and the settings of each sub-module.

    Included:
        - the names, shapes, dtypes and bytes of parameters and buffers;
        - the names of the classes, so that a tanh instead of a ReLU makes a difference;
        - the settings: plain values that a sub-module has as attributes, such as a stride, a slope, an eps or a number
          of heads (`deepfool.models.settings` defines what a setting is);
        - the code of graphs (torch.fx, torch.export, ONNX, TorchScript), which contains their settings.

    Not included: the mode, the device and the memory layout; where the weights came from (a file and the library that
    wrote it give the same hash); hooks; anything that a forward pass changes; the source code of your classes and
    functions, of which only the names are used. So the hash is the same after a forward pass, and in another process.

    >>> model = nn.Linear(2, 1)
    >>> before = fingerprint(model)
    >>> with torch.no_grad():
    ...     _ = model.bias.add_(1e-3)
    >>> len(before), fingerprint(model) == before
    (64, False)
    >>> fingerprint(nn.LeakyReLU(0.1)) == fingerprint(nn.LeakyReLU(0.2))
    False
    """
    digest = hashlib.sha256()
    digest.update(f"architecture {architecture}\n".encode())
    for name, child in module.named_modules():
        digest.update(f"module {name} {type(child).__name__}\n".encode())
        for setting, text in list_settings(child):
            digest.update(f"setting {setting} {text}\n".encode())
        digest.update(f"code {_read_code(child)}\n".encode())
    for name, tensor in sorted(_tensors(module), key=lambda pair: pair[0]):
        digest.update(f"tensor {name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        # NumPy has no bfloat16, so the raw bytes are hashed for every type.
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _read_code(module: nn.Module) -> str:
    """The code of a graph as text; empty for Python modules."""
    if isinstance(module, torch.fx.GraphModule):
        return str(module.code)
    if isinstance(module, torch.jit.ScriptModule):
        # TorchScript numbers classes of the same name, differently in each process.
        return re.sub(r"___torch_mangle_\d+\.", "", str(getattr(module, "code", "")))
    return ""
