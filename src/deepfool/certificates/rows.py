"""Linear functions of the values at a node, one a row: the matrix that a backward pass carries from node to node.

A row of a convolution sees a small window of the map that it reads from. As long as that is so, only the window is
stored, with the place of its top left corner; a window may reach beyond the map, where it is zero.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

Shape = tuple[int, ...]


class Rows:
    """`values` is (rows, *shape), or (rows, channels, height, width) of windows with their corners at `top`, `left`."""

    def __init__(self, values: Tensor, shape: Shape, top: Tensor | None = None, left: Tensor | None = None) -> None:
        self.values, self.shape, self.top, self.left = values, shape, top, left

    @property
    def windowed(self) -> bool:
        return self.top is not None

    def like(self, values: Tensor, shape: Shape | None = None) -> Rows:
        """Other values at the same places."""
        return Rows(values, self.shape if shape is None else shape, self.top, self.left)

    @staticmethod
    def pick(shape: Shape, index: Tensor, dtype: torch.dtype) -> Rows:
        """Row i reads entry index[i] of the flattened map; as windows of one pixel where there are pixels."""
        if len(shape) == 3 and shape[1] * shape[2] > 1:
            pixels = shape[1] * shape[2]
            values = F.one_hot(index // pixels, shape[0]).to(dtype)[:, :, None, None]
            place = index % pixels
            return Rows(values, shape, place // shape[2], place % shape[2])
        size = 1
        for side in shape:
            size *= side
        return Rows(F.one_hot(index, size).to(dtype).view(-1, *shape), shape)

    def read(self, maps: Tensor, who: Tensor | None) -> Tensor:
        """The entries of maps (n, *shape) where the rows have theirs; row i belongs to maps[who[i]] (None: maps[i])."""
        return self.read_all((maps,), who)[0]

    def read_all(self, maps: Sequence[Tensor], who: Tensor | None) -> list[Tensor]:
        """The same for several maps, of as many samples each."""
        if self.top is None or self.left is None:
            return [each if len(each) == 1 or who is None else each[who] for each in maps]
        h, w = self.values.shape[2:]
        border = self._border()
        n, tall, wide = len(maps[0]), self.shape[1] + border[2] + border[3], self.shape[2] + border[0] + border[1]
        at = torch.zeros_like(self.top) if n == 1 else torch.arange(len(self.top)) if who is None else who
        # Rows of several channels have the same window: it is cut out once, and copied as a whole.
        place = (at * tall + self.top + border[2]) * wide + self.left + border[0]
        place, same = torch.unique(place, return_inverse=True)
        at, down, along = place // (tall * wide), place // wide % tall, place % wide
        found = []
        for each in maps:
            around = F.pad(each, border) if any(border) else each
            found.append(around.unfold(2, h, 1).unfold(3, w, 1)[at, :, down, along].index_select(0, same))
        return found

    def dense(self) -> Rows:
        """The same rows over the whole map."""
        if self.top is None or self.left is None:
            return self
        n, c, h, w = self.values.shape
        left, right, above, below = self._border()
        tall, wide = self.shape[1] + above + below, self.shape[2] + left + right
        corner = (self.top + above) * wide + self.left + left
        inside = (torch.arange(h)[:, None] * wide + torch.arange(w)).flatten()
        place = (corner[:, None] + inside)[:, None].expand(n, c, h * w)
        full = self.values.new_zeros(n, c, tall * wide).scatter(2, place, self.values.reshape(n, c, h * w))
        full = full.view(n, c, tall, wide)[:, :, above : above + self.shape[1], left : left + self.shape[2]]
        return Rows(full, self.shape)

    def flat(self) -> Tensor:
        """(rows, entries) over the whole map."""
        return self.dense().values.flatten(1)

    def trimmed(self) -> Rows:
        """Zero beyond the map; dense where a window covers most of the map anyway."""
        if self.top is None or self.left is None:
            return self
        h, w = self.values.shape[2:]
        if 4 * h * w >= 3 * self.shape[1] * self.shape[2]:
            return self.dense()
        values = self.values
        for corner, side, size, axis in ((self.top, h, self.shape[1], 2), (self.left, w, self.shape[2], 3)):
            at = corner[:, None] + torch.arange(side)
            within = (at >= 0) & (at < size)
            if not bool(within.all()):
                values = values * within[:, None, :, None] if axis == 2 else values * within[:, None, None, :]
        return self.like(values)

    def __add__(self, other: Rows) -> Rows:
        if self.windowed and other.windowed:
            joined = _join(self, other)
            if joined is not None:
                return joined
        if self.windowed or other.windowed:
            return self.dense() + other.dense()
        return Rows(self.values + other.values, self.shape)

    def __neg__(self) -> Rows:
        return self.like(-self.values)

    def times(self, factor: Tensor) -> Rows:
        """Entry by entry."""
        return self.like(self.values * factor)

    def _border(self) -> tuple[int, int, int, int]:
        """How far the windows reach beyond the map: left, right, above, below (as `F.pad` has them)."""
        assert self.top is not None
        assert self.left is not None
        h, w = self.values.shape[2:]
        left, above = max(0, -int(self.left.min())), max(0, -int(self.top.min()))
        right = max(0, int(self.left.max()) + w - self.shape[2])
        below = max(0, int(self.top.max()) + h - self.shape[1])
        return left, right, above, below


def _join(a: Rows, b: Rows) -> Rows | None:
    """The sum of two sets of windows that lie alike in all rows; None if they do not."""
    assert a.top is not None
    assert a.left is not None
    assert b.top is not None
    assert b.left is not None
    down, along = b.top - a.top, b.left - a.left
    dy, dx = int(down[0]), int(along[0])
    if not (bool((down == dy).all()) and bool((along == dx).all())):
        return None
    (ha, wa), (hb, wb) = a.values.shape[2:], b.values.shape[2:]
    if (dy, dx, ha, wa) == (0, 0, hb, wb):
        return a.like(a.values + b.values)
    above, left = max(0, -dy), max(0, -dx)
    h, w = max(ha, hb + dy) + above, max(wa, wb + dx) + left
    total = a.values.new_zeros(len(a.values), a.shape[0], h, w)
    total[:, :, above : above + ha, left : left + wa] += a.values
    total[:, :, above + dy : above + dy + hb, left + dx : left + dx + wb] += b.values
    return Rows(total, a.shape, a.top - above, a.left - left)
