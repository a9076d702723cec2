"""`candidates="auto"`: the nearest class of all, with gradients for those only that can be it.

This is not part of Algorithm 2, which takes the gradients of all classes at every step. Most of them are far away, and
the last hidden layer says so at almost no cost: how steep the classes are there, relative to each other, is nearly
how steep they are at the input. Over the classes of a sample the ratio of the two varies by about a tenth on the
networks of the zoo. docs/algorithms/candidates.md describes the scheme; docs/benchmarks/speed.md has what it saves.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from deepfool import norms
from deepfool.attacks.shared.boundaries import Linearisation
from deepfool.attacks.shared.task import Task
from deepfool.classifier.jacobian import Tangent

FIRST, AGAIN = 3, 1
"""How many classes to take gradients for before looking which others can be nearer: at x_0, and later. Fewer at x_0
cost a second round on most images of the zoo, more are rows wasted (docs/benchmarks/speed.md)."""
TRUST = 1.4
"""By how much the slope of a class without a gradient may exceed what the last hidden layer and the steepest of the
known classes suggest; more where the known ones disagree by more. The smallest value with the answers of "all" on 1000
images of four networks in three settings (docs/benchmarks/speed.md)."""
WIDE = 64
"""Features from which on classes are left out: with fewer, slopes vary more over the classes than the layer says."""
WORTH, BEGIN = 2**20, 4
"""Multiplications of the rows that can be left out at a point, from which on it is worth asking which: below that, all
rows cost less than the question. BEGIN times as many at the first point of a sample, where the question takes several
rounds; below that, classes are left out from the second point on, and not at all without bounds, where few samples
have a second one. Chosen on mlp-mnist-small, fc500-mnist and lenet-mnist (0.1, 2.8 and 14 million) in batches of 20 to
200."""
CROWD = 128
"""How many times WORTH the whole batch has to spare: on fc500-mnist inside bounds that is a batch of 48, on lenet-mnist
of 10, on lenet-cifar10 (74 million) of 2. Chosen on these three in batches of 1 to 100; the times are in
docs/algorithms/candidates.md."""
SMALL, ROUND = 8, 2**24
"""At least SMALL samples (if there are) go through a round together, or as many as have ROUND multiplications in a row:
smaller rounds cost more than they save. Measured on the dense and convolutional networks of the zoo."""
MANY, AT_ONCE, MOST = 50, 8, 24
"""Of MANY classes or more, AT_ONCE are looked at before the bar is lowered to what they showed, and MOST in all at one
point. Chosen on EfficientNet-Lite0, where the first step was that of the full Jacobian on 30 of 30 images."""


def can_prune(task: Task) -> bool:
    """Whether classes may be left out: behind a last hidden layer that every path passes through, where the layer was
    measured to be a good judge (in l2 and linf, and without a mask), and where their rows are worth it.

    None of this depends on the machine. The size of the batch decides whether it is worth it, and so how many rows a
    sample takes; its answer is the same wherever the layer judges well (docs/benchmarks/speed.md has how often)."""
    asked, f = task.asked, task.model.f
    enough = asked.classes > FIRST + 1 and asked.x_0.shape[1] >= WIDE
    plain = asked.p in (2, math.inf) and asked.goal.any_class and asked.mask is None
    spared, least = _spared(task), WORTH * (BEGIN if asked.lower is None else 1)
    worth = spared >= least and spared * len(asked.x_0) >= WORTH * CROWD
    return enough and plain and worth and f.hidden_layer is not None


def _spared(task: Task) -> int:
    """Multiplications of the rows of a sample that can be left out at a point."""
    return task.model.f.row_work * (task.asked.classes - FIRST - 1)


def _begin_with(task: Task) -> int:
    """How many classes to take gradients for at x_0 before looking which others can be nearer."""
    return FIRST if _spared(task) >= WORTH * BEGIN else task.asked.classes - 1


class Slopes:
    """How steep the score differences of each sample are: what the last hidden layer says, and what gradients show."""

    def __init__(self, task: Task) -> None:
        asked = task.asked
        self.label = asked.label
        self.expected = torch.ones(asked.scores.shape, dtype=asked.x_0.dtype, device=asked.x_0.device)
        """(n, c): what the layer said of ||w'_k|| at x_0, up to a factor per sample; 1 if nothing."""
        self.trust = torch.full_like(self.expected[:, :1], math.inf)
        """(n, 1): how far to trust that; infinite where the layer says nothing, and no class may be left out."""
        self.factor = torch.full_like(self.expected, math.nan)
        """(n, c): ||w'_k||_q over what was expected, NaN where class k was never looked at."""

    def ask_hidden_layer(self, rows: Tensor, tangent: Tangent) -> bool:
        """Ask the last hidden layer, if there is one; says whether there is."""
        relative = tangent.relative_slopes(self.label[rows])
        if relative is None:
            return False
        relative = relative.to(self.expected.dtype)
        steepest = relative.amax(1, keepdim=True)
        # What is nearly flat there may still be steep at the input.
        relative = torch.maximum(relative / steepest, torch.full_like(relative, 0.25))
        known = steepest.isfinite() & (steepest > 0)
        self.expected[rows] = torch.where(known, relative, torch.ones_like(relative))
        self.trust[rows] = torch.where(known, TRUST, math.inf).to(self.trust.dtype)
        return True

    def learn(self, rows: Tensor, classes: Tensor, slopes: Tensor) -> None:
        """Classes (k, m) of these samples are this steep; that of the label itself says nothing."""
        factor = slopes / self.expected[rows].gather(1, classes)
        self.factor[rows[:, None], classes] = torch.where(classes == self.label[rows, None], math.nan, factor)

    def guess(self, rows: Tensor) -> Tensor:
        """(k, c): the slopes as far as they are known, and otherwise what the steepest known one suggests."""
        factor = self.factor[rows]
        steepest = self._steepest(factor)
        rest = torch.where(steepest > 0, steepest, torch.ones_like(steepest))
        return torch.where(factor.isfinite() & (factor > 0), factor, rest) * self.expected[rows]

    def limit(self, rows: Tensor) -> Tensor:
        """(k, c): how steep the classes without a gradient can be."""
        steepest = self._steepest(self.factor[rows])
        limit = self._margin(rows) * steepest * self.expected[rows]
        return torch.where((steepest > 0) & limit.isfinite(), limit, math.inf)

    def few_suffice(self, rows: Tensor) -> Tensor:
        """(k, 1): whether the layer judged the slopes so well that of very many classes the nearest few will do."""
        return self._margin(rows) <= TRUST

    def _margin(self, rows: Tensor) -> Tensor:
        """As much as the layer misjudged the steepest of the known classes, it may misjudge another."""
        factor = self.factor[rows]
        usual = torch.where(factor > 0, factor, math.nan).nanmedian(1, keepdim=True).values
        return torch.maximum(self.trust[rows], torch.nan_to_num(self._steepest(factor) / usual, 0.0, math.inf))

    @staticmethod
    def _steepest(factor: Tensor) -> Tensor:
        return torch.nan_to_num(factor, 0.0, 0.0).amax(1, keepdim=True)


def consider_nearest(linear: Linearisation, slopes: Slopes, tangent: Tangent) -> None:
    """Offer every class that can be the nearest, and few others.

    First the few classes that look nearest by their scores and expected slopes. Then all whose boundary would still be
    nearer if its slope were as steep as `Slopes.limit` allows; of many classes, the MOST that look nearest. The answer
    for one sample does not depend on the others in its batch. Each round looks at a class that some sample has not seen
    yet, so there are no more rounds than pairs of a sample and a class.
    """
    task, rows = linear.task, linear.rows
    own = task.asked.label[rows, None]
    gap = torch.nan_to_num(linear.gap, nan=math.inf).scatter(1, own, math.inf)
    fresh = bool(slopes.factor[rows].isnan().all())
    slopes.ask_hidden_layer(rows, tangent)  # at every point: on curved networks the slopes of x_0 soon mislead
    classes = (gap / slopes.guess(rows)).topk(_begin_with(task) if fresh else AGAIN, dim=1, largest=False).indices
    at = linear.everyone
    together = max(SMALL, ROUND // max(1, task.model.f.row_work))
    seen = torch.zeros_like(gap, dtype=torch.bool).scatter_(1, own, True)
    for _ in range(gap.numel()):
        slopes.learn(rows[at], classes, linear.consider(at, classes, tangent))
        seen[at[:, None], classes] = True
        nearest = linear.nearest.distance[:, None]
        bar = torch.where(nearest.isfinite(), slopes.limit(rows) * nearest, math.inf)
        open_ = (gap < bar) & ~seen
        if task.asked.classes >= MANY:
            open_ &= (seen.sum(1, keepdim=True) <= MOST) | ~slopes.few_suffice(rows)
        need = open_.sum(1)
        waiting = need.nonzero()[:, 0]
        if len(waiting) == 0:
            return
        at, width = waiting, min(AT_ONCE, task.asked.classes)
        if rows.device.type in norms.ON_THE_HOST:
            # Rows are taken for a whole batch at once: those that need the fewest go first, together with as many
            # others as make the round worth its forward pass. Elsewhere rows are cheap, and looks at numbers are not.
            few = need[waiting].clamp_max(AT_ONCE).sort().values[min(together, len(waiting)) - 1]
            at = waiting[need[waiting].clamp_max(AT_ONCE) <= few]
            width = min(int(need[at].max()), AT_ONCE)
        classes = nearest_open(open_[at], gap[at] / slopes.guess(rows[at]), own[at], width)
        tangent = task.model.linearise(rows[at], linear.x_i[at])


def nearest_open(open_: Tensor, distance: Tensor, own: Tensor, width: int) -> Tensor:
    """(k, width): of the classes marked in `open_` (k, c) those at the smallest distance.

    Where fewer are open the row is filled up with the label itself, `own` (k, 1), which is never nearest: which classes
    a sample looks at must not depend on its neighbours.

    >>> nearest_open(torch.tensor([[False, True, True]]), torch.tensor([[0.0, 2.0, 1.0]]), torch.tensor([[0]]), 3)
    tensor([[2, 1, 0]])
    """
    # An open class may be infinitely far (its slope is almost zero): it comes last, but before those not open.
    far = torch.nan_to_num(distance, nan=math.inf).clamp_max(torch.finfo(distance.dtype).max)
    classes = torch.where(open_, far, math.inf).topk(width, dim=1, largest=False).indices
    return torch.where(open_.gather(1, classes), classes, own)
