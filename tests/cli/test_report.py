"""`report`, `attack`, `table` and `figure` from the command line."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from deepfool.datasets import load
from deepfool.errors import DataError, InputError, RunError
from deepfool.models.sources import resolve
from deepfool.reporting import picture
from deepfool.reporting.single import classify, read_back
from tests.cli.test_evaluate import call

COMMON = ("evaluate", "--model", "fc500-mnist", "--data", "mnist-sample", "--limit", 20)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    call(*COMMON, "--out", folder, "-q")
    return folder


@pytest.fixture
def digit(tmp_path):
    x = load("mnist-sample").batch([3])[0, 0].numpy()
    Image.fromarray((x * 255).round().astype(np.uint8)).save(tmp_path / "digit.png")
    return tmp_path / "digit.png"


def test_evaluate_leaves_a_report(run, tmp_path):
    text = (run / "report.html").read_text()
    assert "fc500-mnist on mnist-sample" in text
    assert "data:image/png" in text
    assert f"report: {tmp_path / 'a' / 'report.html'}" in call(*COMMON, "--out", tmp_path / "a").stderr
    call(*COMMON, "--out", tmp_path / "b", "--no-report", "-q")
    assert not (tmp_path / "b" / "report.html").exists()
    assert (tmp_path / "b" / "gallery.safetensors").read_bytes() == (run / "gallery.safetensors").read_bytes()


def test_a_report_that_cannot_be_written_does_not_fail_the_run(tmp_path):
    folder = tmp_path / "run"
    call(*COMMON, "--out", folder, "--no-report", "-q")
    (folder / "report.html").mkdir()
    done = call(*COMMON, "--out", folder)
    assert "no report: " in done.stderr


def test_report(run, tmp_path):
    done = call("report", run, "-o", tmp_path / "new" / "page.html", "--no-gallery")
    assert done.stdout.strip() == str(tmp_path / "new" / "page.html")
    assert "--no-gallery" in (tmp_path / "new" / "page.html").read_text()
    assert call("report", run, run).stdout.strip() == str(run / "report.html")
    with pytest.raises(RunError, match="is not a run"):
        call("report", tmp_path)


def test_report_after_the_model_is_gone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_net.py").write_text("from deepfool.models.sources import resolve\n"
                                         "def make():\n    return resolve('fc500-mnist').module\n")  # fmt: skip
    call(
        "evaluate", "--model", "py:own_net:make", "--data", "mnist-sample", "--limit", 20, "--out", "run", "--no-report"
    )
    (tmp_path / "own_net.py").unlink()
    sys.modules.pop("own_net")
    call("report", "run")
    assert Path("run/report.html").read_text().count("data:image/png") == 60
    assert "own_net" not in sys.modules, "a report runs no code of others"


def test_table_and_figure(run, tmp_path):
    assert call("table", run, run).stdout.count("fc500-mnist") == 2
    assert call("table", run, "--format", "csv").stdout.startswith("model,data,attack")
    assert r"\begin{tabular}" in call("table", run, "--format", "latex").stdout
    with pytest.raises(InputError, match="markdown, csv, latex"):
        call("table", run, "--format", "html")
    for kind in ("curve", "histogram", "classes"):
        call("figure", run, kind, "-o", tmp_path / f"{kind}.pdf")
        assert (tmp_path / f"{kind}.pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(InputError, match="curve, histogram, classes"):
        call("figure", run, "pie", "-o", tmp_path / "pie.pdf")


def test_attack_writes_an_image_that_fools(digit, tmp_path):
    done = call("attack", digit, "--model", "lenet-mnist", "-o", tmp_path / "out.png")
    source = resolve("lenet-mnist")
    assert classify(source.module, read_back(digit)) == 3
    written = classify(source.module, read_back(tmp_path / "out.png"))
    assert written != 3
    assert f"after rounding to 8 bits still {written}" in done.stderr
    assert "rho 0." in done.stdout
    with Image.open(tmp_path / "out-panels.png") as panels:
        assert panels.width > 3 * 300


def test_attack_writes_its_pictures_by_default(digit):
    """Into the current folder, named after the image and the attack."""
    done = call("attack", digit, "--model", "lenet-mnist", "--attack", "smallest", "--knob", "budget=30")
    written = Path(f"{Path(digit).stem}-smallest.png")
    assert classify(resolve("lenet-mnist").module, read_back(written)) != 3
    assert str(written) in done.stderr
    assert written.with_name(f"{written.stem}-panels.png").exists()
    written.unlink()
    for words in (("--no-pictures",), ("--json",)):
        call("attack", digit, "--model", "lenet-mnist", "--attack", "smallest", *words)
        assert not written.exists()


def test_compared_attacks_are_magnified_alike():
    """Twice the perturbation looks twice as strong, and the caption of both rows has the same factor."""
    x = np.full((1, 4, 4), 0.5)
    r = np.full((1, 4, 4), 0.1)
    alone, both = draw(x, [r]), draw(x, [r, 2 * r])
    height = alone.height - picture.GAP
    place = (picture.GAP * 3 + picture.SIDE * 2 + picture.SIDE // 2, picture.GAP + picture.SIDE // 2)
    weak, strong = both.getpixel(place), both.getpixel((place[0], place[1] + height))
    assert strong == alone.getpixel(place), "the largest fills the range"
    assert weak != strong
    assert picture.choose_factor([r, 2 * r]) == pytest.approx(5)


def draw(x, perturbations):
    return picture.draw_panels([picture.Panels("deepfool", x, r, "7", "9", "16.8 %") for r in perturbations])


@pytest.mark.parametrize("attack", ["deepfool", "smallest"])
def test_a_threshold_holds_for_the_image_that_is_written(tmp_path, attack):
    """The rounded image, the file read back and the compared attack all use the same threshold."""
    Image.fromarray(np.full((4, 4), 100, np.uint8)).save(tmp_path / "grey.png")  # 0.39: dark at 0.5, bright at 0
    words = ("attack", tmp_path / "grey.png", "--model", "py:tests.nets:brightness", "--grey", "--attack", attack)
    done = call(*words, "--knob", "threshold=0.5", "-o", tmp_path / "out.png", "--compare", "fgsm", "--json")
    rows = json.loads(done.stdout)["attacks"]
    assert [(row["label"], row["adv_label"]) for row in rows] == [(0, 1), (0, 1)]
    assert [row["before"][0]["label"] for row in rows] == [0, 0]
    written = read_back(tmp_path / "out.png")
    assert float(written.mean()) > 0.5
    assert "after rounding to 8 bits still class 1" in done.stderr


@pytest.mark.parametrize("threshold", ["nan", "inf", "high", "true", "[1]"])
def test_a_threshold_that_is_no_number_is_refused(digit, threshold):
    with pytest.raises(InputError, match="threshold must be a finite number"):
        call("attack", digit, "--model", "lenet-mnist", "--knob", f"threshold={threshold}")


def test_attack_as_json(digit):
    found = json.loads(call("attack", digit, "--model", "lenet-mnist", "--p", "inf", "--json").stdout)
    (row,) = found["attacks"]
    assert row["fooled"]
    assert row["p"] == "inf"
    assert row["before"][0]["label"] == 3 == row["label"]
    assert row["after"][0]["label"] == row["adv_label"] != 3
    assert abs(sum(each["probability"] for each in row["before"]) - 1) < 0.01


def test_attack_with_another_attack_beside_it(digit, tmp_path):
    def taller(*words):
        call("attack", digit, "--model", "fc500-mnist", "--picture", tmp_path / "p.png", *words)
        with Image.open(tmp_path / "p.png") as picture:
            return picture.height

    assert taller("--compare", "smallest") > 1.8 * taller()
    assert taller("--compare", "fgsm") > 1.8 * taller()


def test_fgsm_beside_deepfool_takes_the_smallest_step_that_fools(digit):
    done = call("attack", digit, "--model", "lenet-mnist", "--compare", "fgsm", "--json", "--bounds", "none")
    ours, fgsm = json.loads(done.stdout)["attacks"]
    assert ours["fooled"]
    assert fgsm["fooled"]
    assert fgsm["norm"] > 1.5 * ours["norm"], "both in l2"
    call("attack", digit, "--model", "lenet-mnist", "--attack", "fgsm", "--knob", "eps=0.0001", code=1)


def test_attack_brings_photographs_to_the_size_of_the_model(tmp_path):
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (90, 120, 3), dtype=np.uint8)).save(tmp_path / "a.jpg")
    for model in ("lenet-cifar10", "lenet-mnist"):
        call("attack", tmp_path / "a.jpg", "--model", model, "-o", tmp_path / f"{model}.png")
        side = resolve(model).input_shape[1]
        with Image.open(tmp_path / f"{model}.png") as image:
            assert image.size == (side, side)


def test_attack_that_fails_says_so(digit, tmp_path):
    done = call("attack", digit, "--model", "py:tests.nets:deaf", "--grey", "-o", tmp_path / "o.png", code=1)
    assert "did not change the decision" in done.stderr
    assert not (tmp_path / "o.png").exists()


def test_attack_refuses_what_it_cannot_do(digit, tmp_path):
    with pytest.raises(InputError, match="no attack called"):
        call("attack", digit, "--model", "lenet-mnist", "--compare", "nonesuch")
    with pytest.raises(InputError, match="other formats change pixels"):
        call("attack", digit, "--model", "lenet-mnist", "-o", tmp_path / "a.jpg")
    with pytest.raises(DataError, match="no such file"):
        call("attack", tmp_path / "absent.png", "--model", "lenet-mnist")
    (tmp_path / "broken.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match="cannot be read as an image"):
        call("attack", tmp_path / "broken.png", "--model", "lenet-mnist")


def test_attack_on_a_photograph(tmp_path):
    pytest.importorskip("efficientnet_lite_pytorch", reason="the ImageNet network is not installed")
    here = os.environ.get("DEEPFOOL_TEST_IMAGES") or Path(__file__).parents[3] / "shared/data/imagenet-100"
    photograph = next((p for s in ("*.JPEG", "*.jpg", "*.png") for p in sorted(Path(here).rglob(s))), None)
    if photograph is None:
        pytest.skip("no photographs: set DEEPFOOL_TEST_IMAGES to a folder of them")
    words = ("--model", "efficientnet-lite0", "--knob", "candidates=10", "-o", tmp_path / "a.png")
    done = call("attack", photograph, *words)
    assert "after rounding to 8 bits still" in done.stderr
