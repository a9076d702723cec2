"""Several runs on a page: in words, and the same sample side by side."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from deepfool import Run, evaluate
from deepfool.datasets import load
from deepfool.reporting.page import render_report, write_report
from deepfool.reporting.pairs import MOST, show_side_by_side
from deepfool.runs.collecting import choose_common
from deepfool.runs.gallery import GALLERY, IN_COMMON
from tests.cli.test_compare import other_model
from tests.test_gates import healthy, with_identity


def show(*folders):
    runs = [Run(folder) for folder in folders]
    return show_side_by_side(runs, [run.records() for run in runs])


def read(uri):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).convert("RGB"))


@pytest.fixture(scope="module")
def two(runs):
    return show(runs / "lenet", runs / "fc")


def test_two_models_show_the_same_samples(runs, two):
    data = load("mnist-sample")
    wanted = choose_common(np.arange(60), np.asarray(data.labels))
    assert len(wanted) == IN_COMMON
    assert set(wanted) <= {sample.index for sample in two.samples}
    assert len(two.samples) <= MOST
    for sample in two.samples:
        assert np.array_equal(read(sample.original)[..., 0], (data.batch([sample.index])[0, 0].numpy() * 255).round())
        assert [view.place for view in sample.views] == [0, 1]
        assert all(view.perturbed and view.perturbation and view.after for view in sample.views)


def test_they_are_magnified_alike(runs, two):
    """The fainter perturbation is the smaller one: by how much colour there is, for what the norms say."""
    records = [Run(runs / name).records() for name in ("lenet", "fc")]
    agree = 0
    for sample in two.samples:
        sizes = [each.r["l1"][each.index == sample.index].item() for each in records]
        ink = [(255 - read(view.perturbation).astype(float).min(2)).sum() for view in sample.views]
        agree += (sizes[0] > sizes[1]) == (ink[0] > ink[1])
    assert agree >= len(two.samples) - 1


def test_the_common_samples_do_not_depend_on_how_many_there_are():
    labels = np.arange(1000) % 10
    assert choose_common(np.arange(60), labels) == choose_common(np.arange(1000), labels) == list(range(8))
    assert choose_common(np.arange(5), labels) == list(range(5))
    assert choose_common(np.arange(1000), np.full(1000, -1)) == list(range(8))


def test_one_model_under_two_attacks(runs, tmp_path, watch):
    other = evaluate("lenet-mnist", "mnist-sample", "smallest", out=tmp_path / "smallest", limit=30, budget=20).folder
    seen = watch(write_report([runs / "lenet", other], tmp_path / "page.html"))
    assert seen.complaints == []
    said = seen.page.locator(".pair").inner_text()
    assert "Both runs measure the same model, by different attacks. B (smallest) finds perturbations that are" in said
    assert "The runs were not measured in the same way: attack deepfool and smallest." in said
    assert seen.page.locator("#beside .twin img").count() >= 4 * IN_COMMON
    assert seen.page.locator(".beside li").first.locator("figure").count() == 3


@pytest.mark.parametrize(("scheme", "width"), [("light", 1600), ("dark", 360)])
def test_side_by_side_on_all_screens(runs, tmp_path, watch, scheme, width):
    page = write_report([runs / "lenet", runs / "fc", runs / "linf"], tmp_path / "page.html")
    seen = watch(page, color_scheme=scheme, viewport={"width": width, "height": 800}).page
    assert seen.evaluate("document.documentElement.scrollWidth") == width
    assert seen.locator("#beside .key li").count() == 3
    for picture in seen.locator("#beside img").all()[:12]:
        box = picture.bounding_box()
        assert box["width"] >= 40
        assert box["x"] + box["width"] <= width
    pairs = seen.locator(".pair").all_inner_texts()
    assert "A (lenet-mnist) is more robust than B (fc500-mnist)" in pairs[0]
    assert "different norms" in pairs[1]


def test_letters_are_the_same_everywhere(runs, tmp_path):
    text = render_report([Run(runs / name) for name in ("fc", "fc", "lenet")])
    assert "C (lenet-mnist) is more robust than A (fc500-mnist)" in text
    assert "<b>C</b> lenet-mnist" in text


def test_refusals_and_samples_without_an_answer(tmp_path):
    one = healthy(tmp_path / "one")
    lost = other_model(healthy(tmp_path / "lost", censored=5))
    text = render_report([Run(one), Run(lost)])
    assert "Which is more robust is not known" in text
    assert "0 of A and 5 of B have no answer" in text
    assert "kept pictures of different samples, or of none" in text
    elsewhere = with_identity(healthy(tmp_path / "elsewhere"), data={"sha256": "ef" * 32, "samples": 60})
    assert show(one, elsewhere).note.startswith("The runs are on different data")


def test_a_run_without_the_sample_or_its_picture(runs, tmp_path):
    few = evaluate("fc500-mnist", "mnist-sample", out=tmp_path / "few", limit=3).folder
    found = show(runs / "lenet", runs / "fc", few)
    views = {sample.index: sample.views[2] for sample in found.samples}
    assert views[0].perturbed
    assert views[max(views)].facts == "not in this run"
    (few / GALLERY).write_bytes(b"damaged")
    assert not show(runs / "lenet", runs / "fc", few).samples[0].views[2].perturbed
