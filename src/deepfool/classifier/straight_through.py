"""Roundings that let gradients through: the values are those of the rounding, the gradient is that of what it rounds.

(Bengio, Leonard, Courville: "Estimating or propagating gradients through stochastic neurons", 2013.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

ROUNDINGS = {"round", "floor", "ceil", "trunc", "fix"}
SIGNS = {"sign", "sgn"}
DIVISIONS = {"floor_divide", "floordiv", "rfloordiv"}
CONVERSIONS = {"to", "type", "byte", "char", "short", "int", "long", "float", "double", "half", "bfloat16"}
SHAPES = {"clone", "contiguous", "view", "reshape", "flatten", "squeeze", "unsqueeze", "getitem", "select"}
ARITHMETIC = {"add", "sub", "mul", "div", "true_divide", "clamp", "clip", "clamp_min", "clamp_max"}
REMEMBERED = 8
"""So many of the latest tensors of a kind are remembered; more would keep activations in memory."""


@dataclass(frozen=True)
class Call:
    """A call of a torch function or of a method of a tensor."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    name: str
    """Without the marks of methods, operators and changes in place: `x // 2` is "floordiv"."""
    in_place: bool

    @staticmethod
    def of(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Call:
        """
        >>> Call.of(torch.Tensor.round_, (torch.zeros(1),), None).name
        'round'
        """
        kwargs = dict(kwargs or {})
        if not args and "input" in kwargs:
            args = (kwargs.pop("input"),)
        plain = getattr(func, "__name__", "")
        operator = plain.startswith("__")
        in_place = plain.endswith("_") and not operator
        return Call(func, args, kwargs, plain.strip("_").removeprefix("special_"), in_place)

    def run(self) -> Any:
        return self.func(*self.args, **self.kwargs)

    def on(self, *args: Any) -> Any:
        """The same with other arguments in the first places."""
        return replace(self, args=(*args, *self.args[len(args) :])).run()


class Roundings:
    """Runs calls, those of roundings so that gradients pass; knows the names of what it met."""

    def __init__(self) -> None:
        self.met: dict[str, None] = {}
        """In order, each once."""
        self._twins: deque[tuple[Tensor, Tensor]] = deque(maxlen=REMEMBERED)
        """Whole numbers, which carry no gradient, with floating-point numbers of the same value, which do."""

    def run(self, call: Call) -> Any:
        """What the call returns, to the bit; with a gradient, if it is a rounding of something that has one."""
        if call.name in ROUNDINGS | SIGNS and flows(call.args[0]):
            return self._round(call)
        if _rounds_quotient(call) and any(flows(arg) for arg in call.args[:2]):
            return self._divide(call)
        output = call.run()
        if call.in_place or not isinstance(output, Tensor):
            return output
        if call.name in CONVERSIONS and flows(call.args[0]) and not _is_real(output):
            self.met["rounding (to whole numbers)"] = None
            self._twins.append((output, _pass_through(call.args[0], output.to(call.args[0].dtype))))
        elif self._twins and call.name in CONVERSIONS | SHAPES | ARITHMETIC:
            return self._follow_twins(call, output)
        return output

    def _round(self, call: Call) -> Tensor:
        smooth: Tensor = call.args[0]
        if call.in_place and smooth.is_leaf:  # an error of the model: torch says so
            return call.run()  # type: ignore[no-any-return]
        self.met[f"rounding ({call.name})"] = None
        value = call.on(smooth.detach().clone())
        return _overwrite(smooth, value) if call.in_place else _pass_through(smooth, value)

    def _divide(self, call: Call) -> Tensor:
        a, b = call.args[:2]
        if call.in_place and a.is_leaf:
            return call.run()  # type: ignore[no-any-return]
        self.met["rounding (floor division)"] = None
        with torch.no_grad():
            value = call.on(a.clone()) if call.in_place else call.run()
        if call.in_place:
            return _overwrite(a.div_(b), value)
        return _pass_through(b / a if call.name == "rfloordiv" else a / b, value)

    def _follow_twins(self, call: Call, output: Tensor) -> Tensor:
        """Whole numbers on their way back to floating-point ones: gradients take the way of their twins."""
        twins = [self._twin(arg) for arg in call.args]
        if all(twin is None for twin in twins):
            return output
        smooth = call.on(*(arg if twin is None else twin for arg, twin in zip(call.args, twins, strict=True)))
        if _is_real(output):
            return _pass_through(smooth, output) if flows(smooth) else output
        # From one kind of whole numbers to another: the twin stays what it is.
        smooth = smooth if flows(smooth) else twins[0]
        if smooth is not None and smooth.shape == output.shape:
            self._twins.append((output, smooth))
        return output

    def _twin(self, arg: Any) -> Tensor | None:
        return next((twin for whole, twin in self._twins if whole is arg), None)


def flows(value: Any) -> bool:
    """Whether a gradient flows back from here."""
    return isinstance(value, Tensor) and value.requires_grad and _is_real(value)


def _is_real(value: Tensor) -> bool:
    return value.is_floating_point()


def _rounds_quotient(call: Call) -> bool:
    rounded = call.name in ("div", "divide") and call.kwargs.get("rounding_mode") is not None
    return (rounded or call.name in DIVISIONS) and len(call.args) >= 2


def _overwrite(tensor: Tensor, value: Tensor) -> Tensor:
    """Change values in place behind autograd's back: what gradients see stays as it was."""
    with torch.no_grad():
        tensor.detach().copy_(value)
    return tensor


def _pass_through(smooth: Tensor, value: Tensor) -> Tensor:
    return _PassThrough.apply(smooth, value.detach())  # type: ignore[no-any-return, no-untyped-call]


class _PassThrough(torch.autograd.Function):
    """The values of the second, the gradient of the first."""

    @staticmethod
    def forward(ctx: Any, smooth: Tensor, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None
