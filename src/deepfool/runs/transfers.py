"""Batches on their way to a device, and results on their way back: beside the work, not before and after it.

A copy between the host and a GPU runs beside other work only if the host's memory is pinned. Nothing waits for a batch
on its way there: the GPU's queue keeps the order. On the way back somebody has to wait, and does so when it needs the
numbers. Everywhere else these are plain copies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

PINNED = ("cuda",)
"""Kinds of devices that copy from and to pinned memory."""

Array: TypeAlias = "np.ndarray[Any, Any]"


def send(x: Array, device: torch.device, dtype: torch.dtype) -> Tensor:
    """A batch on its device, as `dtype`; the array is copied and may change afterwards.

    >>> send(np.zeros((2, 3), np.float32), torch.device("cpu"), torch.float64).dtype
    torch.float64
    """
    host = torch.tensor(x)
    if device.type not in PINNED:
        return host.to(device=device, dtype=dtype)
    # The device converts: in the smaller of the two types less would have to be sent, but the host would do the work.
    return host.pin_memory().to(device=device, non_blocking=True).to(dtype)


def fetch(found: Tensor) -> Callable[[], Array]:
    """Begin to copy a result to the host; the function that is returned waits for it.

    >>> fetch(torch.ones(2))()
    array([1., 1.], dtype=float32)
    """
    found = found.detach()
    if found.device.type not in PINNED:
        return lambda: found.cpu().numpy()
    host = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
    host.copy_(found, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record(torch.cuda.current_stream(found.device))

    def wait() -> Array:
        copied.synchronize()
        return host.numpy()

    return wait
