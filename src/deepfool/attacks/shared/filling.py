"""What continuous features cost that gain a given amount together, in closed form: a piece of `cheapest`.

Each feature gains |g| for a unit of change, up to its room. For p = 1 the steepest are used first. For p = 2 all grow
with a price, by price * |g| / 2 each, until they reach their room.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Values = np.ndarray[Any, np.dtype[np.float64]]


class Fill:
    """What the continuous features cost that gain a given amount together, p = 1 or 2."""

    def __init__(self, g: Values, room: Values, p: float) -> None:
        self.g, self.p = np.abs(g), p
        self.room = np.where(self.g > 0, room, 0.0)
        self.order = np.argsort(-self.g if p == 1 else self.room / np.where(self.g > 0, self.g, 1.0), kind="stable")
        gain, room = self.g[self.order], self.room[self.order]
        with np.errstate(invalid="ignore"):
            full = np.where(room > 0, gain * room, 0.0)
        if p == 1:
            self.gains, self.costs = np.append(0.0, np.cumsum(full)), np.append(0.0, np.cumsum(room))
            self.most = float(self.gains[-1])
            return
        # In the order in which features reach their ends as the price grows: `left` are those that have not.
        self.left = np.append(np.cumsum((gain**2 * (room > 0))[::-1])[::-1], 0.0)
        finite = np.isfinite(room)
        done = np.append(0.0, np.cumsum(np.where(finite, full, 0.0)))
        self.done, self.done_cost = done, np.append(0.0, np.cumsum(np.where(finite, room, 0.0) ** 2))
        with np.errstate(invalid="ignore", divide="ignore"):
            at = np.where(gain > 0, 2 * room / np.where(gain > 0, gain, 1.0), 0.0)
        self.gains = np.where(
            np.isfinite(at), done[:-1] + np.where(np.isfinite(at), at, 0) / 2 * self.left[:-1], np.inf
        )
        self.most = math.inf if bool((~finite & (gain > 0)).any()) else float(done[-1])

    def cost(self, need: Values) -> Values:
        """At each of these needs; infinite where they gain no more than that."""
        need = np.maximum(need, 0.0)
        beyond = need > self.most * (1 + 1e-12)
        if self.p == 1:
            return np.where(beyond, np.inf, self._cost_1(np.minimum(need, self.most)))
        i = np.searchsorted(self.gains, need).clip(0, max(0, len(self.gains) - 1))
        if not len(self.gains):
            return np.where(need > 0, np.inf, 0.0)
        left = self.left[i]
        price = np.where(left > 0, 2 * (need - self.done[i]) / np.where(left > 0, left, 1.0), 0.0)
        return np.where(beyond, np.inf, self.done_cost[i] + price**2 / 4 * left)

    def _cost_1(self, need: Values) -> Values:
        i = np.searchsorted(self.gains, need).clip(1, max(1, len(self.gains) - 1))
        if len(self.gains) == 1:
            return np.zeros_like(need)
        slope = self.g[self.order][i - 1]
        more = np.where(slope > 0, (need - self.gains[i - 1]) / np.where(slope > 0, slope, 1.0), 0.0)
        return np.asarray(self.costs[i - 1] + more)

    def step(self, need: float) -> Values:
        """How far each feature goes, (k,), for this need."""
        need = min(max(need, 0.0), self.most)
        r = np.zeros_like(self.g)
        if need == 0 or not len(r):
            return r
        if self.p == 1:
            for j in self.order.tolist():
                take = min(self.room[j], need / self.g[j]) if self.g[j] > 0 else 0.0
                r[j], need = take, need - take * self.g[j]
                if need <= 0:
                    break
            return r
        i = int(np.searchsorted(self.gains, need).clip(0, len(self.gains) - 1))
        price = 2 * (need - self.done[i]) / self.left[i] if self.left[i] > 0 else math.inf
        return np.asarray(np.where(self.room > 0, np.minimum(price * self.g / 2, self.room), 0.0))
