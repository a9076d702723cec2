"""How each operation of torch is lowered. Entries take the builder, the recorded step and the operation's arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from deepfool.certificates.building import Builder
from deepfool.certificates.graph import Node
from deepfool.certificates.operators import Convolution, Dense, Pad, Rearrange, Reshape, Scale
from deepfool.certificates.rows import Shape

Lowered = Callable[..., Node]
LOWERED: dict[str, Lowered] = {}


class UnsupportedError(Exception):
    """An operation that is known, in a form that is not."""


def lowers(*names: str) -> Callable[[Lowered], Lowered]:
    """Enter a function under the names of the operations that it lowers."""

    def enter(function: Lowered) -> Lowered:
        LOWERED.update({f"aten.{name}": function for name in names})
        return function

    return enter


def _out(step: fx.Node, place: int = 0) -> Shape:
    """The shape of a step's result, without the batch."""
    value = step.meta["val"]
    value = value[place] if isinstance(value, tuple | list) else value
    shape: Shape = tuple(value.shape)
    return shape[1:]


def _double(value: Any) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64).cpu()


def _constant(value: Any, node: Node) -> Tensor:
    """A constant that meets a node in a sum or product, as the map of one sample."""
    constant = _double(value)
    if constant.ndim > len(node.shape):
        if constant.shape[0] != 1 or constant.ndim > len(node.shape) + 1:
            raise UnsupportedError("a constant that differs between the samples of a batch")
        constant = constant[0]
    sides = zip(reversed(constant.shape), reversed(node.shape), strict=False)
    if any(mine not in (1, theirs) for mine, theirs in sides):
        raise UnsupportedError("a constant that is larger than what it is combined with")
    return constant


def _only(value: Any) -> Node:
    if not isinstance(value, Node):
        raise UnsupportedError("its first argument does not depend on the input")
    return value


# -- affine layers ---------------------------------------------------------------------------------------------------


@lowers("addmm")
def _addmm(b: Builder, step: fx.Node, bias: Any, x: Any, weight: Any, *, beta: float = 1, alpha: float = 1) -> Node:
    if isinstance(weight, Node) or isinstance(bias, Node):
        raise UnsupportedError("weights that depend on the input")
    return _matrix(b, _only(x), alpha * _double(weight), beta * _double(bias))


@lowers("mm", "matmul")
def _mm(b: Builder, step: fx.Node, x: Any, weight: Any) -> Node:
    if isinstance(weight, Node):
        raise UnsupportedError("weights that depend on the input")
    return _matrix(b, _only(x), _double(weight), None)


def _matrix(b: Builder, x: Node, weight: Tensor, bias: Tensor | None) -> Node:
    if len(x.shape) != 1 or weight.ndim != 2 or (bias is not None and bias.numel() not in (1, weight.shape[1])):
        raise UnsupportedError("over several positions at once")
    return b.affine(x, Dense(weight.T, None if bias is None else bias.reshape(-1).expand(weight.shape[1])))


@lowers("convolution", "_convolution")
def _convolution(
    b: Builder, step: fx.Node, x: Any, weight: Any, bias: Any, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int, *flags: Any,
) -> Node:  # fmt: skip
    if isinstance(weight, Node) or isinstance(bias, Node):
        raise UnsupportedError("weights that depend on the input")
    if transposed:
        raise UnsupportedError("transposed")
    x, weight = _only(x), _double(weight)
    bias = None if bias is None else _double(bias)
    if weight.ndim == 3:  # one dimension: a picture of height 1
        flat = b.affine(x, Reshape(x.shape, (x.shape[0], 1, x.shape[1])))
        made = Convolution(
            weight[:, :, None], bias, flat.shape, (1, stride[0]), (0, padding[0]), (1, dilation[0]), groups
        )
        return b.affine(b.affine(flat, made), Reshape(made.shape, _out(step)))
    if weight.ndim != 4:
        raise UnsupportedError("in three dimensions")
    return b.affine(x, Convolution(weight, bias, x.shape, tuple(stride), tuple(padding), tuple(dilation), groups))


@lowers("native_batch_norm", "_native_batch_norm_legit_no_training", "_native_batch_norm_legit", "cudnn_batch_norm",
        "_batch_norm_with_update", "_batch_norm_no_update")  # fmt: skip
def _batch_norm(
    b: Builder, step: fx.Node, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, *rest: Any
) -> Node:
    if any(each is True for each in rest) or mean is None:
        raise UnsupportedError("with the statistics of the batch: the model is not in eval mode, or keeps none")
    eps = float(rest[-1])
    node, channels = _only(x), _double(mean).numel()
    factor = (_double(variance) + eps).rsqrt() * (1.0 if weight is None else _double(weight))
    offset = (0.0 if bias is None else _double(bias)) - _double(mean) * factor
    sides = (channels, *(1 for _ in node.shape[1:]))
    return b.affine(node, Scale(factor.view(sides), torch.as_tensor(offset).view(sides), node.shape))


# -- arithmetic ------------------------------------------------------------------------------------------------------


@lowers("add", "add_")
def _add(b: Builder, step: fx.Node, x: Any, y: Any, *, alpha: float = 1) -> Node:
    if isinstance(x, Node) and isinstance(y, Node):
        return _sum_nodes(b, x, y if alpha in (1, -1) else b.scale(y, alpha), -1 if alpha == -1 else 1)
    node, constant = (x, alpha * _double(y)) if isinstance(x, Node) else (b.scale(y, alpha), _double(x))
    return b.scale(node, 1.0, _constant(constant, node))


@lowers("sub", "sub_")
def _sub(b: Builder, step: fx.Node, x: Any, y: Any, *, alpha: float = 1) -> Node:
    return _add(b, step, x, y, alpha=-alpha)


@lowers("rsub")
def _rsub(b: Builder, step: fx.Node, x: Any, y: Any, alpha: float = 1) -> Node:
    return _add(b, step, y, x, alpha=-alpha)


def _sum_nodes(b: Builder, x: Node, y: Node, sign: int) -> Node:
    if x.shape != y.shape:
        raise UnsupportedError("of two shapes")
    return b.sum((x, y), (1, sign))


@lowers("mul", "mul_")
def _mul(b: Builder, step: fx.Node, x: Any, y: Any) -> Node:
    if isinstance(x, Node) and isinstance(y, Node):
        raise UnsupportedError("of two values that both depend on the input")
    node, constant = (x, y) if isinstance(x, Node) else (y, x)
    return b.scale(node, _constant(constant, node))


@lowers("div", "div_")
def _div(b: Builder, step: fx.Node, x: Any, y: Any, *, rounding_mode: str | None = None) -> Node:
    if isinstance(y, Node):
        raise UnsupportedError("by a value that depends on the input")
    if rounding_mode is not None:
        raise UnsupportedError("rounded")
    node = _only(x)
    return b.scale(node, 1 / _constant(y, node))


@lowers("neg")
def _neg(b: Builder, step: fx.Node, x: Any) -> Node:
    return b.scale(_only(x), -1.0)


# -- what bends ------------------------------------------------------------------------------------------------------


@lowers("relu", "relu_")
def _relu(b: Builder, step: fx.Node, x: Any) -> Node:
    return b.relu(_only(x))


@lowers("leaky_relu", "leaky_relu_")
def _leaky_relu(b: Builder, step: fx.Node, x: Any, slope: float = 0.01) -> Node:
    if not 0 <= slope < 1:
        raise UnsupportedError(f"with the slope {slope:g}")
    return b.relu(_only(x), float(slope))


@lowers("tanh", "tanh_")
def _tanh(b: Builder, step: fx.Node, x: Any) -> Node:
    return b.tanh(_only(x))


@lowers("sigmoid", "sigmoid_")
def _sigmoid(b: Builder, step: fx.Node, x: Any) -> Node:
    return b.sigmoid(_only(x))


@lowers("threshold", "threshold_")
def _threshold(b: Builder, step: fx.Node, x: Any, threshold: float, value: float) -> Node:
    if threshold != value:
        raise UnsupportedError("that jumps")
    return b.clamp(_only(x), threshold, None)


@lowers("clamp", "clamp_", "hardtanh", "hardtanh_")
def _clamp(b: Builder, step: fx.Node, x: Any, low: Any = None, high: Any = None, **ends: Any) -> Node:
    if "hardtanh" in str(step.target) and low is None:
        low, high = -1.0, 1.0
    low, high = ends.get("min", low), ends.get("max", high)
    if not all(each is None or isinstance(each, int | float) for each in (low, high)):
        raise UnsupportedError("between tensors")
    return b.clamp(_only(x), low, high)


@lowers("clamp_min", "clamp_min_")
def _clamp_min(b: Builder, step: fx.Node, x: Any, low: Any) -> Node:
    return _clamp(b, step, x, low)


@lowers("clamp_max", "clamp_max_")
def _clamp_max(b: Builder, step: fx.Node, x: Any, high: Any) -> Node:
    return _clamp(b, step, x, None, high)


@lowers("abs")
def _abs(b: Builder, step: fx.Node, x: Any) -> Node:
    node = _only(x)
    return b.sum((b.relu(node), b.relu(b.scale(node, -1.0))), (1, 1))


@lowers("maximum")
def _maximum(b: Builder, step: fx.Node, x: Any, y: Any) -> Node:
    if not (isinstance(x, Node) and isinstance(y, Node)) or x.shape != y.shape:
        raise UnsupportedError("with a constant, or of two shapes")
    return b.maximum(x, y)


@lowers("minimum")
def _minimum(b: Builder, step: fx.Node, x: Any, y: Any) -> Node:
    if not (isinstance(x, Node) and isinstance(y, Node)) or x.shape != y.shape:
        raise UnsupportedError("with a constant, or of two shapes")
    return b.sum((x, b.relu(b.sum((x, y), (1, -1)))), (1, -1))


# -- pooling ---------------------------------------------------------------------------------------------------------


def _pair(value: Sequence[int] | int) -> Shape:
    sides = (value,) if isinstance(value, int) else tuple(value)
    return sides * 2 if len(sides) == 1 else sides


@lowers("max_pool2d_with_indices", "max_pool2d")
def _max_pool(
    b: Builder, step: fx.Node, x: Any, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
    ceil: bool = False,
) -> Node:  # fmt: skip
    node = _only(x)
    if len(node.shape) != 3:
        raise UnsupportedError("not over pictures")
    kernel = _pair(kernel)
    sides = _out(step) if not isinstance(step.meta["val"], tuple | list) else _out(step, 0)
    return b.max_pool(node, kernel, _pair(stride) if stride else kernel, _pair(padding), _pair(dilation), sides[1:])


@lowers("avg_pool2d")
def _avg_pool(
    b: Builder, step: fx.Node, x: Any, kernel: Any, stride: Any = (), padding: Any = 0, ceil: bool = False,
    count_padding: bool = True, divisor: int | None = None,
) -> Node:  # fmt: skip
    """The sum of each window of the map, put inside zeros, times one over how many entries count."""
    node = _only(x)
    kernel, padding, out = _pair(kernel), _pair(padding), _out(step)
    stride = _pair(stride) if stride else kernel
    c, height, width = node.shape
    far = [(out[i + 1] - 1) * stride[i] + kernel[i] - padding[i] - side for i, side in enumerate((height, width))]
    pads = (padding[1], far[1], padding[0], far[0])
    ones = torch.ones(1, c, height, width, dtype=torch.float64)
    if any(pads):
        node = b.affine(node, Pad(node.shape, pads))
    summed = b.sum_pool(node, kernel, stride, out[1:])
    args = (kernel, stride, padding, ceil, count_padding, divisor)
    average = torch.nn.functional.avg_pool2d(ones, *args)
    total = torch.nn.functional.avg_pool2d(ones, kernel, stride, padding, ceil, True, 1)
    return b.scale(summed, (average / total)[0])


@lowers("_adaptive_avg_pool2d", "adaptive_avg_pool2d", "adaptive_avg_pool1d")
def _adaptive_avg_pool(b: Builder, step: fx.Node, x: Any, sides: Any) -> Node:
    return _rearrange(b, step, _only(x), lambda h: torch.nn.functional.adaptive_avg_pool2d(h, sides))


# -- entries moved about ---------------------------------------------------------------------------------------------


def _rearrange(b: Builder, step: fx.Node, node: Node, function: Callable[[Tensor], Tensor]) -> Node:
    return b.affine(node, Rearrange(function, node.shape, _out(step), None))


@lowers("view", "_unsafe_view", "reshape", "flatten", "squeeze", "unsqueeze", "expand", "squeeze_", "unsqueeze_")
def _view(b: Builder, step: fx.Node, x: Any, *args: Any) -> Node:
    node, whole = _only(x), step.meta["val"].shape
    before = step.args[0].meta["val"].shape  # type: ignore[union-attr]
    if len(whole) == 0 or whole[0] != before[0] or math.prod(whole) != math.prod(before):
        raise UnsupportedError("that changes the batch")
    return b.affine(node, Reshape(node.shape, _out(step)))


@lowers("permute", "transpose", "t")
def _permute(b: Builder, step: fx.Node, x: Any, *args: Any) -> Node:
    node, target = _only(x), step.target
    order = target(torch.empty(*range(2, 3 + len(node.shape)), device="meta"), *args).shape  # type: ignore[operator]
    if order[0] != 2:
        raise UnsupportedError("that moves the batch")
    return _rearrange(b, step, node, lambda h: target(h, *args))  # type: ignore[operator]


@lowers("slice", "select", "flip", "mean", "sum", "index_select")
def _along(b: Builder, step: fx.Node, x: Any, *args: Any, **kwargs: Any) -> Node:
    """Operations along some axes that are not the batch."""
    node, target = _only(x), step.target
    ndim = len(node.shape) + 1
    where = args[0] if args else None
    axes = [where] if isinstance(where, int) else where
    if "slice" in str(target) and _out(step) == node.shape:
        return node
    if axes is None or not isinstance(axes, list | tuple) or any(axis % ndim == 0 for axis in axes):
        raise UnsupportedError("over the batch")
    if any(isinstance(each, Node) for each in args):
        raise UnsupportedError("at places that depend on the input")
    return _rearrange(b, step, node, lambda h: target(h, *args, **kwargs))  # type: ignore[operator]


@lowers("constant_pad_nd")
def _pad(b: Builder, step: fx.Node, x: Any, pads: Sequence[int], value: float = 0) -> Node:
    node = _only(x)
    if len(pads) > 2 * len(node.shape):
        raise UnsupportedError("of the batch")
    sides = tuple(pads)
    bias = None
    if value != 0:
        inside = torch.ones(1, *node.shape, dtype=torch.float64)
        bias = value * (1 - torch.nn.functional.pad(inside, sides))[0]
    made = Rearrange(lambda h: torch.nn.functional.pad(h, sides), node.shape, _out(step), bias)
    return b.affine(node, made)


@lowers("cat")
def _cat(b: Builder, step: fx.Node, parts: Sequence[Any], axis: int = 0) -> Node:
    """Each part put beside zeros, and all of them added."""
    out = _out(step)
    axis = axis % (len(out) + 1) - 1
    if axis < 0 or not all(isinstance(part, Node) for part in parts):
        raise UnsupportedError("with constants, or along the batch")
    placed, start = [], 0
    for part in parts:
        end = start + part.shape[axis]
        pads = [0] * (2 * (len(out) - axis))
        pads[-2:] = [start, out[axis] - end]
        placed.append(_pad(b, step, part, pads))
        start = end
    return b.sum(tuple(placed), (1,) * len(placed)) if len(placed) > 1 else placed[0]


@lowers("clone", "detach", "alias", "_to_copy", "to", "contiguous", "lift_fresh_copy", "dropout", "lift_fresh")
def _same(b: Builder, step: fx.Node, x: Any, *args: Any, **kwargs: Any) -> Node:
    kind = kwargs.get("dtype")
    if kind is not None and kind not in (torch.float32, torch.float64):
        raise UnsupportedError(f"to {kind}")
    return _only(x)
