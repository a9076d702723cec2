"""The page, in a real browser."""

import json
import re

import pytest

from deepfool import Run
from deepfool.errors import InputError, RunError
from deepfool.reporting.page import render_report, write_report
from deepfool.runs.labels import LabelWarning
from tests.reporting.simulated import simulate
from tests.waiting import PATIENCE

HOSTILE = '<img src=x onerror="alert(1)">&amp;</script><script>alert(2)</script>{{7*7}}%{y}$x$'


@pytest.fixture(scope="session")
def page(runs):
    return write_report([runs / "lenet"])


def test_it_opens_without_a_request_or_a_complaint(page, watch):
    seen = watch(page)
    assert seen.requests == []
    assert seen.complaints == []
    assert page.name == "report.html"
    assert seen.page.title().startswith("lenet-mnist on mnist-sample")


def test_the_order_of_the_page(page, watch):
    heads = watch(page).page.locator("h1, h2").all_inner_texts()
    assert heads == [
        "lenet-mnist on mnist-sample\ndeepfool, ℓ2, no bounds, max_iter 50", "How accuracy falls",
        "How large the perturbations are", "Class by class",
        "What decisions change into", "The most fragile and the most robust samples", "How it was measured",
    ]  # fmt: skip


def test_charts_are_drawn_and_tell_numbers(page, watch):
    seen = watch(page)
    assert seen.page.locator("#curve-0 .scatterlayer path.js-line").count() == 1 + 2, "and the two edges of its band"
    assert seen.page.locator("#histogram-0 .barlayer .point > path:not(.xerror)").count() >= 10
    assert seen.page.locator("#chart-classes-0 .barlayer .point > path:not(.xerror)").count() == 10
    seen.page.locator("#curve-0").scroll_into_view_if_needed()
    box = seen.page.locator("#curve-0 .nsewdrag").bounding_box()
    seen.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    seen.page.wait_for_selector("#curve-0 .hoverlayer .legend text")
    assert re.search(r"\d%", seen.page.locator("#curve-0 .hoverlayer").text_content())


def test_eps_as_a_length_or_relative_to_the_input(page, watch):
    seen = watch(page)
    title = seen.page.locator("#curve-0 .xtitle")
    assert "norm of the perturbation" in title.text_content()
    seen.page.locator("[data-axis='0']").select_option("relative")
    # Not by wait_for_function: it evaluates its text in the page, and the page's own policy forbids that.
    seen.page.locator("#curve-0 .xtitle", has_text="‖x‖").wait_for(timeout=1000 * PATIENCE)
    assert all(text.endswith("%") for text in seen.page.locator("#curve-0 .xtick text").all_text_contents())
    assert seen.complaints == []


def test_the_navigation_shows_that_it_scrolls(page, watch):
    seen = watch(page, viewport={"width": 360, "height": 800}).page
    assert seen.locator("nav").get_attribute("class") == "after"
    assert seen.locator(".more").is_visible()
    seen.evaluate("document.querySelector('nav').scrollTo(9999, 0)")
    seen.locator("nav.before").wait_for(timeout=1000 * PATIENCE)
    assert not seen.locator(".more").is_visible()
    assert not watch(page).page.locator(".more").is_visible(), "where all of it fits"


def test_the_verdict_is_that_of_the_run(page, runs, watch):
    from deepfool.metrics import rho_adv

    rho = rho_adv(Run(runs / "lenet").records(), "p")
    seen = watch(page).page
    assert seen.locator(".big").inner_text() == f"≤ {rho.value:.3f}"
    assert f"{rho.low:.3f} – {rho.high:.3f}" in seen.locator(".figure .small").inner_text()
    table = seen.locator(".references").inner_text()
    assert "the paper, Table 1" in table
    assert "0.20" in table
    assert "0.0019" in table
    assert seen.locator(".references tr.own").count() == 1


def test_the_matrix_adds_up(page, watch):
    cells = watch(page).page.locator(".matrix tbody td").all_inner_texts()
    assert len(cells) == 100
    assert sum(int(cell) for cell in cells if cell) == 60


def test_the_gallery_filters_and_sorts(page, watch):
    seen = watch(page).page
    gallery = seen.locator("#gallery-0")
    everything = gallery.locator(".cards li").count()
    assert everything == 24
    label = gallery.locator(".cards li").first.get_attribute("data-label")
    gallery.locator("[data-filter=label]").select_option(label)
    shown = gallery.locator(".cards li:visible")
    assert 0 < shown.count() < everything
    assert {item.get_attribute("data-label") for item in shown.all()} == {label}
    assert gallery.locator("output").inner_text() == f"{shown.count()} samples"
    gallery.locator("[data-filter=end]").select_option("robust")
    assert {item.get_attribute("data-end") for item in gallery.locator(".cards li:visible").all()} == {"robust"}
    gallery.locator("[data-filter=label]").select_option("")
    gallery.locator("[data-filter=end]").select_option("")
    gallery.locator("[data-sort]").select_option("-ratio")
    ratios = [float(item.get_attribute("data-ratio")) for item in gallery.locator(".cards li:visible").all()]
    assert len(ratios) == everything
    assert ratios == sorted(ratios, reverse=True)


def test_every_picture_has_pixels_and_words(page, watch):
    pictures = watch(page).page.evaluate(
        "[...document.querySelectorAll('.cards img')].map(i => [i.complete && i.naturalWidth, i.alt])"
    )
    assert len(pictures) % 3 == 0
    assert all(width == 28 for width, _ in pictures)
    assert all(words for _, words in pictures)


def test_an_image_enlarges_by_click_and_by_keyboard(page, watch):
    seen = watch(page).page
    cards = seen.locator("#gallery-0 .card")
    small = cards.first.locator("img").first.bounding_box()["width"]
    cards.first.click()
    dialog = seen.locator("dialog#large")
    assert dialog.is_visible()
    assert dialog.locator(".panels img").count() == 3
    assert dialog.locator(".panels img").first.bounding_box()["width"] > 2 * small
    first = dialog.locator(".facts").inner_text()
    seen.keyboard.press("ArrowRight")
    assert dialog.locator(".facts").inner_text() != first
    seen.keyboard.press("Escape")
    assert not dialog.is_visible()
    cards.nth(1).focus()
    seen.keyboard.press("Enter")
    assert dialog.is_visible()
    seen.keyboard.press("Escape")
    assert not dialog.is_visible()
    assert seen.evaluate("document.activeElement.className") == "card"


def test_light_and_dark(page, watch):
    seen = watch(page, color_scheme="dark").page
    background = "getComputedStyle(document.body).backgroundColor"
    dark = seen.evaluate(background)
    assert max(map(int, re.findall(r"\d+", dark))) < 60
    text = seen.evaluate("getComputedStyle(document.querySelector('#curve-0 .xtick text')).fill")
    assert min(map(int, re.findall(r"\d+", text)[:3])) > 180, "the charts follow"
    seen.locator("#theme").click()
    assert min(map(int, re.findall(r"\d+", seen.evaluate(background)))) > 200


@pytest.mark.parametrize("width", [360, 768, 1600])
def test_nothing_sticks_out(page, width, watch):
    seen = watch(page, viewport={"width": width, "height": 800}).page
    assert seen.evaluate("document.documentElement.scrollWidth") == width
    assert seen.locator("#curve-0 .main-svg").first.bounding_box()["width"] <= width


def test_it_prints(page, watch):
    seen = watch(page, color_scheme="dark")
    pdf = seen.page.pdf(print_background=True)
    assert pdf.startswith(b"%PDF")
    assert seen.complaints == []


def test_the_command_is_there_to_repeat_it(page, watch):
    command = watch(page).page.locator(".command code").inner_text()
    assert command == (
        "deepfool evaluate --model lenet-mnist --data mnist-sample --attack deepfool --p 2 --indices 0-59 "
        "--save-perturbations"
    )


def test_several_runs_make_a_comparison(runs, tmp_path, watch):
    path = write_report([runs / "lenet", runs / "fc", runs / "linf"], tmp_path / "all.html")
    seen = watch(path)
    assert seen.complaints == []
    assert seen.page.locator("h1").inner_text() == "Comparison of 3 runs"
    assert seen.page.locator("#curve-0 .scatterlayer path.js-line").count() == 2 * 3, "l2 runs share a chart"
    assert seen.page.locator("#curve-1 .scatterlayer path.js-line").count() == 3, "linf has one of its own"
    text = seen.page.locator("#verdict").inner_text()
    assert "Wilcoxon" in text
    assert "different norms" in text
    assert seen.page.locator(".gallery").count() == 3
    assert seen.page.locator("#gallery-1 .cards img").count() == 72, "also without stored perturbations"


def test_hostile_names_are_text(tmp_path, watch):
    names = [HOSTILE, *(f"class {i}" for i in range(1, 6))]
    data = {"spec": HOSTILE, "name": HOSTILE, "split": "test", "size": None, "classes": names}
    folder = simulate(tmp_path / "a<b>&'\"", 120, classes=6, model=f"py:{HOSTILE}", data=data)
    other = simulate(tmp_path / "other", 120, classes=6, model=f"py:{HOSTILE}", data=data, seed=1)
    for runs in ([folder], [folder, other]):
        seen = watch(write_report(runs, tmp_path / "page.html"))
        assert seen.dialogs == []
        assert seen.complaints == []
        assert seen.requests == []
        assert seen.page.locator("img[src=x]").count() == 0
        assert HOSTILE in seen.page.locator(".matrix").first.inner_text()
        assert HOSTILE in seen.page.locator("#gallery-0 select").first.inner_text()
        labels = seen.page.locator("#chart-classes-0 .ytick text").all_text_contents()
        assert any(label.startswith("<img src=x") for label in labels), labels
    legend = seen.page.locator("#curve-0 .legendtext").all_text_contents()
    assert all(label.startswith("py:<img src=x onerror=") for label in legend)


def test_hostile_file_names_are_text(tmp_path, watch):
    """From a real folder of images, through a real run."""
    import numpy as np
    from PIL import Image

    from deepfool import evaluate

    rng = np.random.default_rng(0)
    folder = tmp_path / "pictures"
    name = "<svg onload=alert(3)>&.png"
    for kind in ("<b>bold<", "plain"):
        (folder / kind).mkdir(parents=True)
        for i in range(2):
            Image.fromarray(rng.integers(0, 255, (40, 40, 3), dtype=np.uint8)).save(folder / kind / f"{i}{name}")
    with pytest.warns(LabelWarning, match="plain"):
        run = evaluate("lenet-cifar10", f"folder:{folder}", out=tmp_path / "run", size=32)
    seen = watch(write_report([run]))
    assert seen.dialogs == []
    assert seen.complaints == []
    assert name in seen.page.locator("#gallery-0").inner_text()
    assert seen.page.locator("#gallery-0 svg").count() == 0


def test_ten_thousand_samples(tmp_path, watch):
    """The size of the page does not grow with the number of samples, so it stays fast."""
    sizes, elements = [], []
    for count in (1_000, 10_000):
        path = write_report([simulate(tmp_path / str(count), count, censored=3 * count // 100)])
        seen = watch(path)
        assert seen.complaints == []
        sizes.append(path.stat().st_size)
        elements.append(seen.page.evaluate("document.querySelectorAll('*').length"))
    assert sizes[1] < 1.01 * sizes[0] < 2_000_000
    assert elements[1] < 1.05 * elements[0] < 5_000


def test_a_thousand_classes(tmp_path, watch):
    seen = watch(write_report([simulate(tmp_path / "run", 3000, classes=1000)]))
    assert seen.complaints == []
    assert seen.page.locator("#chart-classes-0 .barlayer .point > path:not(.xerror)").count() == 40
    assert seen.page.locator(".matrix").count() == 0
    assert "The most common changes" in seen.page.locator("#matrix-0").inner_text()


def test_censored_samples_are_told_and_drawn_as_a_band(tmp_path, watch):
    seen = watch(write_report([simulate(tmp_path / "run", 200, censored=40)])).page
    assert seen.locator(".big").inner_text() == "not known"
    assert "40 of 200 samples without an answer" in seen.locator(".figure .small").inner_text()
    assert "no perturbation for 40 of 200 samples" in seen.locator(".lead.warning").inner_text()
    assert seen.locator("#curve-0 .scatterlayer .fills path").count() >= 2, "of chance, and of what has no answer"
    assert "40 ran out of iterations" in seen.locator("#method").inner_text()


def test_runs_with_little_in_them(tmp_path, watch):
    empty = simulate(tmp_path / "empty", 5)
    (empty / "records.jsonl").write_text("")
    nothing = simulate(tmp_path / "nothing", 5, censored=5)
    one = simulate(tmp_path / "one", 1, classes=2)
    for folder in (empty, nothing, one):
        seen = watch(write_report([folder]))
        assert seen.complaints == []
    assert "Nothing has been measured yet" in (empty / "report.html").read_text()
    assert "no perturbation was found" in (nothing / "report.html").read_text()


def test_what_was_verified_is_shown(runs, tmp_path, watch):
    import shutil

    from typer.testing import CliRunner

    from deepfool.cli import app

    folder = tmp_path / "run"
    shutil.copytree(runs / "lenet", folder)
    assert "Not verified yet" in render_report([Run(folder)], gallery=False)
    assert CliRunner().invoke(app, ["verify", str(folder)]).exit_code == 0
    told = watch(write_report([folder], gallery=False)).page.locator("#method").inner_text()
    assert "the stored perturbations match the rows" in told
    assert "60 of 60" in told
    found = json.loads((folder / "verification.json").read_text())
    (folder / "verification.json").write_text(json.dumps(found | {"rows": 59}))
    assert "Not verified yet" in render_report([Run(folder)], gallery=False), "of other rows than these"


def test_errors(tmp_path):
    with pytest.raises(InputError, match="at least one run"):
        write_report([])
    with pytest.raises(RunError, match="is not a run"):
        write_report([tmp_path / "absent"])
    folder = simulate(tmp_path / "run", 20)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be written"):
        write_report([folder], tmp_path / "file" / "report.html")


def test_the_embedded_data_cannot_end_its_script(tmp_path):
    names = ["</script><script>alert(1)</script>", "<!--"]
    data = {"spec": None, "name": "d", "split": "test", "size": None, "classes": names}
    text = render_report([Run(simulate(tmp_path / "run", 50, classes=2, data=data))])
    assert "<script>alert" not in text
    embedded = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1]
    assert names[0] in {row["name"] for row in json.loads(embedded)["classes"][0]}
