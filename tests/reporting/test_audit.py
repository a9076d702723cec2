"""What the page says of an audit."""

import json
import re

import pytest

from deepfool import Run
from deepfool.reporting.page import render_report, write_report
from tests.reporting.simulated import simulate

HOSTILE = '<img src=x onerror="alert(1)">{{7*7}}'


def add_audit(folder, *verdicts, sentence="The norms are 1.4 times the smallest known."):
    checks = [
        {"name": f"check {i}", "verdict": verdict, "sentence": sentence, "number": 1.4}
        for i, verdict in enumerate(verdicts)
    ]
    run = Run(folder)
    about = {"model": run.identity["model"]["sha256"], "rows": run.count, "samples": [1, 2], "checks": checks}
    (folder / "audit.json").write_text(json.dumps(about))
    return folder


@pytest.mark.parametrize(
    ("verdicts", "words"),
    [
        (("pass", "pass"), "2 checks on 2 samples: nothing speaks against the numbers."),
        (("pass", "caution"), "1 caution. The true distances may be smaller than this page says."),
        (("pass", "caution", "fail"), "1 failure and 1 caution. Do not use the numbers on this page as they are."),
    ],
)
def test_the_checklist_is_at_the_top(tmp_path, watch, verdicts, words):
    folder = add_audit(simulate(tmp_path / "run", 60), *verdicts)
    seen = watch(write_report([folder]))
    assert seen.complaints == []
    told = seen.page.locator("#verdict .audit")
    assert words in told.inner_text()
    assert told.locator(".badge").all_inner_texts() == list(verdicts)
    assert "1.4 times the smallest known" in told.inner_text()
    top = told.bounding_box()["y"]
    assert top < seen.page.locator("#curve").bounding_box()["y"]


@pytest.mark.parametrize("width", [360, 768, 1600])
def test_nothing_sticks_out(tmp_path, watch, width):
    folder = add_audit(simulate(tmp_path / "run", 60), "pass", "caution", "fail", sentence="word " * 60 + "w" * 200)
    seen = watch(write_report([folder]), viewport={"width": width, "height": 800}).page
    assert seen.evaluate("document.documentElement.scrollWidth") == width
    for line in seen.locator(".checks li").all():
        box = line.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_words_can_be_read(tmp_path, watch, scheme):
    """The contrast of each badge, as WCAG counts it."""
    folder = add_audit(simulate(tmp_path / "run", 60), "pass", "caution", "fail")
    seen = watch(write_report([folder]), color_scheme=scheme).page

    def light(colour):
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05

    for badge in seen.locator(".badge").all():
        text, ground = badge.evaluate("b => [getComputedStyle(b).color, getComputedStyle(b).backgroundColor]")
        contrast = max(light(text), light(ground)) / min(light(text), light(ground))
        assert contrast > 4.5, (text, ground)


def test_several_runs_have_their_own(tmp_path, watch):
    one = add_audit(simulate(tmp_path / "one", 60), "pass")
    two = add_audit(simulate(tmp_path / "two", 60, seed=1), "caution")
    three = simulate(tmp_path / "three", 60, seed=2)
    seen = watch(write_report([one, two, three], tmp_path / "page.html")).page
    assert seen.locator(".audit").count() == 2
    assert seen.locator(".audit details[open]").count() == 1, "what passed is folded away"
    assert "not audited" in seen.locator("#verdict").inner_text()


def test_hostile_words_are_text(tmp_path, watch):
    folder = add_audit(simulate(tmp_path / "run", 60), "caution", sentence=HOSTILE)
    seen = watch(write_report([folder]))
    assert seen.dialogs == seen.complaints == seen.requests == []
    assert HOSTILE in seen.page.locator(".audit").inner_text()


def test_without_an_audit_the_page_says_how_to_get_one(tmp_path):
    folder = simulate(tmp_path / "run", 60)
    assert "<code>deepfool audit run</code>" in render_report([Run(folder)])
    add_audit(folder, "pass")
    assert "Can these numbers be trusted?" in render_report([Run(folder)])
    about = json.loads((folder / "audit.json").read_text())
    (folder / "audit.json").write_text(json.dumps(about | {"rows": 59}))
    assert "Not audited" in render_report([Run(folder)]), "of other rows than these"
