"""Where a descent of `smallest` begins, if not at x_0: each kind of start leads to other local minima.

Random numbers belong to the sample: they depend neither on the budget nor on the rest of the batch.
"""

from __future__ import annotations

import math
import zlib

import torch
from torch import Tensor

from deepfool.attacks.shared.descents import LEAP, Descents
from deepfool.attacks.shared.task import Task
from deepfool.norms import direction, norm

# Chosen by hand; docs/algorithms/smallest.md names the networks, and says what other values gave there.
SHAKEN, DEAD = 0.2, 0.025
"""While nothing fools: how far away from x_0 the second descent starts, as a share of the box, doubled every second
time; the same where all gradients are zero at x_0."""
REMOTE = 0.8
"""Noise: how far from x_0 a descent may start, as a share of the box. Networks that were trained to be robust do not
feel small changes, so that from nearby all descents end in few places."""
LOOKS, AROUND, AHEAD = 4, 0.5, 2.0
"""The mean normal: at how many points it is taken, how far from x_0 these may be, as a share of the box, and where
along it a descent starts, as a multiple of the best perturbation."""


class Starts:
    """Points to start from, for some rows at a time."""

    def __init__(self, task: Task, descents: Descents, begun: Tensor, dead: Tensor, seed: int) -> None:
        """`begun` (n,): descents so far, kept up to date by whoever begins them; `dead` (n,): no class has a gradient
        at x_0."""
        self.asked, self.model, self.best = task.asked, task.model, task.best
        self.begun, self.dead = begun, dead
        self.leap = descents.leap
        """(n,): LEAP of the box."""
        self.steps = descents.newton
        """The norm of a climb's steps: in l1 the best point is sparse, and they are not."""
        # Both go into 32 bits: torch's generator on the CPU looks at no more of its seed.
        said = [str(seed).encode() + x.cpu().numpy().tobytes() for x in self.asked.x_0]
        self.random = [torch.Generator().manual_seed(zlib.crc32(each)) for each in said]

    def best_point(self, rows: Tensor) -> Tensor:
        """The best point itself."""
        return self._move(rows, self.best.r[rows])

    def kick(self, rows: Tensor) -> Tensor:
        """The best point with a random half of it reset: to zero, or in linf to either end."""
        half, sign = self._draw(rows)
        r = self.best.r[rows]
        other = self.best.size[rows, None] * sign if self.asked.p == math.inf else torch.zeros_like(r)
        return self._move(rows, torch.where(half, other, r))

    def noise(self, rows: Tensor) -> Tensor:
        """All features moved by the same amount, by random signs."""
        return self._move(rows, self._draw_noise(rows, REMOTE))

    def mean_normal(self, rows: Tensor) -> Tensor:
        """Along the mean of the unit normals at noisy points around x_0: what the gradient of the model under noise
        would be. Networks that are curved at x_0 are less so on average around it."""
        looks, most = rows.repeat(LOOKS), len(self.asked.x_0)  # no batch is larger than the one that was asked about
        y = self._move(looks, self._draw_noise(looks, AROUND))
        w = torch.cat(
            [self.model.gradient(*part)[1] for part in zip(torch.split(looks, most), torch.split(y, most), strict=True)]
        )
        mean = direction(w, 2).view(LOOKS, len(rows), -1).mean(0)
        far = AHEAD * norm(self.best.r[rows], self.steps)
        return self._move(rows, far[:, None] * direction(mean, self.steps))

    def copy(self, rows: Tensor) -> Tensor:
        """Copies of x_0, mirrored and moved at random: structured as inputs are, and far from x_0. Of inputs without
        rows and columns there are none: noise instead."""
        shape = self.asked.like.shape[1:]
        if len(shape) < 2:
            return self.noise(rows)
        r = torch.stack([self._turn(i, shape).reshape(-1) - self.asked.x_0[i] for i in rows.tolist()])
        return self._move(rows, r)

    def shaken(self, rows: Tensor) -> Tensor:
        """Away from x_0: half as far as the best point, by random signs; while nothing has fooled, further and further,
        by random signs or by the same sign everywhere."""
        _, sign = self._draw(rows)
        k, known = self.begun[rows], self.best.found(rows)
        sign = torch.where(((k % 2 == 1) | known)[:, None], sign, sign[:, :1])
        shaken = torch.where(self.dead[rows], DEAD, SHAKEN).to(sign.dtype)
        away = (shaken * 2.0 ** torch.div(k - 1, 2, rounding_mode="floor")).clamp_max(1)
        away = away / LEAP * self.leap[rows]
        near = 0.5 * norm(self.best.r[rows], self.steps) / norm(torch.ones_like(sign), self.steps)
        return self._move(rows, torch.where(known, near, away)[:, None] * sign)

    def _draw(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """A random half of the features, and random signs, of each sample."""
        shape = (2, self.asked.x_0.shape[1])
        coins = [torch.rand(shape, generator=self.random[i]) < 0.5 for i in rows.tolist()]
        coin = torch.stack(coins).to(rows.device)
        return coin[:, 0], 2 * coin[:, 1].to(self.asked.x_0.dtype) - 1

    def _draw_noise(self, rows: Tensor, most: float) -> Tensor:
        """The same random amount for all features, up to a share of the box, by random signs."""
        _, sign = self._draw(rows)
        amount = torch.stack([torch.rand(1, generator=self.random[i]) for i in rows.tolist()]).to(sign)
        return most / LEAP * self.leap[rows, None] * amount * sign

    def _turn(self, i: int, shape: torch.Size) -> Tensor:
        """x_0 of one sample, mirrored, transposed and moved at random."""
        coins = torch.rand(5, generator=self.random[i])
        copy = self.asked.x_0[i].view(shape)
        copy = copy.flip([axis for axis in (-2, -1) if coins[axis] < 0.5])
        copy = copy.transpose(-2, -1) if shape[-2] == shape[-1] and coins[0] < 0.5 else copy
        return copy.roll([int(coins[1] * shape[-2]), int(coins[2] * shape[-1])], (-2, -1))

    def _move(self, rows: Tensor, r: Tensor) -> Tensor:
        """x_0 + r, on the features that may change and inside the box."""
        r = r if self.asked.mask is None else r * self.asked.mask[rows]
        return self.asked.clamp(rows, self.asked.x_0[rows] + r)
