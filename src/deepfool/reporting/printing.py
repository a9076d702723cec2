"""The page on paper: a PDF by the Chromium of the system. Nothing else prints what a browser shows as it is shown."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from deepfool.errors import RunError

NAMES = (
    "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge", "msedge",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)  # fmt: skip
CHOICE = "DEEPFOOL_CHROMIUM"
"""The environment variable that names another one."""
PATIENCE = 120
"""Seconds. A page of 1.4 MB takes two or three."""


def find_chromium() -> str | None:
    """The Chromium of this machine, or None."""
    chosen = os.environ.get(CHOICE)
    return next(filter(None, map(shutil.which, (chosen,) if chosen else NAMES)), None)


def print_page(page: Path, out: Path) -> Path:
    """Print a report to a PDF of A4 pages; an error says what to do if there is no Chromium."""
    program = find_chromium()
    if program is None:
        chosen = os.environ.get(CHOICE)
        raise RunError(
            f"there is no Chromium at {chosen}." if chosen else "there is no Chromium on this machine to make a PDF.",
            hint=f"open {page} in any browser and print it, or install Chromium, or name one in {CHOICE}.",
        )
    with tempfile.TemporaryDirectory(prefix="deepfool-pdf-") as here:
        made = Path(here) / "page.pdf"
        words = [
            program, "--headless=new", "--disable-gpu", "--no-first-run", "--disable-extensions",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            f"--user-data-dir={here}/profile", "--no-pdf-header-footer", "--virtual-time-budget=20000",
            f"--print-to-pdf={made}", page.resolve().as_uri(),
        ]  # fmt: skip
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            words.insert(1, "--no-sandbox")  # Chromium refuses to run as root in its sandbox
        try:
            done = subprocess.run(words, capture_output=True, timeout=PATIENCE)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise RunError(f"{program} could not print {page}: {error}.") from error
        if not made.exists():
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise RunError(f"{program} could not print {page}: {said[-1] if said else f'exit code {done.returncode}'}.")
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(made, out)
        except OSError as error:
            raise RunError(f"{out} cannot be written: {error.strerror or error}.") from error
    return out
