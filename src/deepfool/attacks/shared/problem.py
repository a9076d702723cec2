"""The border that every attack shares: arguments are checked (see arguments.py) and turned into one `Problem`.

Inside, samples are rows of flat features in the working precision (float32 for half-precision inputs); the model
only ever sees `Problem.inputs`, which have the shape, type and memory layout of what the user gave.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from deepfool.attacks.shared.adversarial import Adversarial, Status
from deepfool.attacks.shared.arguments import Bounds, Labels, check_bounds, check_labels, check_mask, check_target
from deepfool.classifier import Classifier, Model
from deepfool.classifier.jacobian import Tangent, cross_entropy, difference
from deepfool.errors import InputError
from deepfool.norms import distance, norm, step, step_in_box

Seeds: TypeAlias = "Callable[[Tensor, Tensor], Tensor]"
"""From rows and their scores (k, c) to the combination of scores (k, c) whose gradient is wanted."""

NO_DIRECTION = (
    "the gradient is zero or not finite; is the model saturated, quantised, or masked on all that it looks at?"
)

# A label counts as changed only beyond this share of what the scores are summed up from: less than that can flip back
# when the same point is run in another batch size, where sums are taken in another order. What they are summed up from
# is not seen, but two things tell of it: how large the scores are, and the sum of |w_i x_i|, w being the gradient of
# their difference. On trained networks (two, one and ten scores; dense and convolutional; with and without an offset)
# batches of 1, 7, 32 and 1000 differ by up to 3.4 units of rounding of the two together; 1e-6 is 8 in float32.
_TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@dataclass
class Problem:
    """One batch to attack, checked; and the bookkeeping of how each sample ends."""

    f: Classifier
    x_0: Tensor
    """(n, d), working precision."""
    scores: Tensor
    """(n, c) at x_0."""
    label: Tensor
    """(n,): the predicted class, to be left."""
    target: Tensor | None
    """(n,): the class to reach, or None for any other."""
    lower: Tensor | None
    upper: Tensor | None
    """(n, d), or None where nothing bounds the inputs."""
    mask: Tensor | None
    """(n, d) booleans: which features may change; None means all."""
    p: float
    shape: torch.Size
    like: Tensor
    """The user's x: shape, type and memory layout of what the model is given."""
    tolerance: Tensor
    """(n,): the margin of scores that counts as a changed label; grows with what is learnt of the rounding."""
    magnitude: Tensor
    """(n,): how large the scores at x_0 are, before a threshold is taken off."""

    running: Tensor
    """Indices of the samples still being worked on."""
    status: Tensor
    adv_label: Tensor
    r: Tensor
    """(n, d): the perturbation to return."""
    best: Tensor
    """(n,): the norm of the smallest perturbation that `improve` was shown; infinite before."""
    iterations: Tensor
    forwards: Tensor
    backwards: Tensor
    reason: list[str]
    opening: Tangent | None = None
    """The linearisation at x_0, if the attack asked for it: its scores and its first rows share a forward pass."""

    @property
    def classes(self) -> int:
        return self.scores.shape[1]

    def of(self, rows: Tensor, values: Tensor) -> Tensor:
        """values[rows], to be read only: where that is all of them, as at the first step, they are not copied."""
        return values if rows is self.running and len(rows) == len(values) else values[rows]

    def inputs(self, rows: Tensor, y: Tensor) -> Tensor:
        """The points y (k, d) of these samples as the model takes them: inside the box, shaped, typed."""
        return self._shaped(self.clamp(rows, y), rows)

    def clamp(self, rows: Tensor, y: Tensor) -> Tensor:
        """y moved into the box, and rounded to the inputs' own precision if that is half."""
        if self.lower is not None and self.upper is not None:
            y = y.clamp(self.of(rows, self.lower), self.of(rows, self.upper))
        return y if self.like.dtype == y.dtype else y.to(self.like.dtype).to(y.dtype)

    def _shaped(self, y: Tensor, rows: Tensor) -> Tensor:
        x = y.to(self.like.dtype).view(len(rows), *self.shape[1:])
        if x.ndim == 4 and self.like.is_contiguous(memory_format=torch.channels_last) and not self.like.is_contiguous():
            x = x.contiguous(memory_format=torch.channels_last)
        return x

    def clip(self, rows: Tensor, r: Tensor) -> Tensor:
        """r cut where x_0 + r would leave the box."""
        if self.lower is None or self.upper is None:
            return r
        return r.clamp(self.lower[rows] - self.x_0[rows], self.upper[rows] - self.x_0[rows])

    def begin_at(self, start: Tensor | Adversarial | None) -> Tensor:
        """The perturbations (n, d) to begin a search with: none, or those that lead to the points `start`."""
        if start is None:
            return torch.zeros_like(self.x_0)
        points = start.x if isinstance(start, Adversarial) else start
        if not isinstance(points, Tensor) or points.shape != self.shape:
            got = tuple(points.shape) if isinstance(points, Tensor) else type(points).__name__
            raise InputError(f"start must hold a point for each input, {tuple(self.shape)}, got {got}.")
        r = points.detach().to(self.x_0).reshape(self.x_0.shape) - self.x_0
        if not bool(r.isfinite().all()):
            raise InputError("start must be finite, got NaN or infinity.")
        r = r if self.mask is None else r * self.mask
        return self.clip(torch.arange(len(r), device=r.device), r)

    def tangent(self, rows: Tensor, y: Tensor, *, neck: bool = False) -> Tangent:
        """The linearisation at the points y of these samples, counted as a forward pass each."""
        self.count(rows, forwards=1)
        return Tangent(self.f, self.inputs(rows, y), neck=neck)

    def open(self, rows: Tensor) -> Tangent:
        """The linearisation at x_0 of these samples; the first time for all of them it costs nothing more."""
        kept, self.opening = self.opening, None
        if kept is not None and len(rows) == len(self.x_0):
            return kept
        return self.tangent(rows, self.x_0[rows], neck=True)

    def count(self, rows: Tensor, *, forwards: int = 0, backwards: int = 0) -> None:
        """Note the passes that these samples went through; a sample may stand in `rows` several times."""
        for counter, passes in ((self.forwards, forwards), (self.backwards, backwards)):
            if passes:
                counter.index_add_(0, rows, torch.full_like(rows, passes))

    def look(self, rows: Tensor, y: Tensor) -> Tensor:
        """The scores at the points y of these samples, counted as a forward pass each."""
        self.count(rows, forwards=1)
        with torch.no_grad():
            return self.f(self.inputs(rows, y)).detach()

    def look_and_climb(self, rows: Tensor, y: Tensor, of: Seeds) -> tuple[Tensor, Tensor]:
        """The scores at the points y, and the gradient there of one combination of them: a forward pass and a row.

        `of` says which combination, given rows and scores: `by_margin`, `by_loss`. The gradient is zero on features
        that may not change, and zero altogether where it is not finite: there is no way to go from there.
        """
        tangent = Tangent(self.f, self.inputs(rows, y))
        seeds = of(rows, tangent.scores)
        g = tangent.row(seeds).to(y.dtype)
        self.count(rows, forwards=1, backwards=1)
        self.allow_for_rounding(rows, y, g, share=seeds.abs().sum(1) / 2)
        if self.mask is not None:
            g = g * self.mask[rows]
        return tangent.scores, torch.where(g.isfinite().all(1, keepdim=True), g, torch.zeros_like(g))

    def allow_for_rounding(self, rows: Tensor, y: Tensor, w: Tensor, share: Tensor | float = 1.0) -> None:
        """Raise the tolerance to what the gradient w of a difference of scores at y tells; see `_TOLERANCE`.

        `share` is by how much the scores of w are weighted, where that is not 1.
        """
        terms = (w * y).abs().sum(1) / share
        terms = torch.where(terms.isfinite(), terms, torch.zeros_like(terms)).to(self.tolerance.dtype)
        tolerance = _TOLERANCE[self.like.dtype] * (self.magnitude[rows] + terms)
        self.tolerance.scatter_reduce_(0, rows, tolerance, "amax")

    def by_margin(self, rows: Tensor, z: Tensor) -> Tensor:
        """Seeds of the margin, which is climbed towards the best rival, or lifts the target above its best rival."""
        wanted = self.label[rows] if self.target is None else self.target[rows]
        rival = z.scatter(1, wanted[:, None], -torch.inf).argmax(1)
        return difference(z, rival, wanted) if self.target is None else difference(z, wanted, rival)

    def by_loss(self, rows: Tensor, z: Tensor) -> Tensor:
        """Seeds along the gradient of the cross-entropy: away from the label, or (its negative) towards the target."""
        if self.target is None:
            return cross_entropy(z, self.label[rows])[2]
        return -cross_entropy(z, self.target[rows])[2]

    def step_to_plane(self, rows: Tensor, x: Tensor, gap: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """The smallest r with w . r = gap (of either sign) from the points x of these samples, inside the box.

        Also says where there is one; elsewhere r is zero, or goes as far as the box lets it.
        """
        towards, length = torch.where((gap < 0).unsqueeze(-1), -w, w), gap.abs()
        if self.lower is None or self.upper is None:
            return step(length, towards, self.p), distance(length, towards, self.p).isfinite()
        room = torch.where(towards > 0, self.upper[rows] - x, x - self.lower[rows]).clamp_min(0)
        return step_in_box(length, towards, room, self.p)

    def margin(self, rows: Tensor, z: Tensor) -> Tensor:
        """By how much the wanted change of label is reached: positive beyond the boundary (NaN counts as not)."""
        own = z.gather(1, self.label[rows, None])[:, 0]
        others = z.scatter(1, self.label[rows, None], -torch.inf)
        if self.target is None:
            return others.amax(1) - own
        aim = self.target[rows, None]
        rivals = z.scatter(1, aim, -torch.inf).amax(1)
        return z.gather(1, aim)[:, 0] - rivals

    def is_fooled(self, rows: Tensor, z: Tensor) -> Tensor:
        """Where these scores show the wanted label beyond doubt of rounding."""
        return (self.margin(rows, z) > self.tolerance[rows]) & z.isfinite().all(1)

    def improve(self, rows: Tensor, r: Tensor, z: Tensor) -> Tensor:
        """Keep those of the perturbations r that fool, as the scores z at x_0 + r show, and are the smallest so far.

        A sample may stand in `rows` several times. Returns where they fool, smaller or not.
        """
        fooled = self.is_fooled(rows, z)
        size = norm(self.settled(rows, r), self.p)
        better = (fooled & (size < self.best[rows])).nonzero()[:, 0]
        if not bool((rows[1:] > rows[:-1]).all()):  # a sample may stand there twice
            # Largest first: of several perturbations of one sample the last one is then the smallest.
            better = better[size[better].argsort(descending=True)]
            better = better[_last_of_each(rows[better])]
        self.best[rows[better]] = size[better]
        self.finish(rows[better], r[better], z[better].argmax(1))
        return fooled

    def settled(self, rows: Tensor, r: Tensor) -> Tensor:
        """r as the model sees it: the point x_0 + r, clipped and rounded, minus x_0."""
        x_0 = self.of(rows, self.x_0)
        return self.clamp(rows, x_0 + r) - x_0

    def finish(self, rows: Tensor, r: Tensor, adv_label: Tensor, caution: str = "") -> None:
        """These samples are fooled by r, as a forward pass has shown."""
        self.status[rows] = Status.FOOLED
        self.r[rows] = r
        self.adv_label[rows] = adv_label
        if caution or any(self.reason):  # an earlier try may have given up
            self._fill_reason(rows, caution)

    def show(self, rows: Tensor, r: Tensor, z: Tensor) -> None:
        """Where a search stands that has not fooled yet: what is returned if it never does."""
        open_ = self.status[rows] != Status.FOOLED
        self.r[rows[open_]] = r[open_]
        self.adv_label[rows[open_]] = z[open_].argmax(1)

    def give_up(self, rows: Tensor, status: Status, why: str) -> None:
        """These samples end without an answer."""
        self.status[rows] = status
        self._fill_reason(rows, why)

    def end(self, rows: Tensor, status: Status, why: str) -> None:
        """No more is done for these samples: those that are not fooled by now end without an answer."""
        self.give_up(rows[self.status[rows] != Status.FOOLED], status, why)

    def _fill_reason(self, rows: Tensor, why: str) -> None:
        for i in rows.tolist():
            self.reason[i] = why

    def result(self) -> Adversarial:
        """What the attack returns: everything in the order and shape of the inputs."""
        everyone = torch.arange(len(self.x_0), device=self.x_0.device)
        lost = ~self.clamp(everyone, self.x_0 + self.r).isfinite().all(1)  # a search that left the range of the type
        self.r[lost] = 0
        self.adv_label[lost] = self.label[lost]
        y = self.clamp(everyone, self.x_0 + self.r)
        r = self.settled(everyone, self.r)
        size = norm(r, self.p)
        failed = (self.status == Status.STUCK) | (self.status == Status.EXHAUSTED)
        return Adversarial(
            x=self._shaped(y, everyone), r=r.view(self.shape), label=self.label, adv_label=self.adv_label,
            norm=torch.where(failed, torch.inf, size), iterations=self.iterations, status=self.status,
            forwards=self.forwards, backwards=self.backwards, reason=tuple(self.reason), p=self.p,
        )  # fmt: skip


def _last_of_each(rows: Tensor) -> Tensor:
    """Positions of the last occurrence of each value.

    >>> _last_of_each(torch.tensor([3, 1, 3, 1])).tolist()
    [3, 2]
    """
    if len(rows) == 0:
        return rows
    values, where = torch.unique(rows, return_inverse=True)
    position = torch.arange(len(rows), device=rows.device)
    return torch.zeros_like(values).scatter_reduce_(0, where, position, "amax", include_self=False)


@contextmanager
def pose(
    model: Model | Classifier,
    x: Tensor,
    *,
    p: float,
    bounds: Bounds | None = None,
    labels: Labels | None = None,
    target: int | Labels | None = None,
    mask: Tensor | None = None,
    threshold: float | None = None,
    outputs: str = "auto",
    linearise: bool = False,
) -> Iterator[Problem]:
    """Check the arguments, look at x_0 once, and hold the model frozen while the attack works on the Problem.

    `x` must not be empty (`Adversarial.empty` is the answer to that). With `linearise` the look at x_0 is kept for
    gradients, see `Problem.opening`.
    """
    f = Classifier.of(model, threshold, outputs)
    n = len(x)
    with f.frozen():
        like = x.detach().clone(memory_format=torch.preserve_format)  # also out of any inference mode
        flat = like.flatten(1) if like.ndim > 1 else like.view(n, 1)
        x_0 = flat.to(torch.promote_types(x.dtype, torch.float32)).contiguous()
        lower, upper = check_bounds(bounds, like, x_0)
        allowed = None if mask is None else check_mask(mask, like)
        opening = Tangent(f, like, neck=True) if linearise else None
        if opening is None:
            with torch.no_grad():
                scores = f(like).detach()
        else:
            scores = opening.scores
        magnitude = torch.nan_to_num(scores.abs().amax(1), 0.0, 0.0) + abs(f.cut)
        label = scores.argmax(1)
        usable = scores.isfinite().all(1)
        whole = torch.zeros(n, dtype=torch.long, device=x.device)
        problem = Problem(
            f=f, x_0=x_0, scores=scores, label=label, target=None, lower=lower, upper=upper, mask=allowed, p=p,
            shape=like.shape, like=like, tolerance=_TOLERANCE[x.dtype] * magnitude, magnitude=magnitude,
            running=torch.arange(n, device=x.device), status=whole + Status.EXHAUSTED, adv_label=label.clone(),
            r=torch.zeros_like(x_0), best=torch.full((n,), math.inf, dtype=x_0.dtype, device=x.device),
            iterations=whole.clone(), forwards=whole + 1, backwards=whole.clone(), reason=[""] * n,
            opening=opening,
        )  # fmt: skip
        if not bool(usable.all()):
            rows = (~usable).nonzero()[:, 0]
            problem.give_up(rows, Status.STUCK, "the scores at the input itself are not finite")
        if labels is not None:
            true = check_labels(labels, "labels", n, scores)
            wrong = usable & (true != label)
            problem.give_up(wrong.nonzero()[:, 0], Status.MISCLASSIFIED, "the input itself is misclassified")
            usable = usable & (true == label)
        problem.running = usable.nonzero()[:, 0]
        if target is not None:
            problem.target = check_target(target, label, problem.running, scores)
        yield problem
