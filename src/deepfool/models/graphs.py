"""Networks stored as a graph in a file: ONNX (through onnx2torch) and torch.export programs.

Such a file contains its own preprocessing, or none; inputs are passed on unchanged.
"""

from __future__ import annotations

import ast
import hashlib
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from deepfool.errors import InputError, ModelError, require
from deepfool.models.building import Built
from deepfool.models.checkpoints import weights_only
from deepfool.models.opsets import lower, replace_slices
from deepfool.models.torchvision_operators import import_torchvision


class FixedBatch(nn.Module):
    """Run a network that was traced with a fixed batch size in batches of that size; the last one is padded.

    >>> def three_rows(x):
    ...     return x.view(3, 2).sum(1)
    >>> FixedBatch(three_rows, 3)(torch.ones(4, 2))
    tensor([2., 2., 2., 2.])
    """

    def __init__(self, network: Any, size: int) -> None:
        super().__init__()
        self.network = network
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        spare = -len(x) % self.size
        padded = torch.cat([x, x[-1:].expand(spare, *x.shape[1:])]) if spare else x
        return torch.cat([self.network(part) for part in torch.split(padded, self.size)])[: len(x)]


class FrozenMode(nn.Module):
    """A graph whose mode was fixed at export. torch refuses to switch it, so `eval()` does not reach it."""

    def __init__(self, graph: nn.Module) -> None:
        super().__init__()
        self.graph = graph
        self.training = False

    def forward(self, x: Tensor) -> Any:
        return self.graph(x)

    def train(self, mode: bool = True) -> FrozenMode:
        self.training = mode
        return self


def build_onnx(text: str, *, pretrained: bool = True) -> Built:
    """Build from an ONNX file with one input, whose first axis is the batch."""
    path = _existing(text, "an ONNX file")
    import_torchvision(extra="onnx", purpose="onnx:FILE")  # onnx2torch imports it
    onnx = require("onnx", extra="onnx", purpose="onnx:FILE")
    onnx2torch = require("onnx2torch", extra="onnx", purpose="onnx:FILE")
    try:
        graph = onnx.load(str(path), load_external_data=False)
        _find_weights(path, graph)
        onnx.load_external_data_for_model(graph, str(path.parent))
        onnx.checker.check_model(graph)
        network = replace_slices(onnx2torch.convert(lower(graph)))
    except ModelError:
        raise
    except NotImplementedError as error:
        raise ModelError(f"{path} uses an ONNX operator that onnx2torch does not know: {error}") from error
    except KeyError as error:  # a name that is not one of the stored weights
        raise ModelError(
            f"{path} computes the weight {error} instead of storing it, which onnx2torch does not support.",
            hint="fold the constants first, for example with onnxsim",
        ) from error
    except Exception as error:  # protobuf, checker and converter errors have no common base class
        raise ModelError(f"{path} could not be read as an ONNX network: {type(error).__name__}: {error}") from error
    batch, shape = _onnx_input(path, graph.graph)
    return _graph_built("onnx", path, network, batch, shape)


def _find_weights(path: Path, graph: Any) -> None:
    """torch's exporter writes the weights into a second file, which is easily left behind."""
    places = {
        each.value for tensor in graph.graph.initializer for each in tensor.external_data if each.key == "location"
    }
    for place in sorted(places):
        if not (path.parent / place).is_file():
            raise ModelError(
                f"{path} keeps its weights in the file {place}, which is missing.",
                hint=f"put it beside {path.name}, or export again with external_data=False.",
            )


def _onnx_input(path: Path, graph: Any) -> tuple[int | None, tuple[int, ...] | None]:
    weights = {tensor.name for tensor in graph.initializer}  # older files list weights as inputs too
    inputs = [value for value in graph.input if value.name not in weights]
    if len(inputs) != 1:
        names = ", ".join(value.name for value in inputs)
        raise ModelError(f"{path} was expected to take one input, it takes {len(inputs)} ({names}).")
    sizes = [axis.dim_value or None for axis in inputs[0].type.tensor_type.shape.dim]
    return _split_batch(sizes)


def build_export(text: str, *, pretrained: bool = True) -> Built:
    """Build from a program written by torch.export.save.

    A program is more like code than data. Anything in it that would be unpickled into an object, or that goes beyond
    torch's operators, is refused before torch opens the file.
    """
    path = _existing(text, "a .pt2 file written by torch.export.save")
    refuse_code(path)
    try:
        with weights_only():
            program = torch.export.load(path)
    except Exception as error:  # zip, json, schema and unpickling errors have no common base class
        raise ModelError(f"{path} could not be opened as a torch.export program: {error}") from error
    return build_program(program, path=path)


def build_program(program: torch.export.ExportedProgram, *, path: Path | None = None) -> Built:
    """Build from a program that is already in memory."""
    name = str(path or "the program")
    _refuse_training(name, program)
    inputs = program.graph_signature.user_inputs
    if len(inputs) != 1:
        raise ModelError(f"{name} was expected to take one input, it takes {len(inputs)}.")
    value = next(node.meta["val"] for node in program.graph.nodes if node.name == inputs[0])
    batch, shape = _split_batch([size if isinstance(size, int) else None for size in value.shape])
    return _graph_built("export", path, FrozenMode(program.module()), batch, shape, graph=str(program.graph))


def _refuse_training(name: str, program: torch.export.ExportedProgram) -> None:
    """Raise on active dropout or batch statistics, which would make every forward pass different."""
    switches = {"dropout": ("train", 2), "batch_norm": ("training", 5)}
    for node in program.graph.nodes:
        operator = getattr(getattr(node.target, "overloadpacket", None), "__name__", "")
        if operator in switches:
            keyword, place = switches[operator]
            mode = node.kwargs.get(keyword, node.args[place] if len(node.args) > place else False)
            if mode is True:
                raise ModelError(
                    f"{name} was exported in training mode ({operator} is active).",
                    hint="call model.eval() before torch.export.export",
                )


def _graph_built(
    kind: str, path: Path | None, network: nn.Module, batch: int | None, shape: tuple[int, ...] | None, graph: str = ""
) -> Built:
    content = path.read_bytes() if path is not None else graph.encode()
    return Built(
        module=network if batch is None else FixedBatch(network, batch),
        network=network,
        # The weights do not say what the graph does with them, so the hash of the file stands for the architecture.
        architecture=f"{kind}:{hashlib.sha256(content).hexdigest()}",
        input_shape=shape,
    )


def _split_batch(sizes: list[int | None]) -> tuple[int | None, tuple[int, ...] | None]:
    if not sizes:
        return None, None
    rest = [size for size in sizes[1:] if size is not None]
    return sizes[0], tuple(rest) if len(rest) == len(sizes) - 1 else None


def _existing(text: str, what: str) -> Path:
    path = Path(text).expanduser()
    if not path.is_file():
        raise InputError(f"{what[0].upper()}{what[1:]} was expected, but there is no file {text!r}.")
    return path


# What the expressions of a program may call: the arithmetic that torch uses for sizes.
_ARITHMETIC = {
    "Symbol", "Integer", "Float", "Rational", "Max", "Min", "Mod", "Pow", "Add", "Mul", "Abs", "Eq", "Ne", "Lt", "Le",
    "Gt", "Ge", "And", "Or", "Not", "floor", "ceiling", "sqrt", "max", "min",
}  # fmt: skip
_MEASURES = {"size", "stride", "storage_offset", "dim", "numel"}


def refuse_code(path: Path) -> None:
    """Raise if a .pt2 archive contains pickled objects, foreign functions, or expressions that are not arithmetic.

    torch evaluates the size expressions and guards in the file as Python, looks up node targets by name anywhere
    under `torch`, and unpickles custom constants. An untrusted file could run any code through these.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            documents = [json.loads(archive.read(name)) for name in names if name.endswith(".json")]
    except (zipfile.BadZipFile, ValueError, OSError) as error:
        raise ModelError(f"{path} could not be opened as a torch.export program: {error}") from error
    for document in documents:
        for key, value in _strings(document):
            if key == "target" and not value.startswith(("torch.ops.", "_operator.", "math.")):
                raise _refusal(path, f"a call of {value}")
            if key in {"expr_str", "guards_code"} and not _is_arithmetic(value):
                raise _refusal(path, f"the expression {value!r}")
            if key == "path_name" and not value.startswith(("weight_", "tensor_")):
                raise _refusal(path, f"the pickled object {value}")


def _refusal(path: Path, what: str) -> ModelError:
    return ModelError(
        f"{path} holds {what}, which could run code; it was not opened.",
        hint="export the plain network again, or load it in your own code as py:package.module:factory",
    )


def _strings(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """All strings in a JSON document, each with its key."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item, key)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _strings(item, name)


def _is_arithmetic(text: str) -> bool:
    """Whether an expression only measures tensors and computes with numbers.

    >>> _is_arithmetic("Symbol('s31', positive=True, integer=True)"), _is_arithmetic("L['x'].size()[0] <= 8*s1")
    (True, True)
    >>> _is_arithmetic("__import__('os').getcwd()"), _is_arithmetic("exec(chr(95))")
    (False, False)
    """
    try:
        nodes = list(ast.walk(ast.parse(text.strip(), mode="eval")))
    except (SyntaxError, ValueError):
        return False
    from torch.utils._sympy import functions  # sympy takes half a second to import

    arithmetic = _ARITHMETIC.union(functions.__all__)
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        if isinstance(node, (ast.Lambda, ast.NamedExpr, ast.comprehension, ast.JoinedStr, ast.Await, ast.Yield)):
            return False
        if isinstance(node, ast.Attribute) and (node.attr not in _MEASURES or id(node) not in called):
            return False
        if isinstance(node, ast.Call):
            if not isinstance(node.func, (ast.Name, ast.Attribute)):
                return False
            if isinstance(node.func, ast.Name) and node.func.id not in arithmetic:
                return False
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and not node.value.isidentifier():
            return False
    return True
