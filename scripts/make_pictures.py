"""Make the pictures for the README and the docs (docs/images) from real runs with models that ship with the package.

    python scripts/make_pictures.py

Needs Chromium for the screenshots of the report and of the live page: DEEPFOOL_CHROMIUM, or `chromium` on the path.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, Playwright, sync_playwright

from deepfool.datasets import load

IMAGES = Path(__file__).parents[1] / "docs" / "images"
LARGEST = 300_000
SAMPLE = 7  # of mnist-sample
DRAWN = [(0.28, 0.3), (0.42, 0.2), (0.62, 0.22), (0.68, 0.36), (0.5, 0.48), (0.7, 0.6), (0.66, 0.78), (0.45, 0.84),
         (0.27, 0.74)]  # fmt: skip
"""A digit, as shares of the pad."""
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--no-first-run")  # fmt: skip


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        deepfool("evaluate", "--model", "lenet-mnist", "--data", "mnist-sample", "--out", here / "run")
        take_screenshots(here / "run" / "report.html")
        draw_digit(here)
    take_live()
    for picture in sorted(IMAGES.glob("*.png")):
        print(f"{picture.name}: {picture.stat().st_size} bytes, {Image.open(picture).size}")
        if picture.stat().st_size > LARGEST:
            sys.exit(f"{picture} is larger than {LARGEST} bytes")


def deepfool(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "deepfool", *map(str, words)], check=True)


def take_screenshots(report: Path) -> None:
    with sync_playwright() as playwright:
        browser = open_browser(playwright)
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


def take_live() -> None:
    """The live page after a digit was drawn on it."""
    words = ["live", "--model", "lenet-mnist", "--data", "mnist-sample", "--no-open", "--port", "0"]
    server = subprocess.Popen([sys.executable, "-m", "deepfool", *words], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        with sync_playwright() as playwright:
            browser = open_browser(playwright)
            page = browser.new_page(viewport={"width": 1440, "height": 1500}, color_scheme="light")
            page.goto(server.stdout.readline().strip())
            page.wait_for_selector("body[data-state=idle][data-done]")
            box = page.locator("#pad").bounding_box()
            assert box is not None
            side, places = box["width"], [(box["x"] + a * box["width"], box["y"] + b * box["width"]) for a, b in DRAWN]
            page.mouse.move(*places[0])
            page.mouse.down()
            for place in places[1:]:
                page.mouse.move(*place, steps=4)
            page.mouse.up()
            page.wait_for_selector("body[data-state=asking]")
            page.wait_for_selector("body[data-state=idle]")
            page.mouse.move(box["x"], box["y"] + 2 * side)  # out of the way
            page.wait_for_timeout(500)
            keep(page, "live.png", colours=None)  # fewer would give two classes the same dot
            browser.close()
    finally:
        server.terminate()
        server.wait()


def open_browser(playwright: Playwright) -> Browser:
    chromium = os.environ.get("DEEPFOOL_CHROMIUM") or shutil.which("chromium") or "chromium"
    return playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))


def keep(page: Page, name: str, clip: dict[str, float] | None = None, colours: int | None = 128) -> None:
    """A screenshot with fewer colours: it looks the same, in a quarter of the bytes. None: as it is."""
    path = IMAGES / name
    page.screenshot(path=str(path), **({"clip": clip} if clip else {}))
    seen = Image.open(path).convert("RGB")
    (seen if colours is None else seen.quantize(colours, dither=Image.Dither.NONE)).save(path, optimize=True)


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
