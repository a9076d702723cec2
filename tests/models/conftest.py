"""Shared by the tests of model sources: offline libraries, and the gradient check that attacks rely on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

# Read when the library is imported; otherwise an uncached name is retried for half a minute.
os.environ["HF_HUB_OFFLINE"] = "1"


def scores(module: nn.Module, x: Tensor) -> Tensor:
    """The tensor of scores, possibly inside an output object."""
    output: Any = module(x)
    return getattr(output, "logits", output)


def gradient_rows(module: nn.Module, x: Tensor, *, batched: bool) -> Tensor:
    """The gradients of the first three scores of each row, by one batched call or one call each."""
    x = x.detach().requires_grad_()
    output = scores(module, x)
    rows = min(3, output.shape[1])
    pick = torch.eye(output.shape[1], dtype=output.dtype)[:rows, None].expand(rows, *output.shape)
    if batched:
        return torch.autograd.grad(output, x, pick, is_grads_batched=True)[0]
    return torch.stack([torch.autograd.grad(output, x, v, retain_graph=True)[0] for v in pick])


def check_gradients(module: nn.Module, x: Tensor, *, batched: bool = True) -> None:
    """Gradients reach the input, agree with finite differences, and can be batched if `batched`."""
    alone = gradient_rows(module, x, batched=False)
    assert alone.isfinite().all()
    assert alone.abs().amax(dim=tuple(range(2, alone.ndim))).min() > 0, "a score does not depend on its input"
    check_slope(module, x, alone)
    if batched:
        torch.testing.assert_close(gradient_rows(module, x, batched=True), alone, rtol=1e-4, atol=1e-6)


def check_slope(module: nn.Module, x: Tensor, rows: Tensor) -> None:
    """Along the gradient of the first score, a central difference finds the gradient's length (float64 inputs only)."""
    if x.dtype != torch.float64:
        return
    length = rows[0].flatten(1).norm(dim=1)
    direction = rows[0] / length.view(-1, *[1] * (x.ndim - 1))
    step = 1e-6
    with torch.no_grad():
        difference = scores(module, x + step * direction)[:, 0] - scores(module, x - step * direction)[:, 0]
    torch.testing.assert_close(difference / (2 * step), length, rtol=1e-4, atol=1e-7)


@pytest.fixture
def gradients() -> Callable[..., None]:
    return check_gradients


class Bomb:
    """Pickles into a call that writes a file: proof that something was unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (open, (self.path, "w"))


@pytest.fixture
def bomb(tmp_path: Any) -> Iterator[Bomb]:
    """An object that must never be unpickled; the test fails if it was."""
    marker = tmp_path / "it-ran"
    yield Bomb(str(marker))
    assert not marker.exists(), "code inside a pickle was run"
