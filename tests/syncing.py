"""Counts what makes a GPU wait for the host: every time that a value of a tensor decides what Python does next.

On a GPU the host runs ahead and queues work. It has to wait whenever it needs a number (`item`, `tolist`, `bool`, `int`
and `float` of a tensor), or a shape that depends on numbers (`nonzero`, boolean indexing, `unique`). There is no GPU in
these tests, but the same calls are made on a CPU, where they can be counted.
"""

from collections import Counter

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "equal"}
"""Operations that end on the host. `item`, `bool`, `int` and `float` are all `_local_scalar_dense`."""

READ = {"tolist", "numpy", "cpu", "__array__"}
"""Methods that read memory without an operation of their own on a CPU."""


class _Operations(TorchDispatchMode):
    def __init__(self, found):
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in WAITING:
            self.found[name] += 1
        elif name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            masks = [each for each in args[1] if each is not None and each.dtype in (torch.bool, torch.uint8)]
            filled = name != "index" and args[2].numel() == 1  # becomes `masked_fill`
            if masks and not filled:
                self.found["boolean index"] += 1
        return func(*args, **(kwargs or {}))


class _Methods(TorchFunctionMode):
    def __init__(self, found):
        super().__init__()
        self.found = found

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if name in READ:
            self.found[name] += 1
        return func(*args, **(kwargs or {}))


class Syncs:
    """`with Syncs() as syncs:` counts them by kind in `syncs.found`."""

    def __init__(self):
        self.found = Counter()
        self._modes = (_Methods(self.found), _Operations(self.found))

    @property
    def total(self):
        return sum(self.found.values())

    def __enter__(self):
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *error):
        for mode in reversed(self._modes):
            mode.__exit__(*error)
