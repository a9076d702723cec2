"""The nearest linearised boundary: of these classes, in this norm, inside this box.

Around a point x the classifier is taken to be linear: class k is reached where w_k . r = gap_k, with w_k the gradient
of its score difference and gap_k what it has to gain. `NearestBoundary` finds the class whose boundary is nearest, and
the smallest step to it. DeepFool, FAB, `smallest` and the closed form for affine classifiers all use it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from deepfool import norms
from deepfool.attacks.shared.adversarial import Status
from deepfool.attacks.shared.rows import pick
from deepfool.attacks.shared.task import Task
from deepfool.boxes import step_in_box
from deepfool.classifier.jacobian import Tangent
from deepfool.norms import distance, dual, norm, reach, step


def step_to_boundary(
    x: Tensor, gap: Tensor, w: Tensor, lower: Tensor | None, upper: Tensor | None, p: float, channels: int = 1
) -> tuple[Tensor, Tensor]:
    """The smallest r with w . r = gap (of either sign) from the points x (k, d), inside the box.

    Also says where there is one; elsewhere r is zero, or goes as far as the box lets it.

    >>> step_to_boundary(torch.zeros(1, 2), torch.tensor([-10.0]), torch.tensor([[3.0, 4.0]]), None, None, 2)
    (tensor([[-1.2000, -1.6000]]), tensor([True]))
    """
    towards, length = w, gap
    if w.device.type not in norms.ON_THE_HOST or bool((gap < 0).any()):
        towards, length = w * torch.where(gap < 0, -1.0, 1.0).to(w.dtype).unsqueeze(-1), gap.abs()
    if lower is None or upper is None:
        return step(length, towards, p), distance(length, towards, p).isfinite()
    return step_in_box(length, towards, find_room(x, towards, lower, upper), p, channels)


def find_room(x: Tensor, w: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """How far each feature of x may move along the sign of w before it meets its bound.

    >>> find_room(torch.tensor([0.2, 0.1]), torch.tensor([1.0, -3.0]), torch.zeros(2), torch.ones(2))
    tensor([0.8000, 0.1000])
    """
    sign = w.sign()
    # A choice by `where` takes many times as long.
    wall = torch.mul(sign, torch.finfo(w.dtype).max).clamp_(lower, upper)
    return wall.sub_(x).mul_(sign).clamp_min_(0)


IN_TURN = 3
"""Inside a box, classes are tried one after another, since the nearest is mostly among the first. Where looking at
numbers means waiting, only so many, and then twice as many each time: with 1000 classes that is at most 12 times."""


class NearestBoundary:
    """The nearest linearised boundary of each point x (k, d) among the classes offered so far."""

    def __init__(
        self, x: Tensor, lower: Tensor | None, upper: Tensor | None, p: float, *, stretch: bool = False,
        channels: int = 1,
    ) -> None:  # fmt: skip
        """`stretch`: where no boundary can be reached in the box, take the step that goes as far towards one as it can;
        its distance stays infinite."""
        self.x, self.lower, self.upper, self.p, self.stretch = x, lower, upper, p, stretch
        self.channels = channels
        self.distance = x.new_full((len(x),), math.inf)
        self.step = torch.zeros_like(x)
        self.gap = self.distance.clone()
        """Infinite where nothing was found."""
        self.w = torch.zeros_like(x)
        self.l_hat = torch.full((len(x),), -1, dtype=torch.long, device=x.device)
        """The class whose boundary it is; -1 where nothing was found."""
        self._begun = False

    def offer(self, at: Tensor, classes: Tensor, gap: Tensor, w: Tensor, free: Tensor) -> None:
        """Classes (m, j) of the points `at` (m,): their gaps (m, j) >= 0, gradients (m, j, d), distances with no box.

        A step in the box is never shorter than the free one. So classes are tried in the order of their free distances,
        and a point is done as soon as the next free distance is no smaller than what it has. Nor is it shorter than the
        free one of the features that have room to move, which saves most of the later tries.
        """
        if self.lower is None or self.upper is None:
            far, best = free.min(1)
            k, gap, w = (_choose(v, best) for v in (classes, gap, w))
            self._take(at, far < self.distance[at], far, k, gap, w, step(gap, w, self.p))
            return
        order = free.argsort(1)
        free = free.gather(1, order)
        on_host, turn = free.device.type in norms.ON_THE_HOST, 0
        while turn < free.shape[1]:
            here = (free[:, turn] < self.distance[at]).nonzero()[:, 0]
            if len(here) == 0:
                return
            wide = 1 if on_host or turn < IN_TURN else turn
            columns = order[here, turn : turn + wide]
            self._try(at[here], *(_choose(v, columns, here) for v in (classes, gap, w)))
            turn += wide

    def _try(self, who: Tensor, k: Tensor, gap: Tensor, w: Tensor) -> None:
        """The steps to the boundaries of some classes (m, j) of each of these points, inside the box."""
        x, lower, upper = (pick(v, who)[:, None] for v in (self.x, self.lower, self.upper) if v is not None)
        room = find_room(x, w, lower, upper)
        if self._begun and self.p > 1 and w.device.type in norms.ON_THE_HOST:  # in l1 that says next to nothing
            free = distance(gap, w * (room > 0), self.p).amin(1)
            near = ((free < self.distance[who]) | (self.l_hat[who] < 0)).nonzero()[:, 0]
            if len(near) == 0:
                return
            who, k, gap, w, room = (pick(v, near) for v in (who, k, gap, w, room))
        r_k, possible = step_in_box(gap, w, room, self.p, self.channels)
        size, best = norm(r_k, self.p, self.channels).masked_fill(~possible, math.inf).min(1)
        closer = size < self.distance[who]
        if self.stretch:
            closer |= self.gap[who].isinf()
        self._take(who, closer, size, *(_choose(v, best) for v in (k, gap, w, r_k)))

    def _take(self, who: Tensor, closer: Tensor, size: Tensor, k: Tensor, gap: Tensor, w: Tensor, r_k: Tensor) -> None:
        """Where it is `closer`. Nobody asks how many these are: on a GPU the host would have to wait for the answer."""
        self._begun = True
        kept = self.l_hat, self.gap, self.distance, self.w, self.step
        found = k, gap, size, w, r_k
        if self.x.device.type in norms.ON_THE_HOST:
            here = closer.nonzero()[:, 0]
            if len(here) == len(self.x):
                self.l_hat, self.gap, self.distance, self.w, self.step = found
            else:
                for old, new in zip(kept, found, strict=True):
                    old.index_copy_(0, who[here], pick(new, here))
            return
        for old, new in zip(kept, found, strict=True):
            old[who] = torch.where(closer if new.ndim == 1 else closer[:, None], new, old[who])


def _choose(values: Tensor, columns: Tensor, rows: Tensor | None = None) -> Tensor:
    """(m, j, ...): values[i, columns[i]] for each i, or of these rows; `columns` is (m,) or (m, k)."""
    n, m = values.shape[:2]
    if m == 1 and rows is None:
        return values.view(*columns.shape, *values.shape[2:])
    if values.ndim == 2 and rows is None:
        return values.gather(1, columns.view(n, -1)).view_as(columns)
    rows = torch.arange(n, device=values.device) if rows is None else rows
    rows = rows if columns.ndim == 1 else rows[:, None]
    if values.ndim == 2:
        return values[rows, columns]
    if values.is_contiguous():
        flat, chosen = values.flatten(0, 1), rows * m + columns
    else:  # gradients come class by class
        flat, chosen = values.transpose(0, 1).flatten(0, 1), columns * n + rows
    return flat.index_select(0, chosen.flatten()).view(*columns.shape, *values.shape[2:])


class Linearisation:
    """A batch of samples, linearised at x_i: offers classes to `nearest`, and says why nothing was found."""

    def __init__(
        self, task: Task, rows: Tensor, x_i: Tensor, z: Tensor, gap: Tensor, reference: Tensor, *,
        stretch: bool = False, ahead: bool = False,
    ) -> None:  # fmt: skip
        """`gap` (k, c) is what each class has to gain on `reference` (k,); negative beyond its boundary, or `ahead`
        says that none is."""
        asked = task.asked
        self._ahead = ahead
        self.task, self.rows, self.x_i, self.z, self.gap, self.reference = task, rows, x_i, z, gap, reference
        self.nearest = NearestBoundary(x_i, *asked.box(rows), asked.p, stretch=stretch)
        self.everyone = torch.arange(len(rows), device=rows.device)
        self._finite = torch.zeros_like(rows, dtype=torch.bool)
        self._sloped = torch.zeros_like(self._finite)

    def consider(self, at: Tensor, classes: Tensor, tangent: Tangent) -> Tensor:
        """Take the gradients of these classes (m, j) for the samples `at` (m,), and offer them.

        `tangent` is the linearisation of just those samples. Returns the dual norms (m, j) of the gradients.
        """
        task, asked, rows = self.task, self.task.asked, self.rows[at]
        gap = self.gap[at].gather(1, classes)
        lengths = []
        for columns, whole in tangent.difference_rows(classes, self.reference[at]):
            task.model.count(rows, backwards=whole.shape[1])
            whole = whole.to(self.x_i.dtype)
            part = gap[:, columns]
            w = asked.masked(rows, whole)
            length = norm(w, dual(asked.p))
            free = reach(part.abs(), length)
            nearest = _choose(whole, free.argmin(1))
            task.model.rounding.learn(rows, pick(self.x_i, at), nearest)
            lengths.append(length)
            self._sloped[at] |= free.isfinite().any(1)
            self._finite[at] |= length.isfinite().any(1)
            if not self._ahead and bool((part < 0).any()):  # the same planes, seen from the other side
                w = torch.where((part < 0).unsqueeze(-1), -w, w)
            self.nearest.offer(at, classes[:, columns], part.abs(), w, free)
        return torch.cat(lengths, 1)

    def has_step(self) -> Tensor:
        """Which samples have a step to take."""
        length = norm(self.nearest.step, math.inf)
        return (self.nearest.l_hat >= 0) & (length > 0) & length.isfinite() & self.z.isfinite().all(1)

    def give_up(self, stuck: Tensor) -> None:
        """These samples have no step to take: they end as STUCK, with the reason."""
        for j in stuck.nonzero()[:, 0].tolist():
            why = _explain(bool(self.z[j].isfinite().all()), bool(self._finite[j]), bool(self._sloped[j]))
            self.task.best.give_up(self.rows[j : j + 1], Status.STUCK, why)


def _explain(scores_finite: bool, gradient_finite: bool, sloped: bool) -> str:
    if not scores_finite:
        return "the scores became NaN or infinite on the way"
    if not gradient_finite:
        return "the gradients are NaN or infinite; look for a division by zero or a square root of zero in the model"
    if not sloped:
        return "the gradients are zero; is the model saturated, quantised, or masked on all that it looks at?"
    return "the bounds leave no room to cross any linearised boundary"
