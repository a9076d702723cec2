"""Attacks in coordinates: in a subspace, or in weighted features.

The model is asked at x = x_0 + back(c - c_0), with c_0 the coordinates of x_0. An attack sees c where it would see x,
and the gradients with respect to it; as the coordinates are orthonormal, the l2 norm of a step is that of the change in
x. With bounds, x is then moved into the box: it stays there exactly, and leaves the subspace only where it is clipped.
What is returned are the points in x, and their own norms.

Where the directions are single features, nothing of this is needed: that is a mask, exact in any norm and box.

Weighted norms ||w * r||_p are the plain ones in the coordinates c = w * x. The box and the mask are then those of x, in
these coordinates, so they stay exact, and so are steps to a linear boundary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from deepfool.attacks.shared.adversarial import Adversarial, Status
from deepfool.attacks.shared.arguments import check_bounds, check_mask
from deepfool.classifier import Classifier
from deepfool.errors import InputError
from deepfool.norms import norm
from deepfool.subspaces import Map, Subspace, read_subspace


class Lifted(nn.Module):
    """A model of coordinates. Which samples they belong to is said beforehand (`take`): the model depends on x_0."""

    def __init__(
        self, model: Any, x: Tensor, subspace: Subspace, lower: Tensor | None, upper: Tensor | None, *, boxed: bool
    ) -> None:
        """`boxed`: the coordinates have the same box, so that points leave it by rounding at most."""
        super().__init__()
        self.boxed = boxed
        self.input_entries = x[0].numel()
        """Of an input, which may have more of them than there are coordinates."""
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
        lower, upper = self.lower[rows], self.upper[rows]
        # Not minimum and maximum: at the bound itself they would halve the gradient.
        inside = torch.where(x < lower, lower, torch.where(x > upper, upper, x))
        return x + (inside - x).detach() if self.boxed and x.requires_grad else inside

    def forward(self, c: Tensor) -> Any:
        # A classifier also asks for two random points, to find out what the model returns.
        rows = self.rows if len(self.rows) == len(c) else torch.zeros(len(c), dtype=torch.long, device=c.device)
        return self.model(self.lift(rows, c).view(len(c), *self.like.shape[1:]))


def check_subspace(subspace: Any, x: Tensor, p: float, mask: Tensor | None, weights: Any = None) -> Subspace:
    """A subspace of the inputs that goes with the norm, the mask and the weights, or an error."""
    if isinstance(subspace, Tensor):
        subspace = Subspace.of(subspace)
    if isinstance(subspace, str):
        subspace = read_subspace(subspace, x.shape[1:])
    if not isinstance(subspace, Subspace):
        raise InputError(
            f"subspace must be a Subspace, a text or an orthonormal basis (d, m), got {type(subspace).__name__}.",
            hint="deepfool.subspaces has bands, random ones and others; band:1/8 is a text.",
        )
    features = x[0].numel()
    if subspace.features != features:
        raise InputError(f"the subspace is one of {subspace.features} features, but x has {features}.")
    if mask is not None:
        raise InputError("a mask and a subspace are given: leave one of them out.")
    if subspace.mask is None and weights is not None:
        raise InputError(
            "weights and a subspace are given: leave one of them out.", hint="single features go with weights."
        )
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
    _check_precision(x, "a subspace needs")
    lower, upper = check_bounds(bounds, x, x.detach().reshape(len(x), -1))
    inside = partial(search, p=p, bounds=None, **shared)
    return _lift(subspace, inside, model, x, lower, upper, threshold=threshold, outputs=outputs)


def run_weighted(
    weights: Tensor, search: Callable[..., Adversarial], model: Any, x: Tensor, *, p: float, bounds: Any,
    mask: Tensor | None, threshold: float | None, outputs: str, **shared: Any,
) -> Adversarial:  # fmt: skip
    """Search in the norm ||w * r||_p, with weights (d,); `search` is called as by `run_in`."""
    _check_precision(x, "weights need")
    w = weights.to(device=x.device, dtype=x.dtype)
    scaled = Subspace(len(w), len(w), lambda x: x * w.to(x), lambda c: c / w.to(c), None, "weights")
    lower, upper = check_bounds(bounds, x, x.detach().reshape(len(x), -1))
    box = None if lower is None or upper is None else (scaled.to(lower), scaled.to(upper))
    free = None if mask is None else check_mask(mask, x)
    inside = partial(search, p=p, bounds=box, mask=free, **shared)
    return _lift(
        scaled, inside, model, x, lower, upper, threshold=threshold, outputs=outputs, weigh=scaled.to, boxed=True
    )


def _check_precision(x: Tensor, who: str) -> None:
    if x.dtype not in (torch.float32, torch.float64):
        raise InputError(f"{who} float32 or float64, got {x.dtype}.", hint="x.float() and model.float().")


def _lift(
    subspace: Subspace, search: Callable[..., Adversarial], model: Any, x: Tensor, lower: Tensor | None,
    upper: Tensor | None, *, threshold: float | None, outputs: str, weigh: Map = lambda r: r, boxed: bool = False,
) -> Adversarial:  # fmt: skip
    """What a search finds in coordinates, as points of x; the norms are those of the perturbations, weighed."""
    f = Classifier.of(model, threshold, outputs)
    lifted = Lifted(f.model, x, subspace, lower, upper, boxed=boxed)
    said = {None: outputs, True: "probabilities", False: "logits"}[f.said_probabilities]
    g = Classifier(lifted, threshold=f.threshold, outputs=said, memory_budget=f.memory_budget)
    found = search(g, lifted.c_0.clone(), threshold=None, outputs="auto")
    everyone = torch.arange(len(x), device=x.device)
    with torch.no_grad():
        y = torch.where((found.r != 0).any(1, keepdim=True), lifted.lift(everyone, found.x), lifted.x_0)
    size = norm(weigh(y - lifted.x_0), found.p)
    failed = (found.status == Status.STUCK) | (found.status == Status.EXHAUSTED)
    return replace(
        found, x=y.view(x.shape), r=(y - lifted.x_0).view(x.shape), norm=torch.where(failed, torch.inf, size)
    )
