"""The ball around a sample inside the box: the least value of a linear function on it, and how far a half space is.

Both are bounds that hold whatever the search for them did: minima by weak duality, for any multiplier.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from deepfool.boxes import step_in_box
from deepfool.norms import norm

FAR = 1e30
"""Stands for room without a bound, so that nothing is infinite times zero."""
ROUNDED = 1e-9
"""What distances are made smaller by, relatively: float64 sums over a million features lose less."""
BLOCK = 100_000
"""Entries of rows for which minima are sought at once."""
NEWTON = 1
"""Steps for the multiplier of an l2 ball in a box; any multiplier gives a bound."""


@dataclass(frozen=True)
class Ball:
    """{x + d : ||d||_p <= radius, d in the box}, for samples x (n, d). A feature has `down` and `up` of room."""

    x: Tensor
    down: Tensor
    up: Tensor
    p: float

    @staticmethod
    def around(x: Tensor, p: float, lower: Tensor | None, upper: Tensor | None, mask: Tensor | None) -> Ball:
        """(n, d) each; features that may not change have no room.

        >>> Ball.around(torch.tensor([[0.25]]), 2, torch.tensor([[0.0]]), None, None).down
        tensor([[0.2500]])
        """
        free = torch.full_like(x, FAR)
        down = free if lower is None else (x - lower.to(x)).clamp(0, FAR)
        up = free if upper is None else (upper.to(x) - x).clamp(0, FAR)
        if mask is not None:
            down, up = down * mask, up * mask
        return Ball(x, down, up, p)

    @property
    def reach(self) -> Tensor:
        """(n,): the radius at which the ball is the whole box; infinite without one."""
        farthest = torch.maximum(self.down, self.up)
        return torch.where((farthest < FAR).all(1), norm(farthest, self.p) * (1 + ROUNDED), math.inf)

    def of(self, who: Tensor) -> Ball:
        """The balls of some samples."""
        return Ball(self.x[who], self.down[who], self.up[who], self.p)

    def interval(self, radius: Tensor) -> tuple[Tensor, Tensor]:
        """The smallest box around the balls, (n, d) each; radius (n,)."""
        r = radius[:, None]
        return self.x - torch.minimum(r, self.down), self.x + torch.minimum(r, self.up)

    def least(self, a: Tensor, who: Tensor | None, radius: Tensor) -> Tensor:
        """A lower bound of the least a . d in the ball, (rows,); row i of a is about sample who[i] (None: i)."""
        down, up, r = self._rooms(who, radius)
        if self.p == math.inf:
            a = a.double()
            down, up = torch.minimum(r, down), torch.minimum(r, up)
            middle, half = (up - down) / 2, (up + down) / 2
            if len(middle) == 1:
                return a @ middle[0] - a.abs() @ half[0]
            return (a * middle).sum(1) - (a.abs() * half).sum(1)
        least = self._least_l1 if self.p == 1 else self._least_l2
        found = []
        size = max(1, BLOCK // a.shape[1])
        for at in range(0, len(a), size):  # parts that the caches hold
            part = slice(at, at + size)
            some, low, high, far = a[part].double(), *(v if len(v) == 1 else v[part] for v in (down, up, r))
            found.append(least(some.abs(), torch.where(some > 0, low, high), far))
        return torch.cat(found) if found else down.new_zeros(0)

    def _least_l1(self, g: Tensor, room: Tensor, r: Tensor) -> Tensor:
        """Steepest features first. By duality, price * r + sum of (g - price)+ * room bounds the gain, at any price."""
        falling, order = g.sort(1, descending=True)
        used = torch.minimum(room.gather(1, order), r.expand_as(g)).cumsum(1)
        last = (used < r).sum(1, keepdim=True).clamp_max(g.shape[1] - 1)
        price = torch.where(used[:, -1:] < r, torch.zeros_like(falling[:, :1]), falling.gather(1, last))
        return -(price * r)[:, 0] - ((g - price).clamp_min(0) * room).sum(1)

    def _least_l2(self, g: Tensor, room: Tensor, r: Tensor) -> Tensor:
        """d = min(g / t, room) for a multiplier t; Newton's method from the t without limits to what can move."""
        tiny = torch.finfo(g.dtype).tiny ** 0.5
        room = room.clamp_max(1e15)
        g = g * (room > 0)
        whole = torch.linalg.vector_norm(g, dim=1, keepdim=True)
        t = (whole / r.clamp_min(tiny)).clamp_min(tiny)
        for _ in range(NEWTON):
            held = g > t * room
            left = r.square() - torch.linalg.vector_norm(room * held, dim=1, keepdim=True).square()
            free = whole.square() - torch.linalg.vector_norm(g * held, dim=1, keepdim=True).square()
            wanted = (free.clamp_min(0) / left.clamp_min(tiny)).sqrt()
            t = torch.where(left > 0, torch.minimum(t, wanted), t).clamp_min(tiny)
        d = torch.minimum(g / t, room)
        gain: Tensor = torch.linalg.vecdot(g, d)
        price: Tensor = (t / 2)[:, 0] * (torch.linalg.vector_norm(d, dim=1).square() - r.square()[:, 0])
        return price - gain

    def distance(self, a: Tensor, m: Tensor, who: Tensor | None) -> tuple[Tensor, Tensor]:
        """How far {m + a . d <= 0} is, at least, and its nearest d: 0 where m <= 0, infinite if there is none.

        >>> ball = Ball.around(torch.zeros(1, 2), 2, None, None, None)
        >>> ball.distance(torch.tensor([[3.0, 4.0]]), torch.tensor([10.0]), torch.tensor([0]))[0]
        tensor([2.])
        """
        down, up, _ = self._rooms(who, None)
        room = torch.where(a > 0, down, up)
        gap = m.clamp_min(0)
        step, possible = step_in_box(gap, -a, room, self.p)
        far = torch.where(possible, norm(step, self.p) * (1 - ROUNDED), math.inf)
        step = torch.where(((m > 0) & possible)[:, None], step, torch.zeros_like(step))
        return torch.where(m > 0, far, torch.zeros_like(far)), step

    def _rooms(self, who: Tensor | None, radius: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Room downwards and upwards and the radius of each row; of one sample they are shared."""
        one = len(self.x) == 1 or who is None
        r = self.x[:, :1] if radius is None else radius[:, None]
        return (self.down, self.up, r) if one else (self.down[who], self.up[who], r[who])
