"""Every error this package raises on purpose.

    DeepFoolError
    ├── InputError          an argument that cannot be used (also a ValueError)
    ├── ModelError          a model whose output cannot be read as class scores, or that raised (also a RuntimeError)
    ├── DataError           a data set or file that is missing, broken, or not what it claims to be (also a ValueError)
    ├── SoundnessError      a proof and a perturbation that contradict each other: a bug (also an AssertionError)
    ├── RunError            a run folder that cannot be written, continued or read (also a RuntimeError)
    └── MissingExtraError   an optional package that is not installed (also an ImportError)

Messages say what was expected, what was given, and what to do about it.
"""

from __future__ import annotations

import importlib
from typing import Any


class DeepFoolError(Exception):
    """The root of the tree."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message} Hint: {hint}")
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors of worker processes are pickled; those with arguments of their own could not be rebuilt from them."""
        return _rebuild, (type(self), str(self), self.hint)


def _rebuild(kind: type[DeepFoolError], text: str, hint: str | None) -> DeepFoolError:
    error = kind.__new__(kind)
    DeepFoolError.__init__(error, text)
    error.hint = hint
    return error


class InputError(DeepFoolError, ValueError):
    """An argument that cannot be used."""


class ModelError(DeepFoolError, RuntimeError):
    """A model that cannot be read as a classifier, or that raised."""


class SoundnessError(DeepFoolError, AssertionError):
    """A certificate and a perturbation that contradict each other. One of them is wrong: a bug of this package."""


class DataError(DeepFoolError, ValueError):
    """Data that is missing, broken, or not what it claims to be; the message names the file."""


class RunError(DeepFoolError, RuntimeError):
    """A run folder that cannot be written, continued or read."""


class MissingExtraError(DeepFoolError, ImportError):
    """An optional package is needed.

    >>> raise MissingExtraError("ray", extra="ray", purpose="--engine ray")
    Traceback (most recent call last):
    ...
    deepfool.errors.MissingExtraError: --engine ray needs the package ray. Hint: pip install "deepfool[ray]"
    """

    def __init__(self, package: str, *, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package {package}.", hint=f'pip install "deepfool[{extra}]"')


def require(package: str, *, extra: str, purpose: str) -> Any:
    """Import an optional package, or raise an error that names the extra to install.

    >>> require("json", extra="json", purpose="reading").loads("[1]")
    [1]
    >>> require("no_such_package", extra="nothing", purpose="this example")
    Traceback (most recent call last):
    ...
    deepfool.errors.MissingExtraError: this example needs the package no_such_package. ...
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        # The missing package may be a dependency of this one; the extra installs that too.
        raise MissingExtraError(error.name or package, extra=extra, purpose=purpose) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out. On a GPU torch has its own error type; elsewhere only the message says so.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"))
    True
    """
    words = ("out of memory", "can't allocate memory", "not enough memory")
    text = str(error).lower()
    named = any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__)  # does not import torch
    return isinstance(error, MemoryError) or named or any(each in text for each in words)
