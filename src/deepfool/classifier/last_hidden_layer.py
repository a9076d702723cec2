"""The last hidden layer of a network, where the gradients of all classes are almost free.

How steep the classes are there, relative to each other, is nearly how steep they are at the input: over the classes of
a sample the ratio of the two varies by about a tenth on the networks of the zoo. DeepFool uses it to see which classes
can be nearest before it takes their gradients. That is safe only where every path from the input to the scores passes
through this one layer, so that is tested, once per model (`is_only_way`). A network that has no such layer (several
heads, an ensemble), or whose layers cannot be seen (a bare function, a compiled model), counts as having none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

Call: TypeAlias = tuple[nn.Module, Tensor, Tensor]
"""A layer, what it was given, what it returned."""

WORTH = 64
"""The gradients of all classes at the layer may have up to this many times the entries of the input: beyond that they
would cost as much as the rows that they save."""


@dataclass(frozen=True)
class HiddenLayer:
    """A place in a network: what a layer returns, or what it is given."""

    layer: nn.Module
    returned: bool

    @contextmanager
    def watch(self) -> Iterator[list[Tensor]]:
        """While this is open, forward passes add the tensor at this place to the list."""
        seen: list[Tensor] = []

        def note(_: nn.Module, given: tuple[Any, ...], returned: Any) -> None:
            seen.append(returned if self.returned else given[0])

        hook = self.layer.register_forward_hook(note)
        try:
            yield seen
        finally:
            hook.remove()


@contextmanager
def follow_layers(model: object) -> Iterator[Sequence[Call]]:
    """While this is open, forward passes list the last two layers with weights that they call.

    >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> with follow_layers(model) as calls:
    ...     _ = model(torch.zeros(1, 4))
    >>> [layer is model[i] for i, (layer, _, _) in zip((0, 2), calls)]
    [True, True]
    """
    calls: deque[Call] = deque(maxlen=2)  # more would keep activations in memory

    def note(layer: nn.Module, given: tuple[Any, ...], returned: Any) -> None:
        if given and isinstance(given[0], Tensor) and isinstance(returned, Tensor):
            calls.append((layer, given[0], returned))

    hooks = [layer.register_forward_hook(note) for layer in weighted_layers(model)]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def weighted_layers(model: object) -> list[nn.Module]:
    """Linear and convolutional layers, and anything else with a matrix for a weight; none where hooks do not work."""
    if not isinstance(model, nn.Module):
        return []
    modules = list(model.modules())
    if any(isinstance(m, torch.jit.ScriptModule) or type(m).__name__ == "OptimizedModule" for m in modules):
        return []  # scripted layers take no hooks; compiled models would be compiled again
    weights = ((m, getattr(m, "weight", None)) for m in modules)
    return [m for m, weight in weights if isinstance(weight, Tensor) and weight.ndim >= 2]


def find_hidden_layer(
    calls: Sequence[Call], x: Tensor, scores: Tensor, features: int | None = None
) -> tuple[HiddenLayer, Tensor] | None:
    """The last hidden layer of the network that made these calls for the batch x, and the tensor there, if it has one.

    What the last layer but one returns, so that the activation after it counts too; what the last layer is given, if
    the gradients of all classes would take too much there: beside the `features` of an input, where x are coordinates
    of inputs that are larger.

    >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> x = torch.zeros(5, 4, requires_grad=True)
    >>> with follow_layers(model) as calls:
    ...     scores = model(x)
    >>> layer, hidden = find_hidden_layer(calls, x, scores)
    >>> layer.layer is model[0], layer.returned, hidden.shape
    (True, True, torch.Size([5, 3]))
    """
    if len(calls) < 2:
        return None
    (before, _, returned), (last, given, _) = calls
    entries = x.numel() if features is None else len(x) * features
    for layer, hidden in ((HiddenLayer(before, True), returned), (HiddenLayer(last, False), given)):
        whole = hidden.ndim > 1 and len(hidden) == len(x) and hidden.requires_grad and hidden is not x
        if whole and scores.shape[1] * hidden.numel() <= WORTH * entries:
            return (layer, hidden) if is_only_way(hidden, x, scores) else None
    return None


def is_only_way(hidden: Tensor, x: Tensor, scores: Tensor) -> bool:
    """Whether every path from x to the scores passes through the tensor `hidden`: autograd's graph says so.

    The graph is walked back from the scores, but not past `hidden`. Does it still reach x?

    >>> x, first, last = torch.ones(1, 4, requires_grad=True), nn.Linear(4, 3), nn.Linear(3, 2)
    >>> h = first(x)
    >>> is_only_way(h, x, last(h.relu())), is_only_way(h, x, last(h.relu()) + x[:, :2])
    (True, False)
    """
    seen, ahead = set(), [(scores.grad_fn, 0)]
    while ahead:  # each node of the graph is expanded once
        node, output = ahead.pop()
        if node is None or node in seen or (node is hidden.grad_fn and output == hidden.output_nr):
            continue
        seen.add(node)
        if getattr(node, "variable", None) is x:
            return False
        ahead.extend(node.next_functions)
    return True
