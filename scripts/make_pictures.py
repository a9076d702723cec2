"""Make the pictures for the README and the docs (docs/images) from real runs with models that ship with the package.

    python scripts/make_pictures.py

Needs Chromium for the screenshots of the report: DEEPFOOL_CHROMIUM, or `chromium` on the path.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from deepfool.datasets import load

IMAGES = Path(__file__).parents[1] / "docs" / "images"
LARGEST = 300_000
SAMPLE = 7  # of mnist-sample
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--no-first-run")  # fmt: skip


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        deepfool("evaluate", "--model", "lenet-mnist", "--data", "mnist-sample", "--out", here / "run")
        take_screenshots(here / "run" / "report.html")
        draw_digit(here)
    for picture in sorted(IMAGES.glob("*.png")):
        print(f"{picture.name}: {picture.stat().st_size} bytes, {Image.open(picture).size}")
        if picture.stat().st_size > LARGEST:
            sys.exit(f"{picture} is larger than {LARGEST} bytes")


def deepfool(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "deepfool", *map(str, words)], check=True)


def take_screenshots(report: Path) -> None:
    with sync_playwright() as playwright:
        chromium = os.environ.get("DEEPFOOL_CHROMIUM") or shutil.which("chromium") or "chromium"
        browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport={"width": 1100, "height": 1060}, color_scheme=scheme)
            page.goto(report.resolve().as_uri())
            page.wait_for_timeout(1500)  # the charts draw themselves
            keep(page, f"report-{scheme}.png")
            if scheme == "light":
                for section, height in (("curve", 500), ("gallery-0", 640)):
                    page.evaluate("name => document.getElementById(name).scrollIntoView()", section)
                    page.wait_for_timeout(500)
                    clip = {"x": 0, "y": 50, "width": 1100, "height": height}
                    keep(page, f"{section.removesuffix('-0')}.png", clip)
        browser.close()


def keep(page: Page, name: str, clip: dict[str, float] | None = None) -> None:
    """A screenshot with fewer colours: it looks the same, in a quarter of the bytes."""
    path = IMAGES / name
    page.screenshot(path=str(path), **({"clip": clip} if clip else {}))
    Image.open(path).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)


def draw_digit(here: Path) -> None:
    """Run `deepfool attack` on one shipped digit, with FGSM for comparison."""
    pixels = load("mnist-sample").images()[SAMPLE, 0].numpy()
    Image.fromarray(pixels).save(here / "digit.png")
    deepfool(
        "attack", here / "digit.png", "--model", "lenet-mnist", "--compare", "fgsm",
        "-o", here / "fooled.png", "--picture", IMAGES / "digit.png",
    )  # fmt: skip


if __name__ == "__main__":
    main()
