"""Importing the frameworks that train networks."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from deepfool.errors import MissingExtraError, require
from deepfool.models.torchvision_operators import import_torchvision


def import_framework(name: str, *, extra: str, purpose: str) -> Any:
    """Import a framework, or raise an error that names the extra to install.

    Frameworks import torchvision where it is installed, and fail if its operators do not load; so it is imported first,
    in the way that copes with that.

    >>> import_framework("no_such_framework", extra="none", purpose="this example")
    Traceback (most recent call last):
    ...
    deepfool.errors.MissingExtraError: this example needs the package no_such_framework. ...
    """
    with suppress(MissingExtraError):
        import_torchvision(extra=extra, purpose=purpose)
    return require(name, extra=extra, purpose=purpose)
