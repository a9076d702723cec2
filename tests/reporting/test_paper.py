"""The report on paper, through Chromium's own PDF: A4, a first page to sign, nothing cut off."""

import hashlib
import io
import json
import shutil

import pytest

from deepfool import Run
from deepfool.errors import DataError, InputError, RunError
from deepfool.reporting import printing
from deepfool.reporting.page import render_report, write_report
from deepfool.reporting.signoff import make_signoff
from deepfool.runs.audit.checklist import read_audit
from tests.calling import call
from tests.reporting.simulated import simulate
from tests.test_gates import STEADY, add_audit

A4 = (595, 842)
CRITERIA = """
title = "Digit reader, release 3"
by = "the safety team"
date = 2026-01-02
min_rho = 0.01
min_accuracy = "0.999@eps=9"
require_verified = true
"""
LIGATURES = str.maketrans({"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl"})
"""A font may join these letters, as in a hash with "ff"; the text is the same."""
HOSTILE = '<img src=x onerror="alert(1)">{{7*7}}'


def pages(pdf):
    """The text of each page, its lines joined."""
    pypdf = pytest.importorskip("pypdf")
    found = pypdf.PdfReader(io.BytesIO(pdf) if isinstance(pdf, bytes) else pdf)
    for page in found.pages:
        assert (round(page.mediabox.width), round(page.mediabox.height)) == A4
    return [" ".join(page.extract_text().translate(LIGATURES).split()) for page in found.pages]


@pytest.fixture(scope="module")
def signed(runs, tmp_path_factory):
    """A real run with criteria in its folder."""
    folder = tmp_path_factory.mktemp("paper") / "run"
    shutil.copytree(runs / "lenet", folder)
    (folder / "criteria.toml").write_text(CRITERIA)
    return folder


@pytest.fixture(scope="module")
def printed(signed, browser, tmp_path_factory):
    """The pages of it. The style sheet says A4; the browser is not told."""
    page = write_report([signed], tmp_path_factory.mktemp("page") / "report.html")
    context = browser.new_context(color_scheme="dark")
    seen = context.new_page()
    seen.goto(page.as_uri())
    seen.wait_for_selector("html[data-ready=true]")
    pdf = seen.pdf(prefer_css_page_size=True, print_background=True)
    context.close()
    return pages(pdf)


def test_the_first_page_can_be_signed(printed, signed):
    first, run = printed[0], Run(signed)
    for words in (
        "lenet-mnist on mnist-sample", "What was measured", "deepfool in ℓ2, no bounds", "60 of 60 samples",
        f"deepfool {run.identity['deepfool']}", "Criteria set beforehand: Digit reader, release 3",
        "by the safety team", "set on 2026-01-02", "Cautions", "The run was not audited.", "Limits",
        "an upper bound on the distance", "perturbed inputs may leave the range of valid inputs",
        run.identity["model"]["sha256"],
        run.identity["data"]["sha256"], "accepted with conditions", "name date signature",
    ):  # fmt: skip
        assert words in first, words
    assert f"page 1 of {len(printed)}" in first
    assert "≤ 0.1" in first, "what an attack finds is an upper bound"


def test_each_criterion_is_met_not_met_or_not_known(printed):
    first = printed[0]
    assert "Of 8 criteria: 6 met, 1 not met, 1 not known." in first
    assert "min-accuracy at least 0.999 within eps 9 the accuracy within l2 eps 9 is <= 0 not met" in first
    assert "these rows were not verified (deepfool verify run) not known" in first


def test_the_other_pages_hold_the_report(printed, signed):
    rest = " ".join(printed[1:])
    assert "What was measured" not in rest, "one page, no more"
    for head in ("How accuracy falls", "Class by class", "What decisions change into", "How it was measured"):
        assert head in rest
    assert "The criteria:" not in rest, "they are on the first page"
    assert "most fragile first" not in rest, "what can only be clicked is not printed"
    assert 3 <= len(printed) <= 9
    mark = hashlib.sha256((signed / "records.jsonl").read_bytes()).hexdigest()[:16]
    assert all(f"run {mark}" in page for page in printed), "every page says which run was signed"


def test_on_paper_nothing_sticks_out_or_overlaps(signed, watch, tmp_path):
    """As the browser lays it out for paper, at the width between the margins."""
    page = write_report([signed], tmp_path / "report.html")
    seen = watch(page, viewport={"width": 680, "height": 1000}).page
    seen.emulate_media(media="print")
    seen.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert seen.evaluate("document.documentElement.scrollWidth") <= 681
    for chart in seen.locator(".chart").all():
        box, drawn = chart.bounding_box(), chart.locator(".main-svg").first.bounding_box()
        assert drawn["height"] <= box["height"] + 1, "or it would lie over the table below"
        assert drawn["width"] <= 681
    assert seen.locator(".signoff").is_visible()
    assert seen.locator(".signoff").bounding_box()["height"] < 265 / 25.4 * 96, "it fits on a page"
    seen.emulate_media(media="screen")
    seen.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert not seen.locator(".signoff").is_visible()


def test_criteria_on_the_screen(signed, watch, tmp_path):
    seen = watch(write_report([signed], tmp_path / "report.html"))
    assert seen.complaints == []
    told = seen.page.locator("#criteria")
    assert "Of 8 criteria: 6 met, 1 not met, 1 not known." in told.inner_text()
    assert sorted(told.locator(".badge").all_inner_texts()) == ["met"] * 6 + ["not known", "not met"]


@pytest.mark.parametrize("width", [360, 1600])
def test_criteria_do_not_stick_out(signed, watch, tmp_path, width):
    seen = watch(write_report([signed], tmp_path / "page.html"), viewport={"width": width, "height": 800}).page
    assert seen.evaluate("document.documentElement.scrollWidth") == width


def test_without_criteria(tmp_path):
    folder = simulate(tmp_path / "run", 60, sessions=STEADY)
    text = render_report([Run(folder)])
    assert 'id="criteria"' not in text
    assert "None: there is no criteria.toml in the run folder" in text


def test_criteria_from_elsewhere(tmp_path):
    folder = simulate(tmp_path / "run", 60, sessions=STEADY)
    (tmp_path / "own.toml").write_text("min_rho = 99\ndate = 2026-02-01")
    call("report", folder, "--criteria", tmp_path / "own.toml")
    text = (folder / "report.html").read_text()
    assert "Of 6 criteria: 5 met, 1 not met." in text
    assert "after the measurement had begun" in text
    with pytest.raises(InputError, match="for a single run"):
        call("report", folder, folder, "--criteria", tmp_path / "own.toml")
    (folder / "criteria.toml").write_text("min_rho = ")
    with pytest.raises(DataError, match="cannot be read"):
        call("report", folder)


def test_a_run_with_failures_and_a_failed_audit(tmp_path):
    folder = add_audit(simulate(tmp_path / "run", 60, censored=4, sessions=STEADY), "pass", "caution", "fail")
    run = Run(folder)
    found = make_signoff(run, run.records(), read_audit(run), None)
    result = dict(found.result)
    assert result["ρ in ℓ2"].startswith("not known: 4 of 60 samples have no answer (among the others ≤ 0.1")
    assert result["audit"] == "FAILED: these numbers are not to be used as they are"
    assert found.cautions[0] == "Audit, fail: It is fail."
    assert "4 of 60 rows come with a caution." in found.cautions
    lost = Run(simulate(tmp_path / "lost", 30, censored=30))
    assert (
        dict(make_signoff(lost, lost.records(), None, None).result)["ρ in ℓ2"] == "not known: no sample has an answer"
    )
    render_report([lost])


def test_hostile_criteria_are_text(tmp_path, watch):
    folder = simulate(tmp_path / "run", 60, sessions=STEADY, model=f"py:{HOSTILE}")
    (folder / "criteria.toml").write_text(f"title = {json.dumps(HOSTILE)}\nby = {json.dumps(HOSTILE)}\nmin_rho = 0.1")
    seen = watch(write_report([folder]))
    assert seen.dialogs == seen.complaints == seen.requests == []
    assert HOSTILE in seen.page.locator("#criteria").inner_text()


def test_pdf(tmp_path, monkeypatch):
    if printing.find_chromium() is None:
        pytest.skip("there is no Chromium on this machine")
    folder = simulate(tmp_path / "run", 60, sessions=STEADY)
    done = call("report", folder, "--pdf", "--out", tmp_path / "new" / "page.html")
    assert done.stdout.split() == [str(tmp_path / "new" / "page.html"), str(tmp_path / "new" / "page.pdf")]
    first, *rest = pages(tmp_path / "new" / "page.pdf")
    assert "name date signature" in first
    assert rest


def test_no_chromium(tmp_path, monkeypatch):
    folder = simulate(tmp_path / "run", 60)
    monkeypatch.setenv("DEEPFOOL_CHROMIUM", str(tmp_path / "absent"))
    with pytest.raises(RunError, match=r"there is no Chromium at .*in any browser and print it"):
        call("report", folder, "--pdf")
    monkeypatch.delenv("DEEPFOOL_CHROMIUM")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(printing, "NAMES", ("chromium",))
    with pytest.raises(RunError, match="no Chromium on this machine"):
        call("report", folder, "--pdf")


def test_a_chromium_that_fails(tmp_path, monkeypatch):
    folder = simulate(tmp_path / "run", 60)
    (tmp_path / "broken").write_text("#!/bin/sh\necho no display >&2\nexit 3\n")
    (tmp_path / "broken").chmod(0o755)
    monkeypatch.setenv("DEEPFOOL_CHROMIUM", str(tmp_path / "broken"))
    with pytest.raises(RunError, match=r"could not print .*no display"):
        call("report", folder, "--pdf")
