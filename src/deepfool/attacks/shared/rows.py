"""Rows of a table, read and written: for rows that are in order, none of them twice.

As many rows as the table has are then all of them, and nothing has to be gathered. The rest goes by `index_select`
and `index_copy_`: an index in brackets takes several times as long, and `len` of a tensor longer than `size`.
"""

from __future__ import annotations

from torch import Tensor


def pick(values: Tensor, rows: Tensor) -> Tensor:
    """values[rows], for reading only: all of them are not copied.

    >>> import torch
    >>> pick(torch.tensor([5.0, 6.0, 7.0]), torch.tensor([0, 2]))
    tensor([5., 7.])
    """
    return values if rows.size(0) == values.size(0) else values.index_select(0, rows)


def put(table: Tensor, rows: Tensor, values: Tensor) -> None:
    """table[rows] = values.

    >>> import torch
    >>> table = torch.zeros(3)
    >>> put(table, torch.tensor([0, 2]), torch.tensor([5.0, 7.0]))
    >>> table
    tensor([5., 0., 7.])
    """
    if rows.size(0) == table.size(0):
        table.copy_(values)
    else:
        table.index_copy_(0, rows, values)
