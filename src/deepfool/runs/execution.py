"""How a model is run: the device, and what makes it faster. Measurements are in docs/benchmarks/speed.md."""

from __future__ import annotations

import contextlib
import ctypes
import sys

import torch
from torch import Tensor, nn

from deepfool.errors import InputError

WIDE = 64
"""With at least this many channels, a convolution is faster with the channels last in memory."""


def choose_device(device: str) -> str:
    """The device to use; "auto" is a GPU if there is one.

    >>> choose_device("cpu")
    'cpu'
    """
    if device == "auto":
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    if not isinstance(device, str):
        raise InputError(f"device must be a name such as cpu or cuda:1, got {device!r:.80}.")
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, ValueError, TypeError) as error:
        why = (str(error).splitlines() or [""])[0]
        raise InputError(f"the device {device!r:.80} cannot be used: {why}") from error
    if torch.device(device).type == "meta":
        raise InputError("the device 'meta' cannot be used: it holds no values.", hint="cpu, cuda, mps or auto.")
    return device


def prefers_channels_last(model: nn.Module) -> bool:
    """Whether most of the convolution weights are in wide convolutions.

    >>> prefers_channels_last(nn.Conv2d(96, 192, 5)), prefers_channels_last(nn.Conv2d(1, 20, 5))
    (True, False)
    >>> prefers_channels_last(nn.Linear(2, 2))
    False
    """
    convolutions = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    wide = sum(layer.weight.numel() for layer in convolutions if layer.out_channels >= WIDE)
    return 2 * wide > sum(layer.weight.numel() for layer in convolutions)


def lay_out(x: Tensor, *, channels_last: bool) -> Tensor:
    """A batch in the given memory layout; only batches of images can change theirs.

    >>> lay_out(torch.zeros(2, 3, 4, 4), channels_last=True).stride()
    (48, 1, 12, 3)
    """
    return x.contiguous(memory_format=torch.channels_last) if channels_last and x.ndim == 4 else x


def compile_model(model: nn.Module) -> nn.Module:
    """Compile the model with torch.compile, for any batch size and for several gradients per forward pass.

    Compiling takes about a minute, at the first batch. It pays off in long runs of models with many small operators.
    The gradients of several classes are then computed one after the other.
    """
    from torch._functorch import config

    # Otherwise the first backward pass overwrites values that the second one needs.
    config.donated_buffer = False
    try:
        return torch.compile(model, dynamic=True)  # type: ignore[return-value]  # a module for a module
    except RuntimeError as error:
        raise InputError(f"this torch cannot compile models: {error}", hint="leave compile out.") from error


def keep_freed_memory() -> None:
    """Let the C library keep freed memory for the next batch, on Linux.

    Each pass frees and allocates the same large activations; returning them costs a page fault for every 4 kB. This is
    for our own processes (the command line and its workers), not for programs that only import the package.
    """
    if sys.platform != "linux":
        return
    trim_threshold, mmap_threshold, most = -1, -3, 2**31 - 1  # names and numbers of glibc's malloc.h
    with contextlib.suppress(OSError, AttributeError):  # another C library
        library = ctypes.CDLL(None)
        # Older versions accept 32 MB at most. Setting only the other one would fix this at 128 kB: even slower.
        if library.mallopt(mmap_threshold, most) or library.mallopt(mmap_threshold, 2**25):
            library.mallopt(trim_threshold, most)
