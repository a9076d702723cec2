"""See through operations that hide gradients: roundings, and a last operation that saturates.

A rounded value has no slope, and scores behind a softmax, a sigmoid or a tanh have almost none where these saturate. An
attack that follows gradients is then lost, though the network behind may be as easy to fool as ever. While `Unmasking`
is open, forward passes return the same values to the bit, but roundings let gradients through, and the tensor before a
last operation that keeps the order of the scores is remembered. That is the *guide*: its largest entry is the same
class, and its gradient does not vanish.

What runs inside compiled or scripted modules or under `torch.vmap` is not seen: nothing is found there, and all is as
without this.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from deepfool.classifier.classifier import Classifier
from deepfool.classifier.straight_through import CONVERSIONS, REMEMBERED, ROUNDINGS, SHAPES, Call, Roundings, flows

CUT_OFF = "no gradient (the scores are cut off from the input)"
"""What `find_masks` says where no gradient leads to the scores at all. This has a name, but no repair."""

Back: TypeAlias = "Callable[[float], float]"
"""From a value of an operation's output to that of its input; NaN where there is none."""


def _logit(v: float) -> float:
    return math.log(v / (1 - v)) if 0 < v < 1 else math.nan


SATURATING: dict[str, Back] = {
    "softmax": lambda v: math.nan,
    "log_softmax": lambda v: math.nan,
    "sigmoid": _logit,
    "logsigmoid": lambda v: _logit(math.exp(v)) if v < 0 else math.nan,
    "tanh": lambda v: math.atanh(v) if -1 < v < 1 else math.nan,
}
"""Operations that hide gradients where they come last, and the way back through them for a single score."""
ALIASES = {"expit": "sigmoid", "log_sigmoid": "logsigmoid"}


@dataclass(frozen=True)
class Ending:
    """A tensor that may be the scores, and what it was before a saturating operation."""

    output: Tensor
    version: int
    before: Tensor
    name: str
    back: Back


class Unmasking(TorchFunctionMode):
    """While this is open, forward passes are seen through.

    >>> x = torch.tensor([0.2, 0.7], requires_grad=True)
    >>> with Unmasking() as mode:
    ...     y = (7 * x).round() / 7
    >>> y.detach(), *torch.autograd.grad(y.sum(), x), list(mode.roundings.met)
    (tensor([0.1429, 0.7143]), tensor([1., 1.]), ['rounding (round)'])
    """

    def __init__(self) -> None:
        super().__init__()
        self.roundings = Roundings()
        self._endings: deque[Ending] = deque(maxlen=REMEMBERED)

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        call = Call.of(func, args, kwargs)
        args = call.args
        if "out" in call.kwargs or not args or not torch.is_grad_enabled():
            return call.run()
        name = ALIASES.get(call.name, call.name)
        given = [args[0].clone() if name in SATURATING and call.in_place else args[0], *args[1:2]]
        endings = [self._ending_of(each) for each in given]
        output = self.roundings.run(call)
        if not flows(output):
            return output
        if name in SATURATING:
            if flows(given[0]) and _keeps_order(call):
                self._remember(output, endings[0] or Ending(given[0], 0, given[0], name, lambda v: v), SATURATING[name])
        elif not call.in_place:
            for ending, other in zip(endings, reversed(given), strict=True):
                if ending is not None:
                    self._go_on(call, output, ending, other)
                    break
        return output

    def guide(self, f: Classifier, returned: Tensor, x: Tensor) -> Tensor | None:
        """The scores (n, c) to follow instead of those that f reads in `returned`; None where those will do."""
        ending = self._ending_of(returned)
        if ending is None or ending.before.shape != returned.shape:
            return None
        before = ending.before.to(returned.dtype)
        if returned.ndim == 2 and returned.shape[1] > 1:
            return before
        decides = f.threshold if f.threshold is not None else 0.5 if f.probabilities else 0.0
        cut = ending.back(decides)
        if not math.isfinite(cut):
            return None
        single = before.reshape(len(x)) - cut
        return torch.stack([torch.zeros_like(single), single], dim=1)

    def names(self, f: Classifier, returned: Tensor, x: Tensor) -> tuple[str, ...]:
        """What hides gradients, in plain words."""
        if not returned.requires_grad:
            return (CUT_OFF,)
        ending = self._ending_of(returned)
        last = [] if ending is None or self.guide(f, returned, x) is None else [f"{ending.name} at the end"]
        return (*self.roundings.met, *last)

    def _ending_of(self, tensor: Any) -> Ending | None:
        return next((e for e in self._endings if e.output is tensor and e.version == tensor._version), None)

    def _remember(self, output: Tensor, inner: Ending, back: Back, before: Tensor | None = None) -> None:
        """`output` was made from `inner`, in a way that keeps the order of the scores."""
        whole = Ending(
            output, output._version, inner.before if before is None else before, inner.name,
            lambda v: inner.back(back(v)),
        )  # fmt: skip
        self._endings.append(whole)

    def _go_on(self, call: Call, output: Tensor, ending: Ending, other: Any) -> None:
        """After a saturating operation: what else keeps the order of the scores?"""
        name, number = call.name, _constant(other)
        if name in SHAPES:
            self._remember(output, ending, lambda v: v, call.on(ending.before))
        elif name in CONVERSIONS | ROUNDINGS or name in ("clamp", "clip", "clamp_min", "clamp_max"):
            self._remember(output, ending, lambda v: v)
        elif name == "log":
            self._remember(output, ending, math.exp)
        elif number is None or call.kwargs or len(call.args) != 2:
            return
        elif name == "add":
            self._remember(output, ending, lambda v: v - number)
        elif name in ("sub", "subtract") and other is call.args[1]:
            self._remember(output, ending, lambda v: v + number)
        elif name in ("mul", "multiply") and number > 0:
            self._remember(output, ending, lambda v: v / number)
        elif name in ("div", "divide", "true_divide") and number > 0 and other is call.args[1]:
            self._remember(output, ending, lambda v: v * number)


@contextmanager
def seeing_through(f: Classifier) -> Iterator[Unmasking]:
    """An `Unmasking`, open while the model of f is called; it stays shut for compiled models, which it would have
    compiled again."""
    mode = Unmasking()
    if _is_compiled(f.model):
        yield mode
    else:
        with mode:
            yield mode


def find_masks(f: Classifier, x: Tensor) -> tuple[str, ...]:
    """The operations that hide gradients in a forward pass of x, by name; empty if there are none.

    >>> model = nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1))
    >>> find_masks(Classifier(model, outputs="probabilities"), torch.zeros(1, 4))
    ('softmax at the end',)
    >>> find_masks(Classifier(lambda x: x.round() / 2), torch.zeros(1, 4))
    ('rounding (round)',)
    """
    # With a graph: only what gradients would have to pass is of interest, and torch knows what that is.
    with torch.enable_grad():
        x = x.detach().requires_grad_(True)
        with seeing_through(f) as mode:
            returned = f.run(x)
        f.read(returned.detach(), x)  # finds out whether these are probabilities
        return mode.names(f, returned, x)


def _is_compiled(model: Any) -> bool:
    modules = list(model.modules()) if isinstance(model, nn.Module) else [model]
    marks = ("_torchdynamo_orig_callable", "_compiled_call_impl")
    return any(type(m).__name__ == "OptimizedModule" or any(getattr(m, k, None) for k in marks) for m in modules)


def _keeps_order(call: Call) -> bool:
    """Whether the scores of a sample are in the same order afterwards: a softmax must be taken over all of them."""
    if "softmax" not in call.name:
        return True
    given = call.args[0]
    dim = call.args[1] if len(call.args) > 1 else call.kwargs.get("dim")
    dim = (0 if given.ndim in (0, 1, 3) else 1) if dim is None else dim % max(1, given.ndim)  # torch's own default
    return bool(dim > 0 and given.numel() == given.shape[0] * given.shape[dim])


def _constant(value: Any) -> float | None:
    """A number that does not depend on the input."""
    if isinstance(value, Tensor):
        return float(value) if value.numel() == 1 and not value.requires_grad else None
    return float(value) if isinstance(value, int | float) else None
