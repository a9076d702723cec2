"""The settings of a layer: everything besides its class and its weights that decides what it does.

A setting is an attribute with a plain value: a number, a string, a dtype, an Enum, a function or a class (by name), or
a list, tuple, set, dict, dataclass or namespace of these. An unregistered tensor or an array is a setting if the
`__init__` of one of your own classes assigns it.

State is not a setting, and is left out:
    - what `forward`, or a method that it calls, assigns or changes in place: counters, caches, the last activation;
    - what is None or empty, because caches start that way;
    - other objects, and containers with other objects: modules, loggers, tensors inside lists;
    - the attributes of `nn.Module` itself (mode, hooks), and private attributes of library classes;
    - a library's notes on where the weights came from (`NOTES`).
Classes whose source cannot be read are assumed to have no state.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import enum
import functools
import hashlib
import inspect
import textwrap
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

LIBRARIES = ("accelerate", "onnx2torch", "timm", "torch", "torchvision", "transformers")
"""Packages whose private attributes are ignored; in your own classes private attributes count like any other."""

NOTES = ("architectures", "default_cfg", "dtype", "name_or_path", "pretrained_cfg", "transformers_version")
"""Attributes in which libraries record what was loaded from where."""

_DEEPEST = 8
"""Deepest nesting of containers at which a value still counts as plain."""

_OWN = frozenset(dir(nn.Module)) | frozenset(vars(nn.Module()))
"""The attributes of every module."""

_CHANGERS = frozenset(
    ("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft", "remove",
     "setdefault", "sort", "update")
)  # fmt: skip
"""Methods that change their object in place."""


def list_settings(module: nn.Module) -> Iterator[tuple[str, str]]:
    """The settings of one module (not of its sub-modules): names and texts that are the same in every process.

    >>> dict(list_settings(nn.LeakyReLU(0.1)))
    {'inplace': 'False', 'negative_slope': '0.1'}
    """
    kind: Any = type(module)
    state = _find_writes(kind, "forward")
    own = _is_own_class(kind)
    for name in sorted(vars(module)):
        value: Any = vars(module)[name]
        if name in _OWN or name in state or not (own or _is_public(name)):
            continue
        if isinstance(value, Tensor | np.ndarray):
            text = _hash(value) if own and name in _find_writes(kind, "__init__") else None
        elif isinstance(inspect.getattr_static(kind, name, None), functools.cached_property):
            text = None
        else:
            text = None if _is_empty(value) else _write(value)
        if text is not None:
            yield name, text


def _is_own_class(kind: type) -> bool:
    """Whether a class is the user's own: not from a library, and not derived from one other than torch."""
    first, *rest = (each.__module__.partition(".")[0] for each in kind.__mro__)
    return first not in LIBRARIES and not any(each in LIBRARIES and each != "torch" for each in rest)


def _is_public(name: str) -> bool:
    """Whether an attribute of a library class counts."""
    return not name.startswith("_") and name not in NOTES


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, list | tuple | set | frozenset | dict) and not value)


def _hash(value: Tensor | np.ndarray[Any, Any]) -> str | None:
    if isinstance(value, np.ndarray) and value.dtype.kind not in "biuf":
        return None
    tensor = torch.as_tensor(value)
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        return None
    content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"tensor {tuple(tensor.shape)} {tensor.dtype} {hashlib.sha256(content).hexdigest()}"


# Values as texts.


def _write(value: Any, depth: int = 0) -> str | None:
    """A plain value as text, without memory addresses; None if it is not plain."""
    if depth > _DEEPEST:
        return None
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, enum.Enum):
        return f"{_name(type(value))}.{value.name}"
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if isinstance(value, torch.dtype | range | slice):
        return str(value)
    if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType | types.MethodType):
        return _name(value)
    return _write_container(value, depth + 1)


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', None)}:{getattr(value, '__qualname__', '?')}"


def _write_container(value: Any, depth: int) -> str | None:
    if isinstance(value, functools.partial):
        return _join("partial", [value.func, list(value.args), value.keywords], depth)
    if isinstance(value, list | tuple):
        return _join("list" if isinstance(value, list) else "tuple", value, depth)
    if isinstance(value, set | frozenset):
        texts = [_write(each, depth) for each in value]
        return None if None in texts else f"set({', '.join(sorted(map(str, texts)))})"
    if isinstance(value, Mapping):
        return _write_mapping("dict", value, depth)
    if dataclasses.is_dataclass(value) or isinstance(value, types.SimpleNamespace | argparse.Namespace):
        return _write_object(value, depth)
    return None


def _write_object(value: Any, depth: int) -> str | None:
    names = vars(value) if hasattr(value, "__dict__") else [each.name for each in dataclasses.fields(value)]
    own = _is_own_class(type(value))
    pairs = {name: getattr(value, name) for name in names if own or _is_public(name)}
    return _write_mapping(_name(type(value)), pairs, depth)


def _join(kind: str, values: Any, depth: int) -> str | None:
    texts = [_write(each, depth) for each in values]
    return None if None in texts else f"{kind}({', '.join(map(str, texts))})"


def _write_mapping(kind: str, pairs: Mapping[Any, Any], depth: int) -> str | None:
    texts = [(_write(key, depth), _write(each, depth)) for key, each in pairs.items()]
    if any(key is None or each is None for key, each in texts):
        return None
    return f"{kind}({', '.join(f'{key}: {each}' for key, each in sorted(map(_as_texts, texts)))})"


def _as_texts(pair: tuple[Any, Any]) -> tuple[str, str]:
    return str(pair[0]), str(pair[1])


# What a method writes.


@functools.lru_cache(maxsize=4096)
def _find_writes(kind: type, method: str) -> frozenset[str]:
    """The attributes of `self` that a method, or a method it calls, assigns or changes in place."""
    found: set[str] = set()
    seen: set[str] = set()
    todo = [method]
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        for tree, own in _parse(kind, name):
            for node in ast.walk(tree):
                found.update(_written(node, own))
                if isinstance(node, ast.Attribute) and _is_name(node.value, own):
                    todo.append(node.attr)  # may be a method or a property; otherwise there is nothing to parse
    return frozenset(found)


def _parse(kind: type, method: str) -> Iterator[tuple[ast.AST, str]]:
    """The definitions of a method in a class and its bases, up to `nn.Module`, each with its name for `self`."""
    for each in kind.__mro__:
        function: Any = vars(each).get(method)
        if each in (nn.Module, object) or function is None:
            continue
        function = function.fget if isinstance(function, property) else function
        function = getattr(function, "func", function)  # a cached property
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body[0]
        except (OSError, TypeError, SyntaxError, ValueError, IndexError):
            continue
        if isinstance(tree, ast.FunctionDef) and (arguments := [*tree.args.posonlyargs, *tree.args.args]):
            yield tree, arguments[0].arg


def _written(node: ast.AST, own: str) -> Iterator[str]:
    if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
        yield from _attribute_below(node, own)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGERS:
        yield from _attribute_below(node.func.value, own)
    if isinstance(node, ast.Call) and _is_name(node.func, "setattr") and len(node.args) > 1:
        target, name = node.args[:2]
        if _is_name(target, own) and isinstance(name, ast.Constant):
            yield str(name.value)


def _attribute_below(node: ast.AST, own: str) -> Iterator[str]:
    """The attribute at the start of an expression such as self.cache[key] or self.cache."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute) and _is_name(node.value, own):
        yield node.attr


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
