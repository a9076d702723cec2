"""`certify`: a lower bound beside the perturbation that was found.

lower       the model becomes a graph of affine maps, sums and ReLUs, or is refused; its cost is estimated
attack      an upper bound, unless one is given
radius      linear bounds and a fixed point, for all samples together
branch      for each sample, until the bounds meet or its time is over
confirm     points are judged by the model itself; a lower bound above one of them is a bug, and said to be
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from deepfool.attacks.shared.adversarial import Adversarial
from deepfool.attacks.shared.aims import Aim, Other, read_goal
from deepfool.attacks.shared.alternatives import open_aim
from deepfool.attacks.shared.arguments import (
    Bounds,
    Labels,
    check_adversarial,
    check_inputs,
    check_labels,
    spread_target,
)
from deepfool.attacks.shared.question import Question
from deepfool.attacks.shared.rounding import Rounding
from deepfool.attacks.shared.task import prepare
from deepfool.attacks.smallest import smallest
from deepfool.certificates.ball import Ball
from deepfool.certificates.branching import EXACT, Tree
from deepfool.certificates.certificate import Certificate, Proof
from deepfool.certificates.checking import check_norm, settle
from deepfool.certificates.costs import estimate
from deepfool.certificates.graph import Graph
from deepfool.certificates.lowering import lower
from deepfool.certificates.radius import ROUNDS, begin_with, certify_radius
from deepfool.certificates.readings import check_provable, split_by_reading
from deepfool.certificates.rounding import find_slack
from deepfool.certificates.timing import Watch
from deepfool.classifier import Classifier, Model
from deepfool.errors import InputError, SoundnessError
from deepfool.norms import norm
from deepfool.values import as_number, check_callable

TOGETHER = 500_000
"""Entries of all nodes of the samples that are bounded together, at most."""
ALL_LAYERS = 0.1
"""Bounds of later layers are computed again after a split if a pass takes at most this share of the time."""
LEANS, FURTHER = (1.0, 3.0, math.inf), 1.1
"""What is tried on the first sample, on a ball so much larger: how far the lines lean to the flat one. On
conv-mnist-certified in l2 lines that lean by 3 prove half as much again as the usual ones; on undefended networks they
are worse."""
TRIED = 0.1
"""They are tried if a pass takes at most this share of the time."""
WORTH = 0.3
"""Branch and bound is begun if a pass takes at most this share of the time that is left."""


def certify(
    model: Model | Classifier,
    x: Tensor,
    *,
    p: float,
    bounds: Bounds | None,
    upper: Adversarial | Tensor | Sequence[float] | None = None,
    seconds: float = 1.0,
    mask: Tensor | None = None,
    target: int | Labels | None = None,
    goal: str | Aim | None = None,
    on_progress: Callable[[int, int], None] = lambda done, all_: None,
) -> Certificate:
    """How far away the decision boundary is at least, proved, beside how far away it is at most.

    Args:
        model: affine layers, ReLU, leaky ReLU, sigmoid, tanh, max-pooling and sums of them, however they are written.
            What cannot be bounded is refused by name before any work is done.
        x: (n, ...), the inputs. Each keeps the label that the model predicts for it.
        p: 1, 2 or inf.
        bounds: (lowest, highest), numbers or tensors, or None: where perturbed inputs may lie.
        upper: what an attack found for these inputs, in any norm; or norms (n,), infinite where nothing is known.
            Without it `smallest` is run.
        seconds: how long to work on each sample. Affine models take no time, and small networks seldom all of it.
        mask: which features may change, as for the attacks.
        target: only this class counts, one for all or one per sample.
        goal: what counts as a changed decision, as for the attacks; top:K and confidence:C are refused. With a goal,
            `label` numbers its alternatives.
        on_progress: called with how many samples are done, and how many there are.

    The claim is in docs/algorithms/certify.md, word for word.

    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> _ = torch.nn.init.eye_(model.weight)
    >>> answer = certify(model, torch.tensor([[3.0, 1.0]]), p=2, bounds=None)
    >>> answer, answer.lower.round(decimals=3)
    (Certificate(1 samples: 1 exact, median lower/upper 1.000), tensor([1.4140], dtype=torch.float64))
    """
    p = check_norm(p)
    check_inputs(x)
    time = as_number(seconds)
    if time is None or not 0 <= time < math.inf:
        raise InputError(f"seconds must be a finite number >= 0, got {seconds!r:.80}.")
    check_callable(on_progress, "on_progress")
    if len(x) == 0:
        return Certificate.empty(x, p)
    aim, target = read_goal(goal, target)
    check_provable(aim)
    f = Classifier.of(model, reads=aim.reads)
    if not isinstance(aim, Other):
        asked = {"bounds": bounds, "mask": mask, "seconds": seconds}
        return _certify_goal(f, x, aim, target, upper, on_progress, p=p, **asked)
    with prepare(f, x, p=p, bounds=bounds, mask=mask, target=target) as task:
        graph = lower(f, task.asked.like, lambda graph: settle(graph, time))
        found = _Found.of(upper, f, task.asked, p, bounds=bounds, mask=mask, target=target)
        return _Certifying(f, graph, task.asked, target, found, time).run(on_progress)


def _certify_goal(
    f: Classifier, x: Tensor, aim: Aim, target: Any, upper: Any, on_progress: Callable[[int, int], None], **asked: Any
) -> Certificate:
    """The certificates of samples that are read alike together, in the order of the inputs."""
    n = len(x)
    wanted = None if target is None else spread_target(target, n, x.device)
    with f.frozen(), torch.no_grad():
        z = f(x).detach()
    begun = open_aim(aim, z, None, None if wanted is None else check_labels(wanted, "target", n, z))
    parts: list[Certificate] = []
    rows: list[Tensor] = []
    for own, g in split_by_reading(f, z, begun):
        picked: dict[str, Any] = {name: _pick(value, own, x) for name, value in asked.items()}
        picked["upper"] = upper.rows(own) if isinstance(upper, Adversarial) else _pick_norms(upper, own)
        picked["target"] = None if wanted is None else wanted[own]

        def tell(k: int, _: int, before: int = sum(len(each) for each in rows)) -> None:
            on_progress(before + k, n)

        parts.append(certify(g, x[own], **picked, on_progress=tell))
        rows.append(own)
    return Certificate.concatenate(parts).rows(torch.cat(rows).argsort().cpu())


def _pick(value: Any, rows: Tensor, x: Tensor) -> Any:
    """Of an argument that may hold a tensor for each sample, those of these rows."""
    if isinstance(value, tuple):
        return tuple(_pick(each, rows, x) for each in value)
    whole = isinstance(value, Tensor) and value.ndim == x.ndim and len(value) == len(x) > 1
    return value[rows] if whole else value


def _pick_norms(upper: Any, rows: Tensor) -> Any:
    return None if upper is None else torch.as_tensor(upper, dtype=torch.float64)[rows.cpu()]


class _Found:
    """The smallest perturbations that are known: norms (n,), and points (n, d), in float64."""

    def __init__(self, norms: Tensor, points: Tensor) -> None:
        self.norms, self.points = norms, points

    @staticmethod
    def of(upper: object, f: Classifier, asked: Question, p: float, **question: object) -> _Found:
        x = asked.x_0.double().cpu()
        if upper is None:
            upper = smallest(f, asked.like, p=p, **question)  # type: ignore[arg-type]
        if isinstance(upper, Adversarial):
            check_adversarial(upper, asked.like)
            points = upper.x.detach().to(asked.x_0).reshape(asked.x_0.shape)
            holds = upper.fooled.to(points.device) & _fools(f, asked, points)
            sizes = norm(points.double().cpu() - x, p)
            return _Found(torch.where(holds.cpu(), sizes, math.inf), points.double().cpu())
        norms = torch.as_tensor(upper, dtype=torch.float64).cpu()
        if norms.shape != (len(x),) or not bool((norms >= 0).all()):
            raise InputError(
                f"upper must be what an attack returned, or a norm >= 0 for each of {len(x)} samples, "
                f"got {tuple(norms.shape)}.", hint="infinity where nothing is known.",
            )  # fmt: skip
        return _Found(norms, x.clone())


@torch.no_grad()
def _fools(f: Classifier, asked: Question, points: Tensor) -> Tensor:
    """(n,): whether points (n, d) change the decision, inside the bounds and the mask that are asked about now."""
    inside = (asked.clamp(asked.everyone, points) == points).all(1)
    if asked.mask is not None:
        inside &= ((points == asked.x_0) | asked.mask).all(1)
    return inside & (asked.goal.margin(asked.everyone, f(asked.inputs(asked.everyone, points))) > 0)


class _Certifying:
    """One call of `certify`, on the CPU in float64; the model itself is only asked to confirm."""

    def __init__(
        self, f: Classifier, graph: Graph, asked: Question, target: object, found: _Found, seconds: float
    ) -> None:
        self.f, self.graph, self.asked, self.found, self.seconds = f, graph, asked, found, seconds
        x = asked.x_0.double().cpu()
        lowest, highest = (None if v is None else v.double().cpu() for v in (asked.lower, asked.upper))
        self.ball = Ball.around(x, asked.p, lowest, highest, None if asked.mask is None else asked.mask.cpu())
        self.label = asked.label.cpu()
        self.n, self.classes = len(x), graph.scores.shape[0]
        self.usable = asked.scores.isfinite().all(1).cpu()
        self.rivals = torch.ones(self.n, self.classes, dtype=torch.bool)
        if target is not None:
            self.rivals = torch.zeros_like(self.rivals)
            self.rivals[torch.arange(self.n), asked.goal.target.cpu()] = True  # type: ignore[union-attr]
        self.rivals[torch.arange(self.n), self.label] = False
        self.tolerance = Rounding(asked.scores, asked.like.dtype, offset=f.cut).tolerance.cpu()
        self.slack = find_slack(f, graph, asked, self.ball, found.norms, found.points)
        self.values = torch.where(self.rivals, 0.0, math.inf).double()
        self.seconds_spent = torch.zeros(self.n, dtype=torch.float64)
        self.reason = [""] * self.n
        self.lean = LEANS[0]
        self.pass_seconds = math.inf

    def run(self, on_progress: Callable[[int, int], None]) -> Certificate:
        entries = sum(node.size for node in self.graph.nodes)
        size = max(1, TOGETHER // entries)
        done = 0
        first = begin_with(self.seconds / max(estimate(self.graph).seconds, 1e-9))
        order = self.usable.nonzero()[:, 0]
        # The first sample shows what share of the upper bound to begin with for the others.
        for rows in (order[:1], *(order[at : at + size] for at in range(1, len(order), size))):
            if len(rows) == 0:
                continue
            if done == 0:
                self._find_lean(rows, first)
            else:
                self._find_radius(rows, first, self.lean)
            ratio = (self.values[rows].amin(1) / self.found.norms[rows])[self.found.norms[rows].isfinite()]
            first = float(ratio.median().clamp(0.02, 1)) if len(ratio) else first
            for i in rows.tolist():
                self._branch(i)
                done += 1
                on_progress(done, self.n)
        return self._result()

    def _find_lean(self, row: Tensor, first: float) -> None:
        """The first sample: lines that lean otherwise are kept if they prove a larger ball than the usual ones."""
        self._find_radius(row, first, LEANS[0])
        for lean in LEANS[1:] if self.graph.relus and self.pass_seconds <= TRIED * self.seconds else ():
            before, known = float(self.values[row].amin()), float(self.found.norms[row])
            if not 0 < before < known < math.inf or self.seconds_spent[row] > self.seconds:
                break
            self._find_radius(row, FURTHER * before / known, lean, rounds=1)
            if float(self.values[row].amin()) <= before * (1 + EXACT):
                break  # those that lean further are worse still
            self.lean = lean
        if self.lean != LEANS[0]:
            self._find_radius(row, FURTHER * float(self.values[row].amin() / self.found.norms[row]), self.lean)

    def _find_radius(self, rows: Tensor, first: float, lean: float, rounds: int = ROUNDS) -> None:
        watch = Watch(self.seconds * len(rows) - float(self.seconds_spent[rows].sum()))
        values, passes = certify_radius(
            self.graph, self.ball.of(rows), self.label[rows], self.rivals[rows], self.found.norms[rows],
            self.slack[rows], watch, first=min(first, 1.0), lean=lean, rounds=rounds, known=self.values[rows],
        )  # fmt: skip
        self.values[rows] = torch.maximum(self.values[rows], values)
        self.seconds_spent[rows] += watch.spent() / len(rows)
        self.pass_seconds = min(self.pass_seconds, watch.spent() / passes / len(rows))

    def _branch(self, i: int) -> None:
        """Raise the lower bound of one sample, and lower its upper one, in the time that is left."""
        watch = Watch(self.seconds - float(self.seconds_spent[i]))
        tree = Tree(
            self.graph, self.ball.of(torch.tensor([i])), int(self.label[i]), float(self.slack[i]), self.values[i],
            float(self.found.norms[i]), lambda points: self._confirm(i, points),
            refresh=self.pass_seconds < ALL_LAYERS * self.seconds, lean=self.lean,
        )  # fmt: skip
        if self.graph.relus and self.pass_seconds < WORTH * watch.seconds:
            tree.grow(watch)
        elif not self.graph.bends:
            tree.touch()
        if tree.point is not None:
            self.found.norms[i], self.found.points[i] = tree.upper, tree.point
        self.values[i] = tree.leaves.least()
        self.seconds_spent[i] += watch.spent()
        self.reason[i] = tree.story()
        self._check(i)

    def _confirm(self, i: int, points: Tensor) -> tuple[float, Tensor] | None:
        """The nearest of these points (k, d) that changes the decision of the model itself, as the model sees it."""
        asked, rows = self.asked, torch.full((len(points),), i, device=self.asked.x_0.device)
        with torch.no_grad():
            given = asked.inputs(rows, points.to(asked.x_0))
            fools = (asked.goal.margin(rows, self.f(given)).cpu() > self.tolerance[i]).nonzero()[:, 0]
        if len(fools) == 0:
            return None
        seen = given.double().cpu().flatten(1)[fools]
        sizes = norm(seen - self.ball.x[i], self.asked.p)
        nearest = int(sizes.argmin())
        return float(sizes[nearest]), seen[nearest]

    def _check(self, i: int) -> None:
        """A lower bound above a perturbation that was found is a contradiction."""
        proved, known = float(self.values[i].amin()), float(self.found.norms[i])
        if proved > known * (1 + EXACT) + 1e-12:
            raise SoundnessError(
                f"row {i}: no perturbation below {proved:.6g} was proved to change the decision, but one of "
                f"{known:.6g} does. One of the two is wrong: please report it.",
                hint="if `upper` was given, make sure that it belongs to this model, these inputs and these bounds.",
            )

    def _result(self) -> Certificate:
        upper = torch.where(self.usable, self.found.norms, math.inf)
        lower = torch.minimum(self.values.amin(1), upper)
        lower = torch.where(self.usable, lower, torch.zeros_like(lower))
        status = torch.full((self.n,), int(Proof.CERTIFIED))
        status[lower <= 0] = int(Proof.NONE)
        exact = (lower >= (1 - EXACT) * upper) & (lower > 0)
        status[exact] = int(Proof.EXACT)
        reason = [self._explain(i, Proof(int(status[i])), upper) for i in range(self.n)]
        known = upper.isfinite()[:, None]
        points = torch.where(known, self.found.points, self.ball.x).to(self.asked.x_0)
        x = self.asked.inputs(self.asked.everyone, points)
        return Certificate(
            lower=lower, upper=upper, x=x, label=self.label, status=status, seconds=self.seconds_spent,
            reason=tuple(reason), p=self.asked.p,
        )  # fmt: skip

    def _explain(self, i: int, status: Proof, upper: Tensor) -> str:
        if not self.usable[i]:
            return "the scores at the input itself are not finite"
        if status == Proof.EXACT:
            return "" if upper[i].isfinite() else "no perturbation inside the bounds changes the decision"
        if status == Proof.NONE:
            return f"nothing could be proved: {self.reason[i] or 'the margin is within rounding'}"
        return self.reason[i]
