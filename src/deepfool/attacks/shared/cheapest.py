"""The cheapest valid step across a linear boundary: some features are continuous, some go by steps, some by category.

    minimise ||r||_p   subject to   g . r >= gap,   r a valid change

p = inf is exact: what all features gain with changes up to t grows with t, so t is found by bisection. For p = 1 and 2
costs add up, and this is a knapsack of choices. Continuous features fill whatever the others leave, at a cost that is
known in closed form (`filling`). What goes by steps and categories is first chosen by a price per gain (Lagrange), then
improved by changing one choice or two at a time, until none helps or the bound of the price says that none can.

In NumPy, one sample at a time: tables have few columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from deepfool.attacks.shared.filling import Fill, Values

Places = np.ndarray[Any, np.dtype[np.signedinteger[Any]]]

PRICES = 60
"""How many prices are tried before single choices are changed."""
NEAR = 72
"""How many choices, those with the smallest regret at the best price, are combined in pairs."""
STARTS, MOVES = 6, 40
"""From how many of the choices found so, the cheapest ones, improvements are sought; and how many improvements."""
BISECTIONS = 80
SAME = 1e-9


@dataclass(frozen=True)
class Moves:
    """How one sample may change, in the coordinates of the search."""

    low: Values
    high: Values
    """(d,): how far each feature may go down and up, low <= 0 <= high; 0 where it may not, or goes by category."""
    step: Values
    """(d,): the width of a step; 0 where a feature is continuous."""
    switches: Sequence[Values]
    """For each group of categories the changes (k, d) to each of the others."""


def find_cheapest(moves: Moves, g: Values, gap: float, p: float) -> Values | None:
    """The smallest valid r (d,) with g . r >= gap that is found; None if there is none at all.

    >>> plain = Moves(np.array([-9.0, -9.0]), np.array([9.0, 9.0]), np.array([0.0, 2.0]), [])
    >>> find_cheapest(plain, np.array([1.0, 3.0]), 7.0, 1)
    array([1., 2.])
    >>> find_cheapest(plain, np.array([1.0, 3.0]), 700.0, 1) is None
    True
    """
    choices = _Choices.of(moves, g, p)
    return choices.find_within(gap) if p == math.inf else choices.find_sum(gap)


def go_far(moves: Moves, g: Values) -> Values:
    """The valid r that gains most; features without an end stay."""
    r = np.where(g > 0, moves.high, moves.low) * (g != 0)
    r = np.where(np.isfinite(r), r, 0.0)
    for group in moves.switches:
        gains = group @ g
        if len(gains) and gains.max() > 0:
            r = r + group[int(gains.argmax())]
    return np.asarray(r)


@dataclass
class _Choices:
    """The features with what each may gain and cost: the continuous ones, and those that are chosen."""

    moves: Moves
    g: Values
    p: float
    free: Places
    """(k,): the continuous features."""
    stepped: Places
    """(m,): those that go by steps, towards what gains."""
    most: Values
    """(m,): how many steps they have."""
    width: Values
    switches: list[tuple[Values, Values, Values]]
    """For each group of categories that gains: the changes, their gains and their costs."""

    @staticmethod
    def of(moves: Moves, g: Values, p: float) -> _Choices:
        room = np.where(g > 0, moves.high, -moves.low)
        room = np.where(g != 0, room, 0.0)
        stepped = np.flatnonzero((moves.step > 0) & (room >= moves.step * (1 - 1e-6)))
        width = moves.step[stepped]
        switches = []
        for group in moves.switches:
            gains, costs = group @ g, _size(group, p)
            keep = gains > 0
            if keep.any():
                switches.append((group[keep], gains[keep], costs[keep]))
        most = np.floor(np.minimum(room[stepped] / width, 1e12) + 1e-6)
        free = np.flatnonzero((moves.step == 0) & (room > 0))
        return _Choices(moves, g, p, free, stepped, most, width, switches)

    def find_within(self, gap: float) -> Values | None:
        room = self._room()
        ends = [room[np.isfinite(room)], self.most * self.width, *(costs for _, _, costs in self.switches)]
        far = max([0.0, *(float(each.max()) for each in ends if len(each))])
        open_ = float(np.abs(self.g[self.free])[~np.isfinite(room)].sum())
        low, high = 0.0, far * (1 + SAME) if open_ == 0 else far + 2 * gap / open_
        if self._gain_within(high) < gap:
            return None
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            if self._gain_within(middle) >= gap:
                high = middle
            else:
                low = middle
        return self._step_within(high)

    def _room(self) -> Values:
        room: Values = np.where(self.g[self.free] > 0, self.moves.high[self.free], -self.moves.low[self.free])
        return room

    def _gain_within(self, t: float) -> float:
        gain = float((np.abs(self.g[self.free]) * np.minimum(t, self._room())).sum())
        counts = np.minimum(np.floor(t / self.width + SAME), self.most)
        gain += float((np.abs(self.g[self.stepped]) * counts * self.width).sum())
        for _, gains, costs in self.switches:
            gain += float(np.max(gains[costs <= t * (1 + SAME)], initial=0.0))
        return gain

    def _step_within(self, t: float) -> Values:
        r = np.zeros_like(self.g)
        r[self.free] = np.sign(self.g[self.free]) * np.minimum(t, self._room())
        counts = np.minimum(np.floor(t / self.width + SAME), self.most)
        r[self.stepped] = np.sign(self.g[self.stepped]) * counts * self.width
        for changes, gains, costs in self.switches:
            within = np.where(costs <= t * (1 + SAME), gains, -1.0)
            if within.max() > 0:
                r += changes[int(within.argmax())]
        return r

    def find_sum(self, gap: float) -> Values | None:
        p, slope = self.p, np.abs(self.g[self.stepped]) * self.width  # what a step gains
        fill = Fill(self.g[self.free], self._room(), p)
        whole = fill.most + float((slope * self.most).sum())
        whole += sum(float(gains.max()) for _, gains, _ in self.switches)
        if whole < gap:
            return None
        none = _Assignment(np.zeros(len(slope)), np.full(len(self.switches), -1))
        starts, price, bound = {none: self._judge(none, fill, slope, gap)}, 0.0, -math.inf
        for each, low in self._scan_prices(slope, gap):
            for tried in self._complete(each, fill, slope, gap):
                starts[tried] = self._judge(tried, fill, slope, gap)
            if low[1] > bound:
                price, bound = low
        best, cost = none, math.inf
        for start, now in sorted(starts.items(), key=lambda item: item[1])[:STARTS]:
            for _ in range(MOVES):
                if now < cost:
                    best, cost = start, now
                if cost <= bound * (1 + 1e-7) + 1e-12:
                    break
                changed, after = self._improve(start, fill, slope, gap, price)
                if after >= now * (1 - SAME):
                    break
                start, now = changed, after
        return None if not math.isfinite(cost) else self._build(best, fill, slope, gap)

    def _scan_prices(self, slope: Values, gap: float) -> list[tuple[_Assignment, tuple[float, float]]]:
        """What is chosen at each of some prices of a unit of gain, with the price and the bound that it proves."""
        low, high = self._bracket_price(slope, gap)
        half = PRICES // 2
        prices = np.append(np.linspace(low, high, half), np.geomspace(max(low, 1e-9 * high) / 4, high * 4, half))
        found: dict[_Assignment, tuple[float, float]] = {}
        for price in prices.tolist():
            chosen, reduced = self._choose(slope, price)
            bound = price, reduced + self._reduce_free(price) + price * gap
            if chosen not in found or found[chosen][1] < bound[1]:
                found[chosen] = bound
        return list(found.items())

    def _bracket_price(self, slope: Values, gap: float) -> tuple[float, float]:
        high = 1.0
        for _ in range(200):
            if self._gain_at(high, slope) >= gap or high > 1e30:
                break
            high *= 2
        low = 0.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if self._gain_at(middle, slope) >= gap else (middle, high)
        return low * (1 - 1e-3), high * (1 + 1e-3)

    def _gain_at(self, price: float, slope: Values) -> float:
        chosen, _ = self._choose(slope, price)
        g, room = np.abs(self.g[self.free]), self._room()
        r = np.where(price * g > 1, room, 0.0) if self.p == 1 else np.minimum(price * g / 2, room)
        with np.errstate(invalid="ignore"):
            return float(np.where(r > 0, g * r, 0.0).sum()) + self._gain(chosen, slope)

    def _reduce_free(self, price: float) -> float:
        """min of cost - price * gain over the continuous features."""
        g, room = np.abs(self.g[self.free]), self._room()
        if self.p == 1:
            reduced = np.where(price * g > 1, 1 - price * g, 0.0)
            with np.errstate(invalid="ignore"):
                return float(np.where(reduced < 0, reduced * room, 0.0).sum())
        r = np.minimum(price * g / 2, room)
        return float((r**2 - price * g * r).sum())

    def _choose(self, slope: Values, price: float) -> tuple[_Assignment, float]:
        """The steps and categories with the smallest cost - price * gain, and that sum."""
        if self.p == 1:
            counts = np.where(price * slope > self.width, self.most, 0.0)
        else:
            counts = np.minimum(np.round(price * slope / (2 * self.width**2)), self.most)
        reduced = float(((counts * self.width) ** self.p - price * slope * counts).sum())
        picked = np.full(len(self.switches), -1)
        for i, (_, gains, costs) in enumerate(self.switches):
            regret = costs**self.p - price * gains
            if regret.min() < 0:
                picked[i] = int(regret.argmin())
                reduced += float(regret.min())
        return _Assignment(counts, picked), reduced

    def _complete(self, chosen: _Assignment, fill: Fill, slope: Values, gap: float) -> list[_Assignment]:
        """The choice itself, and with each stepped feature at just as many steps as are needed then."""
        tried, gain = [chosen], self._gain(chosen, slope)
        for j in range(len(slope)):
            rest = gap - (gain - slope[j] * chosen.counts[j])
            for need in (rest, rest - fill.most):
                if math.isfinite(need) and slope[j] > 0:
                    count = min(max(math.ceil(need / slope[j] - 1e-9), 0.0), float(self.most[j]))
                    tried.append(chosen.with_count(j, count))
        return tried

    def _gain(self, chosen: _Assignment, slope: Values) -> float:
        gain = float((slope * chosen.counts).sum())
        return gain + sum(float(self.switches[i][1][k]) for i, k in enumerate(chosen.picked.tolist()) if k >= 0)

    def _cost(self, chosen: _Assignment) -> float:
        cost = float(((chosen.counts * self.width) ** self.p).sum())
        for i, k in enumerate(chosen.picked.tolist()):
            cost += float(self.switches[i][2][k] ** self.p) if k >= 0 else 0.0
        return cost

    def _judge(self, chosen: _Assignment, fill: Fill, slope: Values, gap: float) -> float:
        """What a choice costs together with the continuous features that make up for what it lacks."""
        return self._cost(chosen) + float(fill.cost(np.array([gap - self._gain(chosen, slope)]))[0])

    def _improve(
        self, now: _Assignment, fill: Fill, slope: Values, gap: float, price: float
    ) -> tuple[_Assignment, float]:
        """The best change of one choice or of two; the second one may be as many steps as are needed then."""
        who, what, gains, costs = self._list_changes(now, fill, slope, gap)
        if not len(who):
            return now, math.inf
        near = np.argsort(costs - price * gains, kind="stable")[:NEAR]
        who, what, gains, costs = (each[near] for each in (who, what, gains, costs))
        base_cost, base_gain = self._cost(now), self._gain(now, slope)
        single = base_cost + costs + fill.cost(gap - base_gain - gains)
        pairs = base_cost + costs[:, None] + costs + fill.cost(gap - base_gain - gains[:, None] - gains)
        pairs[who[:, None] == who] = math.inf
        best: tuple[float, list[tuple[int, float]]] = (math.inf, [])
        if len(single) and single.min() < best[0]:
            a = int(single.argmin())
            best = float(single[a]), [(int(who[a]), float(what[a]))]
        if pairs.min() < best[0]:
            a, b = divmod(int(pairs.argmin()), pairs.shape[1])
            best = float(pairs[a, b]), [(int(who[a]), float(what[a])), (int(who[b]), float(what[b]))]
        # One change, and then another feature by just as many steps as are needed.
        if len(slope):
            rest = gap - base_gain - gains[:, None] + slope * now.counts
            counts = np.clip(np.ceil(rest / np.where(slope > 0, slope, 1) - 1e-9), 0, self.most)
            enough = base_cost + costs[:, None] + (counts * self.width) ** self.p - (now.counts * self.width) ** self.p
            enough = enough + fill.cost(rest - slope * counts)
            enough[who[:, None] == np.arange(len(slope))] = math.inf
            if enough.min() < best[0]:
                a, j = divmod(int(enough.argmin()), enough.shape[1])
                best = float(enough[a, j]), [(int(who[a]), float(what[a])), (int(j), float(counts[a, j]))]
        changed = now
        for i, value in best[1]:
            changed = changed.with_count(i, value) if i < len(slope) else changed.with_pick(i - len(slope), int(value))
        return changed, best[0]

    def _list_changes(
        self, now: _Assignment, fill: Fill, slope: Values, gap: float
    ) -> tuple[Values, Values, Values, Values]:
        """Single changes: which feature (groups after the others), to what, and what that gains and costs more."""
        who: list[int] = []
        what: list[float] = []
        gains: list[float] = []
        costs: list[float] = []
        lacking = gap - self._gain(now, slope)
        for j, (have, most, width) in enumerate(zip(now.counts, self.most, self.width, strict=True)):
            just = have + math.ceil(lacking / slope[j] - 1e-9) if math.isfinite(lacking / slope[j]) else have
            for count in {0.0, have - 2, have - 1, have + 1, have + 2, float(most), float(just)}:
                if 0 <= count <= most and count != have:
                    who.append(j)
                    what.append(count)
                    gains.append(slope[j] * (count - have))
                    costs.append((count * width) ** self.p - (have * width) ** self.p)
        for i, (_, own, prices) in enumerate(self.switches):
            k = int(now.picked[i])
            before = (0.0, 0.0) if k < 0 else (float(own[k]), float(prices[k]) ** self.p)
            for other in range(-1, len(own)):
                if other != k:
                    after = (0.0, 0.0) if other < 0 else (float(own[other]), float(prices[other]) ** self.p)
                    who.append(len(slope) + i)
                    what.append(other)
                    gains.append(after[0] - before[0])
                    costs.append(after[1] - before[1])
        return np.array(who, np.int64), *(np.array(each, np.float64) for each in (what, gains, costs))  # type: ignore[return-value]

    def _build(self, chosen: _Assignment, fill: Fill, slope: Values, gap: float) -> Values:
        r = np.zeros_like(self.g)
        r[self.free] = np.sign(self.g[self.free]) * fill.step(gap - self._gain(chosen, slope))
        r[self.stepped] = np.sign(self.g[self.stepped]) * chosen.counts * self.width
        for i, k in enumerate(chosen.picked.tolist()):
            if k >= 0:
                r += self.switches[i][0][k]
        return r


@dataclass(frozen=True, eq=False)
class _Assignment:
    """How many steps each stepped feature makes, and which change of each group is made (-1: none)."""

    counts: Values
    picked: np.ndarray[Any, np.dtype[np.int64]]

    def __hash__(self) -> int:
        return hash((self.counts.tobytes(), self.picked.tobytes()))

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, _Assignment) and np.array_equal(self.counts, other.counts)
        return same and np.array_equal(self.picked, other.picked)  # type: ignore[attr-defined]

    def with_count(self, j: int, count: float) -> _Assignment:
        counts = self.counts.copy()
        counts[j] = count
        return _Assignment(counts, self.picked)

    def with_pick(self, i: int, k: int) -> _Assignment:
        picked = self.picked.copy()
        picked[i] = k
        return _Assignment(self.counts, picked)


def _size(r: Values, p: float) -> Values:
    if p == math.inf:
        return np.asarray(np.abs(r).max(-1))
    return np.asarray((np.abs(r) ** p).sum(-1) ** (1 / p))
