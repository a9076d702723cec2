"""Options shared by several commands."""

from __future__ import annotations

from typing import Any

import typer

RUN_CODE: Any = typer.Option(
    False, "--run-code", help="Run code named in the manifest (py: models, attacks); only for folders you trust."
)
