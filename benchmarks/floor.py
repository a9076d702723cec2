"""How close an attack is to the machine's limit: its time divided by the time of the bare passes it made."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from deepfool.classifier.jacobian import Tangent


def record(attack: Callable[[nn.Module], Any], model: nn.Module) -> list[tuple[Tensor, list[Tensor] | None]]:
    """The passes that an attack makes, in order: inputs, and the stacks of seeds of the rows (None: no gradient)."""
    events: list[tuple[Tensor, list[Tensor] | None]] = []
    pull_back = Tangent._pull_back

    def note(module: nn.Module, args: tuple[Tensor]) -> None:
        events.append((args[0].detach().clone(), [] if args[0].requires_grad else None))

    def note_rows(tangent: Tangent, seeds: Tensor, *, keep: bool) -> Tensor:
        rows = events[-1][1]
        if rows is None:
            raise RuntimeError("rows of a linearisation were taken after another forward pass")
        rows.extend(seeds.clone().split(1 if tangent.takes_rows_alone else len(seeds)))
        return pull_back(tangent, seeds, keep=keep)

    hook = model.register_forward_pre_hook(note)
    try:
        with patch.object(Tangent, "_pull_back", note_rows):
            attack(model)
    finally:
        hook.remove()
    return events


def replay(events: list[tuple[Tensor, list[Tensor] | None]], model: nn.Module, batched: bool) -> float:
    """Seconds for the same passes alone."""
    asked = [(p, p.requires_grad) for p in model.parameters()]
    for p, _ in asked:
        p.requires_grad_(False)
    start = time.perf_counter()
    for x, stacks in events:
        if stacks is None:
            with torch.no_grad():
                model(x)
            continue
        x.requires_grad_(True)
        z = model(x)
        for seeds in stacks:
            if batched and len(seeds) > 1:
                torch.autograd.grad(z, x, seeds, is_grads_batched=True, retain_graph=True)
            else:
                for seed in seeds:
                    torch.autograd.grad(z, x, seed, retain_graph=True)
    seconds = time.perf_counter() - start
    for p, wanted in asked:
        p.requires_grad_(wanted)
    return seconds
