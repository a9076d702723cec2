"""Attacks on tables: the smallest change that is a valid row of a schema.

    relax      the attack itself, inside the box that the schema gives, with features weighed by their costs
    round      the cheapest valid step across the linearised boundaries: those of the classes at x_0, then the nearest
               one at the relaxed answer and at each point found so (`cheapest`)
    climb      single changes, each time the one that brings the decision nearest, by scores; among what is smaller
    repair     what is not needed is taken back: single features by a step or altogether, then continuous ones together
    check      every point is judged by the true model, and the smallest valid one that fools is kept

On affine models the linear pictures are exact, so the answer is as small as `cheapest` finds it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepfool.attacks.shared.adversarial import Adversarial, Status
from deepfool.attacks.shared.arguments import check_bounds, check_inputs, check_mask, check_weights
from deepfool.attacks.shared.cheapest import Moves, find_cheapest, go_far
from deepfool.attacks.shared.filling import Values
from deepfool.attacks.shared.ranking import rank_classes
from deepfool.attacks.shared.task import Task
from deepfool.errors import InputError
from deepfool.schemas import Feature, Schema, read_schema

CLASSES = 10
"""Classes whose boundaries are linearised at x_0."""
ROUNDS = 8
"""How often the boundary is linearised again, at the point found last."""
REPAIRS = 12
"""How often a feature is taken back, at most."""
CLIMBS = 12
"""How many features are changed one after the other, by scores alone."""
HALVINGS = 8
"""How finely the continuous changes are shortened together."""
BEYOND = 1e-5
"""How far beyond a linearised boundary to go, relative to the gap."""
HARDER = 1.5
"""By how much more to go where the linear picture promised a change that is none."""

NONE_FOUND = "no valid row that changes the decision was found; the schema may not allow one"


def run_valid(
    schema: Any, run: Callable[..., Adversarial], search: Callable[..., Adversarial], model: Any, x: Tensor, *,
    p: float, weights: Any, bounds: Any, mask: Tensor | None, **shared: Any,
) -> Adversarial:  # fmt: skip
    """The smallest valid change that is found; `search` is the attack, `run` what runs the body of one."""
    known = read_schema(schema)
    check_inputs(x)
    if p not in (1, 2, math.inf):
        raise InputError(f"a schema goes with p = 1, 2 and inf, got {p:g}.")
    if weights is not None and known.weights is not None:
        raise InputError("weights are given, and the schema has costs: leave one of them out.")
    known.check(x)
    costs = known.weights if weights is None else check_weights(weights, x, p).tolist()
    lower, upper = check_bounds(bounds, x, x.detach().reshape(len(x), -1))
    table = _Table.of(known, x, costs, lower, upper, mask)
    given: dict[str, Any] = {"p": p, "weights": costs, **shared}
    box = tuple(torch.as_tensor(end).to(x).view(x.shape) for end in (table.lower, table.upper))
    free = torch.as_tensor(table.free).to(x.device).view(x.shape)
    relaxed = search(model, x, bounds=box, mask=free, **given)
    scale = 1.0 if costs is None else relaxed.r.new_tensor(costs)
    start = torch.where(relaxed.fooled[:, None], relaxed.r.reshape(len(x), -1) * scale, 0.0)

    def body(task: Task) -> None:
        _Rounding(task, table).run(start)

    found = run(body, model, x, bounds=box, mask=free, classes=True, unmask=True, **given)
    return replace(
        found, iterations=found.iterations + relaxed.iterations, forwards=found.forwards + relaxed.forwards,
        backwards=found.backwards + relaxed.backwards,
    )  # fmt: skip


@dataclass(frozen=True)
class _Table:
    """A batch as its schema sees it."""

    schema: Schema
    lower: Values
    upper: Values
    """(n, d): the box, in the units of the model's inputs."""
    free: np.ndarray[Any, np.dtype[np.bool_]]
    """(n, d): which inputs may change."""
    on: Values
    """(n, d): the inputs in the units of the schema."""
    unit: Values
    """(d,): one unit of the schema in the coordinates of the search."""

    @staticmethod
    def of(
        schema: Schema, x: Tensor, costs: list[float] | None, lower: Tensor | None, upper: Tensor | None,
        mask: Tensor | None,
    ) -> _Table:  # fmt: skip
        flat = x.detach().reshape(len(x), -1).double().cpu().numpy()
        values = schema.measure(flat)
        low, high = values.copy(), values.copy()
        for each, at in schema.places:
            low[:, at], high[:, at] = _range(each, values[:, at])
        ends = [(end - schema.shift) / schema.scale for end in (low, high)]
        free = np.ones(flat.shape, np.bool_) if mask is None else check_mask(mask, x).cpu().numpy()
        for given, i, narrow in ((lower, 0, np.maximum), (upper, 1, np.minimum)):
            if given is not None:
                ends[i] = narrow(ends[i], given.double().cpu().numpy())
        # The inputs themselves are always inside: what is off by rounding stays where it is.
        ends = [np.minimum(ends[0], flat), np.maximum(ends[1], flat)]
        weights = np.ones(schema.columns) if costs is None else np.array(costs)
        for each, at in schema.places:
            if each.change == "none":
                free[:, at] = False
            elif each.kind == "one-hot":  # a group changes as a whole
                free[:, at] &= free[:, at].all(1, keepdims=True)
        return _Table(schema, ends[0], ends[1], free, values, weights / schema.scale)

    def list_moves(self, i: int) -> Moves:
        """How sample i may change, in the coordinates of the search."""
        d = self.schema.columns
        flat = (self.on[i] - self.schema.shift) / self.schema.scale
        wide = self.unit * self.schema.scale  # from inputs to coordinates
        low, high = ((end[i] - flat) * wide * self.free[i] for end in (self.lower, self.upper))
        step, switches = np.zeros(d), []
        for each, at in self.schema.places:
            if each.kind == "integer":
                step[at] = self.unit[at]
            elif each.kind == "one-hot":
                low[at] = high[at] = 0.0
                if self.free[i, at].all() and each.change != "none":
                    switches.append(self._switch(each, at, i))
        return Moves(np.minimum(low, 0.0), np.maximum(high, 0.0), step, [each for each in switches if len(each)])

    def _switch(self, feature: Feature, at: slice, i: int) -> Values:
        """The changes (k, d) of sample i to each of the other categories that its box has room for."""
        own = self.on[i, at] > 0.5
        rows = []
        for b in range(feature.columns) if feature.rest is None else range(-1, feature.columns):
            other = np.arange(feature.columns) == b
            if (other == own).all():
                continue
            change = np.zeros(self.schema.columns)
            change[at] = (other.astype(np.float64) - own) * self.unit[at]
            target = (other - self.schema.shift[at]) / self.schema.scale[at]
            slack = 1e-6 * (1 + np.abs(target))
            if (target >= self.lower[i, at] - slack).all() and (target <= self.upper[i, at] + slack).all():
                rows.append(change)
        return np.array(rows).reshape(len(rows), self.schema.columns)


def _range(feature: Feature, values: Values) -> tuple[Values, Values]:
    """Between what a feature of these samples (n, k) may lie, in its units."""
    if feature.change == "none":
        return values, values
    if feature.kind == "one-hot":
        return np.zeros_like(values), np.ones_like(values)
    low, high = float(feature.low), float(feature.high)
    if feature.kind == "integer":
        low, high = (math.ceil(low) if math.isfinite(low) else low), (math.floor(high) if math.isfinite(high) else high)
    lows, highs = np.full_like(values, low), np.full_like(values, high)
    return (values if feature.change == "up" else lows), (values if feature.change == "down" else highs)


class _Rounding:
    """From a relaxed answer to valid ones, all of them judged by the model."""

    def __init__(self, task: Task, table: _Table) -> None:
        self.task, self.asked, self.best = task, task.asked, task.best
        self.moves = {i: table.list_moves(i) for i in task.rows.tolist()}
        self.groups = [at for each, at in table.schema.places if each.kind == "one-hot"]

    def run(self, start: Tensor) -> None:
        task, rows = self.task, self.task.rows
        ranking = rank_classes(task, CLASSES, keep=CLASSES)
        for k in range(ranking.slopes.shape[1]):
            known = rows[ranking.distance[rows, k].isfinite()]
            self._try(known, ranking.slopes[known, k], ranking.gaps[known, k])
        self._descend(rows, start.to(self.asked.x_0))
        self._climb(rows)
        self._repair(rows)
        self._shorten(rows)
        task.best.give_up(rows, Status.STUCK, NONE_FOUND)

    def _try(self, rows: Tensor, g: Tensor, gap: Tensor) -> Tensor:
        """Take the cheapest valid step across each linearised boundary, (k, d); as far as it goes where none is."""
        if len(rows) == 0:
            return self.asked.x_0[:0]
        slack = 2 * self.task.model.rounding.tolerance[rows].to(gap)
        wanted = (gap * (1 + BEYOND) + slack).double().cpu().numpy()
        r = np.stack([
            self._step(i, w, float(need))
            for i, w, need in zip(rows.tolist(), g.double().cpu().numpy(), wanted, strict=True)
        ])  # fmt: skip
        return self._report(rows, torch.as_tensor(r).to(self.asked.x_0))[0]

    def _step(self, i: int, g: Values, need: float) -> Values:
        found = find_cheapest(self.moves[i], g, need, self.asked.p) if need > 0 else np.zeros_like(g)
        return go_far(self.moves[i], g) if found is None else found

    def _report(self, rows: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        """Judge valid perturbations of these samples; returns them, and which of them fool."""
        z = self.task.model.look(rows, self.asked.x_0[rows] + r)
        self.best.iterations.index_add_(0, rows, torch.ones_like(rows))
        return r, self.best.report(rows, r, z)

    def _descend(self, rows: Tensor, r: Tensor) -> None:
        """Linearise at the point found last, step to the boundary seen from there, and so on."""
        r, harder = r[rows], torch.ones_like(self.asked.x_0[rows, 0])
        for _ in range(ROUNDS):
            if len(rows) == 0:
                break
            z, g = self.task.model.gradient(rows, self.asked.x_0[rows] + r)
            margin = self.asked.goal.margin(rows, z).to(r.dtype)
            gap = (g * r).sum(1) - margin
            now = self._try(rows, g, torch.where(margin < 0, gap + (harder - 1) * margin.abs(), gap))
            same = (now - r).abs().amax(1) <= 1e-6 * (1 + r.abs().amax(1))
            harder = torch.where(same, harder * HARDER, harder)
            # Where the same row comes out again although it fools, there is nothing more to learn.
            going = ~(same & self.best.found(rows)) & (g != 0).any(1)
            rows, r, harder = rows[going], now[going], harder[going]

    def _climb(self, rows: Tensor) -> None:
        """Change one feature at a time, whichever raises the margin most, within what is smaller than what is known.

        No gradient is asked: this is what is left where the linear pictures mislead.
        """
        points = {i: np.zeros(self.asked.x_0.shape[1]) for i in rows.tolist()}
        margins = dict.fromkeys(points, -math.inf)
        for _ in range(CLIMBS):
            known = {i: float(self.best.size[i]) * (1 - 1e-6) for i in points}
            tried = [
                (i, r) for i, now in points.items() for r in self._list_changes(i, now) if self._size(r) < known[i]
            ]
            if not tried:
                break
            who = torch.tensor([i for i, _ in tried], device=rows.device)
            r = torch.as_tensor(np.stack([each for _, each in tried])).to(self.asked.x_0)
            z = self.task.model.look(who, self.asked.x_0[who] + r)
            self.best.report(who, r, z)
            better = {}
            for (i, each), margin in zip(tried, self.asked.goal.margin(who, z).tolist(), strict=True):
                if margin > margins[i]:
                    better[i], margins[i] = each, margin
            points = {i: each for i, each in better.items() if margins[i] <= 0}

    def _size(self, r: Values) -> float:
        return float(np.linalg.norm(r, self.asked.p))

    def _list_changes(self, i: int, r: Values) -> list[Values]:
        """All single changes of a valid perturbation: a step up or down, to either end, to another category."""
        moves, found = self.moves[i], []
        for j in np.flatnonzero(moves.high - moves.low > 0).tolist():
            width = moves.step[j]
            ends = {e for e in (moves.low[j], moves.high[j]) if math.isfinite(e)}
            if width > 0:
                ends = {round(e / width) * width for e in ends} | {r[j] - width, r[j] + width}
            else:
                ends |= {e / 2 for e in ends}
            for value in ends:
                if value != r[j] and moves.low[j] - 1e-6 * width <= value <= moves.high[j] + 1e-6 * width:
                    found.append(r.copy())
                    found[-1][j] = value
        for group in moves.switches:
            for change in group:
                found.append(np.where((group != 0).any(0), change, r))
        return found

    def _repair(self, rows: Tensor) -> None:
        """Take single changes back, as long as the decision stays changed."""
        rows = rows[self.best.found(rows)]
        for _ in range(REPAIRS):
            size = self.best.size[rows].clone()
            who, tried = [], []
            for i in rows.tolist():
                for r in self._list_repairs(i, self.best.r[i].double().cpu().numpy()):
                    who.append(i)
                    tried.append(r)
            if not who:
                break
            self._report(torch.tensor(who, device=rows.device), torch.as_tensor(np.stack(tried)).to(self.asked.x_0))
            rows = rows[self.best.size[rows] < size]

    def _list_repairs(self, i: int, r: Values) -> list[Values]:
        moves, found = self.moves[i], []
        grouped = np.zeros(len(r), np.bool_)
        for at in self.groups:
            grouped[at] = True
            if (r[at] != 0).any():
                found.append(r.copy())
                found[-1][at] = 0.0
        for j in np.flatnonzero((r != 0) & ~grouped).tolist():
            for value in {0.0, r[j] - np.sign(r[j]) * moves.step[j]} if moves.step[j] > 0 else {0.0, r[j] / 2}:
                found.append(r.copy())
                found[-1][j] = value if abs(value) > 1e-9 * abs(r[j]) else 0.0
        return found

    def _shorten(self, rows: Tensor) -> None:
        """Take all continuous changes back together, as far as the decision stays changed."""
        rows = rows[self.best.found(rows)]
        if len(rows) == 0:
            return
        steps = torch.as_tensor(np.stack([self.moves[i].step for i in rows.tolist()])).to(self.asked.x_0)
        loose = steps == 0
        for at in self.groups:
            loose[:, at] = False
        r, low, high = self.best.r[rows].clone(), torch.zeros(len(rows)).to(steps), torch.ones(len(rows)).to(steps)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            _, fooled = self._report(rows, torch.where(loose, middle[:, None] * r, r))
            low, high = torch.where(fooled, low, middle), torch.where(fooled, middle, high)
