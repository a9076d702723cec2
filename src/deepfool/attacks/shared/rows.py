"""Rows of a table, read and written: for rows that are in order, none of them twice.

As many rows as the table has are then all of them, and nothing has to be gathered. The rest goes by `index_select`
and `index_copy_`: an index in brackets takes several times as long, and `len` of a tensor longer than `size`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepfool import norms


def pick(values: Tensor, rows: Tensor) -> Tensor:
    """values[rows], for reading only: all of them are not copied.

    >>> pick(torch.tensor([5.0, 6.0, 7.0]), torch.tensor([0, 2]))
    tensor([5., 7.])
    """
    return values if rows.size(0) == values.size(0) else values.index_select(0, rows)


def put(table: Tensor, rows: Tensor, values: Tensor) -> None:
    """table[rows] = values.

    >>> table = torch.zeros(3)
    >>> put(table, torch.tensor([0, 2]), torch.tensor([5.0, 7.0]))
    >>> table
    tensor([5., 0., 7.])
    """
    if rows.size(0) == table.size(0):
        table.copy_(values)
    else:
        table.index_copy_(0, rows, values)


def put_where(table: Tensor, rows: Tensor, where: Tensor, values: Tensor) -> None:
    """table[rows[where]] = values[where], for a table of vectors; on a GPU without asking how many these are.

    >>> table = torch.zeros(3, 1)
    >>> put_where(table, torch.tensor([0, 2]), torch.tensor([False, True]), torch.tensor([[5.0], [7.0]]))
    >>> table.flatten()
    tensor([0., 0., 7.])
    """
    if table.device.type in norms.ON_THE_HOST:
        here = where.nonzero()[:, 0]
        table.index_copy_(0, rows[here], pick(values, here))
    else:
        put(table, rows, torch.where(where[:, None], values, pick(table, rows)))
