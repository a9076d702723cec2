"""`deepfool universal` as a user runs it, and its page."""

import json
import subprocess
import sys

import pytest
import torch

from deepfool import Universal, universal
from deepfool.reporting.universals import render_universal, write_universal_report
from tests import nets
from tests.calling import call

WORDS = (
    "universal", "--model", "lenet-cifar10", "--data", "cifar10-sample", "--xi", "10/255", "--bounds", "0,1",
    "--used", "30", "--held-out", "40", "--epochs", "2", "--curve", "20/255", "--counts", "10", "--transfer",
    "nin-cifar10",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("universal")
    done = subprocess.run(
        [sys.executable, "-m", "deepfool", *WORDS, "--out", "v", "--json"], cwd=place, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (place / "told.json").write_text(done.stdout)
    (place / "said.txt").write_text(done.stderr)
    return place


def test_the_command(folder):
    told, said = json.loads((folder / "told.json").read_text()), (folder / "said.txt").read_text()
    assert told["rate"]["count"] == 40
    assert [each["xi"] for each in told["curve"]] == pytest.approx([10 / 255, 20 / 255])
    assert [each["images"] for each in told["counts"]] == [10]
    assert [each["model"] for each in told["transfer"]] == ["nin-cifar10"]
    assert "finding v" in said
    assert "report.html" in said
    found = Universal.read(folder / "v")
    assert found.figures()["rate"] == told["rate"]
    assert {each.name for each in (folder / "v").iterdir()} >= {"v.npy", "v.png", "report.html", "manifest.json"}


def test_the_command_resumes_and_refuses(folder):
    again = call(*WORDS, "--out", folder / "v", "--no-report")
    assert "finding v" not in again.stderr
    assert "other xi" in again.stdout
    from deepfool.errors import RunError

    with pytest.raises(RunError, match="seed: 0 in the folder, 1 now"):
        call(*WORDS, "--out", folder / "v", "--seed", "1")


def test_the_report_command(folder):
    written = call("report", folder / "v", "-o", folder / "page.html").stdout.strip()
    assert written.endswith("page.html")
    assert "Universal perturbation" in (folder / "page.html").read_text()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page(folder, watch, width, scheme):
    seen = watch(folder / "v" / "report.html", viewport={"width": width, "height": 900}, color_scheme=scheme)
    page, told = seen.page, json.loads((folder / "told.json").read_text())
    assert seen.requests == seen.complaints == seen.dialogs == []
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.locator(".big").inner_text().startswith(f"{100 * told['rate']['value']:.3g}")
    assert page.locator("#v figcaption").inner_text().startswith("v, magnified 25.5 times")
    for section in ("xi", "images", "transfer", "labels", "method"):
        assert page.locator(f"#{section}").is_visible()
    pictures = page.evaluate("[...document.images].map((each) => each.naturalWidth)")
    assert len(pictures) == 13
    assert all(each == 32 for each in pictures)
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != colour


def test_names_are_escaped_and_features_have_no_pictures(tmp_path):
    found = universal(
        nets.small(), nets.points(30), xi=0.2, epochs=1, transfer={"<script>alert(1)</script>": nets.kinked()}
    )
    page = render_universal(found)
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
    assert 'id="v"' not in page
    assert write_universal_report(found, tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert "fooled, images not used" in found._repr_html_()


def test_a_targeted_page_says_so():
    found = universal(nets.small(), nets.points(60), xi=0.5, epochs=5, target=2)
    page = render_universal(found)
    assert "changes the decision to 2" in page
    assert "do not count" in page
    assert found.rate.count == int((found.label != 2).sum())


def test_a_mask_from_a_file(tmp_path):
    import numpy as np

    np.savez(tmp_path / "d.npz", x=torch.rand(30, 6).numpy(), y=np.zeros(30, int))
    np.save(tmp_path / "mask.npy", np.array([1, 0, 0, 0, 0, 1]))
    call(
        "universal", "--model", "py:tests.nets:small", "--data", f"npz:{tmp_path / 'd.npz'}", "--xi", "5%", "--p", "2",
        "--mask", tmp_path / "mask.npy", "--epochs", "2", "--out", tmp_path / "v", "--no-report", "--quiet",
    )  # fmt: skip
    v = Universal.read(tmp_path / "v").v
    assert (v != 0).tolist() == [True, False, False, False, False, True]


def test_a_stopped_command_says_how_to_go_on(tmp_path, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("deepfool.universals.universal.universal", stop)
    said = call(*WORDS, "--out", tmp_path / "v", code=130)
    assert "run the same command to resume" in said.stderr
