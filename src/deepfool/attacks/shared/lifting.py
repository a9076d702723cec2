"""Attacks in a subspace: the same search, in coordinates.

The model is asked at x = x_0 + back(c - c_0), with c_0 the coordinates of x_0. An attack sees c where it would see x,
and the gradients with respect to it; as the coordinates are orthonormal, the l2 norm of a step is that of the change in
x. With bounds, x is then moved into the box: it stays there exactly, and leaves the subspace only where it is clipped.
What is returned are the points in x, and their own norms.

Where the directions are single features, nothing of this is needed: that is a mask, exact in any norm and box.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from deepfool.attacks.shared.adversarial import Adversarial, Status
from deepfool.attacks.shared.arguments import check_bounds
from deepfool.classifier import Classifier
from deepfool.errors import InputError
from deepfool.norms import norm
from deepfool.subspaces import Subspace


class Lifted(nn.Module):
    """A model of coordinates. Which samples they belong to is said beforehand (`take`): the model depends on x_0."""

    def __init__(self, model: Any, x: Tensor, subspace: Subspace, lower: Tensor | None, upper: Tensor | None) -> None:
        super().__init__()
        self.model, self.subspace, self.like = model, subspace, x
        self.x_0 = x.detach().reshape(len(x), -1)
        self.c_0 = subspace.to(self.x_0)
        self.lower, self.upper = lower, upper
        self.rows = torch.arange(len(x), device=x.device)

    def take(self, rows: Tensor) -> None:
        """The next points belong to these samples."""
        self.rows = rows

    def lift(self, rows: Tensor, c: Tensor) -> Tensor:
        """The inputs (k, d) at coordinates (k, m) of these samples."""
        x = self.x_0[rows] + self.subspace.back(c - self.c_0[rows])
        if self.lower is None or self.upper is None:
            return x
        return torch.minimum(torch.maximum(x, self.lower[rows]), self.upper[rows])

    def forward(self, c: Tensor) -> Any:
        # A classifier also asks for two random points, to find out what the model returns.
        rows = self.rows if len(self.rows) == len(c) else torch.zeros(len(c), dtype=torch.long, device=c.device)
        return self.model(self.lift(rows, c).view(len(c), *self.like.shape[1:]))


def check_subspace(subspace: Any, x: Tensor, p: float, mask: Tensor | None) -> Subspace:
    """A subspace of the inputs that goes with the norm and the mask, or an error."""
    if isinstance(subspace, Tensor):
        subspace = Subspace.of(subspace)
    if not isinstance(subspace, Subspace):
        raise InputError(
            f"subspace must be a Subspace or an orthonormal basis (d, m), got {type(subspace).__name__}.",
            hint="deepfool.subspaces has bands, random ones, components and others.",
        )
    features = x[0].numel()
    if subspace.features != features:
        raise InputError(f"the subspace is one of {subspace.features} features, but x has {features}.")
    if mask is not None:
        raise InputError("a mask and a subspace are given: leave one of them out.")
    if subspace.mask is None and p != 2:
        raise InputError(
            f"a subspace keeps the l2 norm, so p must be 2, got {p:g}.", hint="single features go with any norm."
        )
    return subspace


def run_in(
    subspace: Subspace, search: Callable[..., Adversarial], model: Any, x: Tensor, *, p: float, bounds: Any,
    threshold: float | None, outputs: str, **shared: Any,
) -> Adversarial:  # fmt: skip
    """Search in a subspace; `search` is called with a model, inputs and arguments of its own."""
    if subspace.mask is not None:
        mask = subspace.mask.to(x.device).view(x.shape[1:])
        return search(model, x, p=p, bounds=bounds, mask=mask, threshold=threshold, outputs=outputs, **shared)
    if x.dtype not in (torch.float32, torch.float64):
        raise InputError(f"a subspace needs float32 or float64, got {x.dtype}.", hint="x.float() and model.float().")
    lower, upper = check_bounds(bounds, x, x.detach().reshape(len(x), -1))
    f = Classifier.of(model, threshold, outputs)
    lifted = Lifted(f.model, x, subspace, lower, upper)
    said = {None: outputs, True: "probabilities", False: "logits"}[f.said_probabilities]
    g = Classifier(lifted, threshold=f.threshold, outputs=said, memory_budget=f.memory_budget)
    found = search(g, lifted.c_0.clone(), p=p, bounds=None, threshold=None, outputs="auto", **shared)
    everyone = torch.arange(len(x), device=x.device)
    with torch.no_grad():
        y = torch.where((found.r != 0).any(1, keepdim=True), lifted.lift(everyone, found.x), lifted.x_0)
    size = norm(y - lifted.x_0, p)
    failed = (found.status == Status.STUCK) | (found.status == Status.EXHAUSTED)
    return replace(
        found, x=y.view(x.shape), r=(y - lifted.x_0).view(x.shape), norm=torch.where(failed, torch.inf, size)
    )
