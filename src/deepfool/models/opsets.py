"""Newer ONNX files in the operator set that onnx2torch knows.

torch's exporter writes operator set 18 and later, of which onnx2torch knows a part. `lower` rewrites a file to set 17:

- operators that ONNX itself defines by other operators (Gelu, GroupNormalization, Mish, ...) are replaced by those;
- axes of reductions become attributes again, and `num_outputs` of Split the sizes of its parts;
- attributes that were added later are dropped where they say what was always so.

What is left is checked against set 17. Whatever a rewriting does not cover is refused there, never read wrongly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from deepfool.errors import require
from deepfool.models.torchvision_operators import prepare_torchvision

OPSET = 17
"""The newest set of which onnx2torch converts what a classifier is made of."""

_DEEPEST = 5
"""How often a definition may use operators that are themselves defined by others."""

_REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSumSquare",
)  # fmt: skip

_MEANS_NOTHING_NEW: dict[str, dict[str, Callable[[Any], bool]]] = {
    "AveragePool": {"dilations": lambda value: set(value) <= {1}},
    "Cast": {"saturate": lambda value: True, "round_mode": lambda value: True},  # about 8-bit floats only
    "Resize": {"antialias": lambda value: value == 0, "keep_aspect_ratio_policy": lambda value: value == b"stretch"},
}
"""Attributes younger than `OPSET` that may be dropped, and when."""


def lower(model: Any) -> Any:
    """A network of a newer operator set, rewritten to `OPSET`; an older one as it is.

    >>> import onnx.parser
    >>> newer = onnx.parser.parse_model('''
    ...     <ir_version: 10, opset_import: ["" : 20]>
    ...     net (float[n, 4] x) => (float[n] y) <int64[1] axes = {1}> { y = ReduceMean <keepdims = 0> (x, axes) }
    ... ''')
    >>> lowered = lower(newer)
    >>> lowered.opset_import[0].version, [each.name for each in lowered.graph.node[0].attribute]
    (17, ['keepdims', 'axes'])
    """
    import onnx
    import onnx.inliner

    versions = {each.domain: each.version for each in model.opset_import}
    if versions.get("", versions.get("ai.onnx", 0)) <= OPSET:
        return model
    lowered = onnx.ModelProto()
    lowered.CopyFrom(_spell_out(onnx.inliner.inline_local_functions(model)))
    constants = _Constants(lowered)
    nodes = [each for node in lowered.graph.node for each in _rewrite(node, constants)]
    del lowered.graph.node[:]
    lowered.graph.node.extend(nodes)
    for each in lowered.opset_import:
        if each.domain in ("", "ai.onnx"):
            each.version = OPSET
    onnx.checker.check_model(lowered)
    return lowered


def _spell_out(model: Any) -> Any:
    """With operators that onnx2torch does not know replaced by their definition in ONNX, where there is one."""
    import onnx.inliner

    for _ in range(_DEEPEST):
        unknown = sorted({node.op_type for node in model.graph.node if not node.domain and not _is_known(node.op_type)})
        count = len(model.graph.node)
        if unknown:
            chosen = [("", name) for name in unknown]
            model = onnx.inliner.inline_selected_functions(model, chosen, inline_schema_functions=True)
        if len(model.graph.node) == count:
            break
    return model


def _is_known(operator: str) -> bool:
    prepare_torchvision()  # onnx2torch imports it
    converters = require("onnx2torch.node_converters", extra="onnx", purpose="onnx:FILE")
    try:
        converters.get_converter(operation_type=operator, version=OPSET)
    except NotImplementedError:
        return False
    return True


class _Constants:
    """What the values in a graph are, as far as the file says: numbers, and sizes."""

    def __init__(self, model: Any) -> None:
        import onnx

        self._stored = {each.name: each for each in model.graph.initializer}
        for node in model.graph.node:
            if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
                self._stored[node.output[0]] = node.attribute[0].t
        inferred = onnx.shape_inference.infer_shapes(model).graph
        self._types = {each.name: each.type for each in (*inferred.value_info, *inferred.input, *inferred.output)}

    def read(self, name: str) -> list[int] | None:
        """A list of whole numbers that is stored in the file; None if it is computed."""
        from onnx import numpy_helper

        found = self._stored.get(name)
        return None if found is None else [int(each) for each in numpy_helper.to_array(found).reshape(-1)]

    def size(self, name: str, axis: int) -> int | None:
        """The size of a value along an axis, if it is fixed."""
        dims = self._types[name].tensor_type.shape.dim if name in self._types else ()
        return (dims[axis].dim_value or None) if -len(dims) <= axis < len(dims) else None


def _rewrite(node: Any, constants: _Constants) -> Iterable[Any]:
    """A node in the words of the older set: one node, or several."""
    if node.domain not in ("", "ai.onnx"):
        return [node]
    attributes = {each.name: each for each in node.attribute}
    for name, is_usual in _MEANS_NOTHING_NEW.get(node.op_type, {}).items():
        if name in attributes and is_usual(_value(attributes[name])):
            node.attribute.remove(attributes[name])
    if node.op_type in _REDUCTIONS:
        return [_lower_reduction(node, attributes, constants)]
    if node.op_type == "Reshape":
        _lower_reshape(node, attributes, constants)
    if node.op_type == "Split" and "num_outputs" in attributes:
        return _lower_split(node, attributes, constants)
    return [node]


def _value(attribute: Any) -> Any:
    from onnx import helper

    return helper.get_attribute_value(attribute)


def _lower_reduction(node: Any, attributes: Mapping[str, Any], constants: _Constants) -> Any:
    """Since set 18 the axes are an input."""
    from onnx import helper

    keeps = "noop_with_empty_axes" in attributes and bool(_value(attributes["noop_with_empty_axes"]))
    if "noop_with_empty_axes" in attributes:
        node.attribute.remove(attributes["noop_with_empty_axes"])
    axes = constants.read(node.input[1]) if len(node.input) == 2 and node.input[1] else []
    if axes is None:
        raise NotImplementedError(f"{node.op_type} over axes that are computed")
    if not axes and keeps:
        return helper.make_node("Identity", [node.input[0]], list(node.output), name=node.name)
    del node.input[1:]
    if axes:
        node.attribute.append(helper.make_attribute("axes", axes))
    return node


def _lower_reshape(node: Any, attributes: Mapping[str, Any], constants: _Constants) -> None:
    """`allowzero` matters for empty tensors only, which no classifier has."""
    if "allowzero" not in attributes:
        return
    if _value(attributes["allowzero"]) and 0 in (constants.read(node.input[1]) or ()):
        raise NotImplementedError("Reshape to a size of 0 (allowzero=1)")
    node.attribute.remove(attributes["allowzero"])


def _lower_split(node: Any, attributes: Mapping[str, Any], constants: _Constants) -> list[Any]:
    """Since set 18 a Split may say how many parts it makes; all are of one size but for the last."""
    import numpy as np
    from onnx import helper, numpy_helper

    axis = int(_value(attributes["axis"])) if "axis" in attributes else 0
    parts, whole = int(_value(attributes["num_outputs"])), constants.size(node.input[0], axis)
    if whole is None:
        raise NotImplementedError("Split into equal parts of a size that is not fixed")
    node.attribute.remove(attributes["num_outputs"])
    size = -(-whole // parts)
    sizes = np.array([size] * (parts - 1) + [whole - size * (parts - 1)], np.int64)
    name = f"{node.output[0]}_sizes"
    del node.input[1:]
    node.input.append(name)
    return [helper.make_node("Constant", [], [name], value=numpy_helper.from_array(sizes)), node]


class Slice(nn.Module):
    """ONNX's Slice, in place of onnx2torch's, which indexes by lists: torch has deprecated that.

    >>> import torch
    >>> Slice()(torch.arange(6), torch.tensor([-2]), torch.tensor([-(2**63) + 1]), None, torch.tensor([-2]))
    tensor([4, 2, 0])
    """

    def forward(
        self, x: Tensor, starts: Tensor, ends: Tensor, axes: Tensor | None = None, steps: Tensor | None = None
    ) -> Tensor:
        along = range(len(starts)) if axes is None else axes.tolist()
        strides = [1] * len(starts) if steps is None else steps.tolist()
        for start, end, axis, step in zip(starts.tolist(), ends.tolist(), along, strides, strict=True):
            chosen = range(x.shape[axis])[start:end:step]
            if step == 1:
                x = x.narrow(axis, chosen.start, len(chosen))
            else:
                x = x.index_select(axis, starts.new_tensor(list(chosen)))
        return x


def replace_slices(network: nn.Module) -> nn.Module:
    """A converted network with our own `Slice`."""
    for name, module in list(network.named_children()):
        if type(module).__name__ == "OnnxSlice":
            setattr(network, name, Slice())
    return network
