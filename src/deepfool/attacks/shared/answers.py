"""The best answer so far for each sample: one verb to report a point, one to give up."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from deepfool import norms
from deepfool.attacks.shared.adversarial import Adversarial, Evidence, Status
from deepfool.attacks.shared.counting import CountedModel
from deepfool.attacks.shared.question import Question
from deepfool.attacks.shared.rows import pick, put, put_where
from deepfool.norms import norm

NO_DIRECTION = (
    "the gradient is zero or not finite; is the model saturated, quantised, or masked on all that it looks at?"
)


LAST, STILL = 0.1, 1.005
"""A row had converged if its size, when the last tenth of its passes began, was at most so many times the final one."""


class Answers:
    """What the search for each sample has found so far, and how it ended."""

    def __init__(self, asked: Question, model: CountedModel) -> None:
        self.asked, self.model, self.rounding = asked, model, model.rounding
        n = len(asked.x_0)
        self.status = torch.full_like(asked.label, int(Status.EXHAUSTED))
        self.r = torch.zeros_like(asked.x_0)
        """(n, d): the perturbations to return."""
        self.size = torch.full((n,), math.inf, dtype=asked.x_0.dtype, device=asked.x_0.device)
        """(n,): the norm of the smallest perturbation that fools; infinite while there is none."""
        self.length = self.size.clone()
        """(n,): its l2 norm, which decides between two of one size: for p = 0 they often are."""
        self.adv_label = asked.label.clone()
        self.iterations = torch.zeros_like(asked.label)
        self.evidence = torch.zeros_like(asked.label)
        self.reason = [""] * n
        self.coarse = torch.zeros_like(asked.label, dtype=torch.bool)
        """(n,): whether the search ended before it came to refine what it had found."""
        self._history: list[tuple[Tensor, Tensor, Tensor]] = []
        """Rows, their passes and their sizes, each time that a size fell."""

    def is_fooled(self, rows: Tensor, z: Tensor) -> Tensor:
        """Where these scores reach the goal by more than rounding."""
        ahead = self.asked.goal.margin(rows, z) > self.asked.of(rows, self.rounding.tolerance)
        return ahead & (norm(z, math.inf) < math.inf)  # all of them finite

    def found(self, rows: Tensor) -> Tensor:
        """Which of these samples have an answer."""
        return self.asked.of(rows, self.size) < math.inf

    def report(
        self, rows: Tensor, r: Tensor, z: Tensor, *, fooled: Tensor | None = None, replace: bool = False,
        caution: str = "", evidence: Evidence = Evidence.GRADIENTS, once: bool = False,
    ) -> Tensor:  # fmt: skip
        """Perturbations r of these samples, with the scores z at x_0 + r; returns which of them fool.

        Of those that fool, the smallest so far is kept (with `replace`, this one). While none does, the latest is what
        is returned if none ever will. A sample may appear in `rows` several times, unless `once` says that they are in
        order and none does: then nothing has to be looked up in between. `fooled` is for a search that has decided that
        by itself.
        """
        fooled = self.is_fooled(rows, z) if fooled is None else fooled
        settled = self.asked.settled(rows, r)
        size = self.asked.measure(settled)
        smaller = size < self.asked.of(rows, self.size)
        if self.asked.p == 0:
            length = norm(settled, 2)
            smaller |= (size == self.size[rows]) & (length < self.length[rows])
        better = fooled if replace else fooled & smaller
        if once and self.asked.p != 0 and not caution and not any(self.reason):
            lost = ~fooled & (self.asked.of(rows, self.status) != Status.FOOLED)
            self._update(rows, r, z, size, better, better | lost, evidence)
            return fooled
        chosen = better.nonzero()[:, 0]
        if not bool((rows[1:] > rows[:-1]).all()):  # a sample may appear twice
            # Largest first: of several perturbations of one sample the last one is then the smallest.
            chosen = chosen[size[chosen].argsort(descending=True)]
            chosen = chosen[_last_of_each(rows[chosen])]
        self._keep(rows[chosen], r[chosen], z[chosen])
        self.size[rows[chosen]] = size[chosen]
        if self.asked.p == 0:
            self.length[rows[chosen]] = length[chosen]
        self.status[rows[chosen]] = int(Status.FOOLED)
        self.evidence[rows[chosen]] = int(evidence)
        self._history.append((rows[chosen], self.model.spent(rows[chosen]), size[chosen]))
        if caution or any(self.reason):  # an earlier attempt may have given up
            self._explain(rows[chosen], caution)
        lost = (~fooled & (self.status[rows] != Status.FOOLED)).nonzero()[:, 0]
        if len(lost):
            self._keep(rows[lost], r[lost], z[lost])
        return fooled

    def _update(
        self, rows: Tensor, r: Tensor, z: Tensor, size: Tensor, better: Tensor, kept: Tensor, evidence: Evidence
    ) -> None:
        """Answers where they are `better`, and points that are `kept`, without asking how many these are."""
        put_where(self.r, rows, kept, r)
        for table, where, new in (
            (self.adv_label, kept, z.argmax(1)), (self.size, better, size), (self.status, better, int(Status.FOOLED)),
            (self.evidence, better, int(evidence)),
        ):  # fmt: skip
            put(table, rows, torch.where(where, new, pick(table, rows)))
        self._history.append((rows, self.model.spent(rows), torch.where(better, size, math.inf)))

    def give_up(self, rows: Tensor, status: Status, why: str) -> None:
        """No more is done for these samples: those that have no answer by now end without one."""
        rows = rows[self.status[rows] != Status.FOOLED]
        self.status[rows] = int(status)
        self._explain(rows, why)

    def _keep(self, rows: Tensor, r: Tensor, z: Tensor) -> None:
        self.r[rows] = r
        self.adv_label[rows] = z.argmax(1)

    def _explain(self, rows: Tensor, why: str) -> None:
        for i in rows.tolist():
            self.reason[i] = why

    def converged(self) -> Tensor:
        """(n,): whether it was refined, and the last tenth of the passes made it less than 0.5 % smaller."""
        late = (1 - LAST) * self.model.spent(self.asked.everyone)
        before = torch.full_like(self.size, math.inf)
        for rows, passes, size in self._history:
            early = (passes <= late[rows]) & (size < math.inf)
            before[rows] = torch.where(early, size, before[rows])
        return (before <= STILL * self.size) & (self.status == Status.FOOLED) & ~self.coarse

    def result(self) -> Adversarial:
        """What the attack returns: everything in the order and shape of the inputs."""
        asked, everyone = self.asked, self.asked.everyone
        point = asked.clamp(everyone, asked.x_0 + self.r)
        lost = ~norm(point, math.inf).isfinite()  # a search that left the range of the type
        if point.device.type not in norms.ON_THE_HOST or bool(lost.any()):
            self.r[lost] = 0
            self.adv_label[lost] = asked.label[lost]
            point = asked.clamp(everyone, asked.x_0 + self.r)
        r = point - asked.x_0
        failed = (self.status == Status.STUCK) | (self.status == Status.EXHAUSTED)
        return Adversarial(
            x=asked.shaped(point), r=r.view(asked.like.shape), label=asked.label,
            adv_label=self.adv_label, norm=torch.where(failed, torch.inf, asked.measure(r)),
            iterations=self.iterations, status=self.status, forwards=self.model.forwards,
            backwards=self.model.backwards, evidence=self.evidence, converged=self.converged(),
            reason=tuple(self.reason), p=asked.p, unit=asked.unit,
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
