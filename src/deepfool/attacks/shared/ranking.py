"""Which boundaries look nearest from x_0: class gradients there rank the classes by their linearised distance."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from deepfool.attacks.shared.boundaries import step_to_boundary
from deepfool.attacks.shared.pruning import WIDE, Slopes
from deepfool.attacks.shared.task import Task
from deepfool.classifier.jacobian import Tangent, difference
from deepfool.norms import norm

OUT_OF_REACH = 10
"""A class that no point of the box reaches in the linear picture looks farther by this much times what is missing."""

PARALLEL = 0.995
"""The cosine from which on two gradients count as the same. In deep plain networks those of all classes can be: in the
median 1.000 on `mnist-net_256x6`, 0.99 on a sigmoid network, 0.25 to 0.86 on twelve others (24 images each)."""


@dataclass(frozen=True)
class Ranking:
    """The classes of every sample, in the order in which they are tried: nearest first."""

    order: Tensor
    """(n, m): the classes."""
    distance: Tensor
    """(n, m): how far they look; infinite where a class has no gradient at x_0."""
    slopes: Tensor
    """(n, k, d): the gradients of the first k of them."""
    gaps: Tensor
    """(n, m): what they have to gain."""

    @property
    def classes(self) -> int:
        return self.order.shape[1]

    def nearest(self, rows: Tensor) -> Tensor:
        """How far the nearest class of these samples looks."""
        return self.distance[rows, 0]

    def is_parallel(self, rows: Tensor, place: Tensor) -> Tensor:
        """Whether the gradient of the class at this place points the same way as that of the first."""
        first, other = self.slopes[rows, 0], self.slopes[rows, place]
        lengths = norm(first, 2) * norm(other, 2)
        return (place > 0) & ((first * other).sum(1) > PARALLEL * lengths)

    def weave_in_scores(self, rows: Tensor, lacking: Tensor | None = None) -> None:
        """Where the linear picture has misled: the first class stays, then the classes come by what they have to gain
        and by their distance, in turn; and all count as near as the first. Needs the slopes of all classes.

        With `lacking` (k, c), what each class has to gain at a point that fooled, the gains are those halfway there."""
        far, gaps = self.distance[rows], self.gaps[rows]
        halfway = gaps if lacking is None else (gaps + lacking.gather(1, self.order[rows])) / 2
        gains = torch.where(far.isinf(), far, halfway)
        gains[:, 0] = -math.inf
        by_score, by_distance = gains.argsort(1).argsort(1), torch.arange(self.classes, device=rows.device)
        order = torch.minimum(2 * by_score - 1, 2 * by_distance).argsort(1)
        self.distance[rows] = torch.where(far.gather(1, order).isinf(), math.inf, far[:, :1])
        for table in (self.order, self.gaps, self.slopes):
            table[rows] = table[rows[:, None], order]


def rank_classes(task: Task, candidates: int, keep: int) -> Ranking:
    """Take the gradients of at most `candidates` classes at x_0; keep those of the `keep` nearest."""
    asked, model, rows, n = task.asked, task.model, task.rows, len(task.asked.x_0)
    tangent = model.linearise_inputs(rows)
    x, (lower, upper) = asked.of(rows, asked.x_0), asked.box(rows)
    classes = _choose_classes(task, rows, tangent, candidates)
    reference = asked.goal.reference(rows, tangent.guide)
    gaps = (tangent.guide.gather(1, reference[:, None]) - tangent.guide.gather(1, classes)).clamp_min(0).to(x.dtype)
    gaps = torch.maximum(gaps, 2 * model.rounding.tolerance[rows, None].to(x.dtype))
    slopes, distances = [], []
    for columns, part in tangent.difference_rows(classes, reference):
        model.count(rows, backwards=part.shape[1])
        for j, k in enumerate(range(classes.shape[1])[columns]):
            w = part[:, j].to(x.dtype)
            if k == 0:
                seeds = difference(tangent.guide, classes[:, 0], reference)
                model.learn_rounding(rows, x, torch.nan_to_num(w, 0.0, 0.0, 0.0), seeds, tangent)
            w = torch.nan_to_num(asked.masked(rows, w), 0.0, 0.0, 0.0)
            step, _ = step_to_boundary(x, gaps[:, k], w, lower, upper, asked.p, asked.channels)
            # Out of reach in the linear picture is not out of reach: such classes come last.
            missing = 1 - ((w * step).sum(1) / gaps[:, k]).clamp(0, 1)
            far = asked.measure(step) * (1 + OUT_OF_REACH * missing)
            distances.append(torch.where((w != 0).any(1) & (classes[:, k] != asked.label[rows]), far, math.inf))
            slopes.append(w)
    distance, order = torch.stack(distances, 1).sort(1)
    first = order[:, :keep]
    near = torch.stack(slopes, 1)[torch.arange(len(rows), device=rows.device)[:, None], first]
    return Ranking(
        order=classes.new_zeros(n, classes.shape[1]).index_copy(0, rows, classes.gather(1, order)),
        distance=distance.new_full((n, classes.shape[1]), math.inf).index_copy(0, rows, distance),
        slopes=x.new_zeros(n, first.shape[1], x.shape[1]).index_copy(0, rows, near),
        gaps=gaps.new_zeros(n, classes.shape[1]).index_copy(0, rows, gaps.gather(1, order)),
    )


def _choose_classes(task: Task, rows: Tensor, tangent: Tangent, candidates: int) -> Tensor:
    """(k, m): the classes that look nearest by score and by how steep the last hidden layer says they are."""
    z, asked = tangent.guide, task.asked
    if not asked.goal.any_class or asked.classes <= candidates + 1:
        return asked.goal.classes(rows, z)
    slopes = Slopes(task)
    if asked.x_0.shape[1] >= WIDE:
        slopes.ask_hidden_layer(rows, tangent)
    label = asked.label[rows, None]
    far = torch.nan_to_num(z.gather(1, label) - z, nan=math.inf) / slopes.expected[rows].to(z.dtype)
    return far.scatter(1, label, math.inf).topk(candidates, dim=1, largest=False).indices
