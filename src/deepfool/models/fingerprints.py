"""A hash that says which model it was: the weights to the last bit, and the classes of the layers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn


def fingerprint(module: nn.Module, architecture: str = "") -> str:
    """Return the sha256 over the names, shapes, dtypes and bytes of all parameters and buffers.

    The classes of the sub-modules go in too, so that the same weights with a tanh instead of a ReLU differ. The place
    that the weights came from does not: a file and the library that wrote it give the same answer.

    >>> model = nn.Linear(2, 1)
    >>> before = fingerprint(model)
    >>> with torch.no_grad():
    ...     _ = model.bias.add_(1e-3)
    >>> len(before), fingerprint(model) == before
    (64, False)
    """
    digest = hashlib.sha256()
    digest.update(f"architecture {architecture}\n".encode())
    for name, child in module.named_modules():
        digest.update(f"module {name} {type(child).__name__}\n".encode())
    for name, tensor in sorted(_tensors(module), key=lambda pair: pair[0]):
        digest.update(f"tensor {name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        # numpy has no bfloat16: the bytes are read as such, whatever the type.
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)
