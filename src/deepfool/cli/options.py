"""Options that several commands share."""

from __future__ import annotations

from typing import Any

import typer

RUN_CODE: Any = typer.Option(
    False, "--run-code", help="Run code that the manifest names (py: models, attacks); only for folders you trust."
)
