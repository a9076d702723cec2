"""torchvision beside a torch that its compiled operators do not fit.

The wheels on PyPI are built against the CUDA build of torch, and their library cannot be opened with a CPU-only torch
of the same version. torchvision is meant to work without it, but its import fails because two box-suppression operators
are missing. No classifier calls them, so they are declared here without a body and the import succeeds. Calling them
still fails, as torchvision intends.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import torch

from deepfool.errors import require

OPERATORS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
"""What torchvision expects when it is imported, with the schemas of its C++ sources."""


def prepare_torchvision() -> None:
    """Make sure that `import torchvision` works, here and in other people's code; nothing is imported yet."""
    if "torchvision" in sys.modules or all(hasattr(torch.ops.torchvision, name) for name in OPERATORS):
        return
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None or os.name == "nt":  # on Windows the wheels fit each other
        return
    folder = str(Path(found.origin).parent)
    details = (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES)
    library = importlib.machinery.FileFinder(folder, details).find_spec("_C")
    try:
        if library is None or library.origin is None:
            raise OSError("there is no such library")
        torch.ops.load_library(library.origin)  # type: ignore[no-untyped-call]  # as torchvision does; a second time is for free
    except OSError:
        _declare()


def _declare() -> None:
    for name, schema in OPERATORS.items():
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", schema)


def import_torchvision(*, extra: str, purpose: str) -> Any:
    """Import torchvision, even if its compiled operators do not load."""
    prepare_torchvision()
    return require("torchvision", extra=extra, purpose=purpose)
