"""The day a user has Caffe's weights: from the file to a row of Table 1 and Figure 1, with random weights in it."""

import hashlib
import json

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from deepfool.cli import app
from deepfool.experiments import measuring, table1
from deepfool.models import caffemodel
from deepfool.models.googlenet import googlenet
from tests.models.test_caffemodel import arrays_of, write

FILE = "bvlc_googlenet.caffemodel"


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A file of GoogLeNet's true shapes in Caffe's older style, whose hash counts as the published one."""
    monkeypatch.setenv("DEEPFOOL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DEEPFOOL_MIRROR", raising=False)
    torch.manual_seed(1)
    source = googlenet()
    for layer in source.modules():  # random weights that tell images apart
        if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear):
            torch.nn.init.kaiming_normal_(layer.weight)
    file = write(tmp_path / "downloads.bin", arrays_of(source), "layers")
    monkeypatch.setitem(caffemodel.PUBLISHED_SHA1, FILE, hashlib.sha1(file.read_bytes()).hexdigest())
    return file


@pytest.fixture
def images(tmp_path):
    """A folder with one labelled image."""
    folder = tmp_path / "images/n01440764"
    folder.mkdir(parents=True)
    coarse = Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8))
    coarse.resize((256, 256), Image.Resampling.BICUBIC).save(folder / "one.png")
    return tmp_path / "images"


def run(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, (result.output, result.exception)
    return result


def test_from_the_file_to_the_tables(published, images, tmp_path, monkeypatch):
    result = run("models", "fetch", "googlenet", "--from", published)
    assert "fetched and checked" in result.stderr
    assert (tmp_path / "home/models" / FILE).read_bytes() == published.read_bytes()

    monkeypatch.setattr(table1, "CLASSIFIERS", ("googlenet",))
    monkeypatch.setattr(table1, "BESIDE", ())
    monkeypatch.setattr(measuring, "IMAGENET_CANDIDATES", 2)  # gradients of a network of this size take a while
    out = tmp_path / "out"
    run("reproduce", "--scale", "smoke", "--only", "table1", "--only", "figure1", "--images", images, "--out", out)
    (row,) = json.loads((out / "results/table1.json").read_text())["rows"]
    assert row["missing"] is None
    assert row["deepfool"]["fooled"] == 1
    assert 0 < row["deepfool"]["rho"] < 1
    assert row["fgsm"]["reached"], "random weights get the labels wrong already"
    assert row["space"] != "pixels in [0, 1]"
    figure = json.loads((out / "results/figure1.json").read_text())
    assert figure["network"] == "googlenet"
    assert figure["examples"]
    assert (out / "figures/figure1.png").stat().st_size > 10_000
    page = (out / "reproduction.html").read_text()
    assert "GoogLeNet (ILSVRC2012)" in page
    assert str(tmp_path) not in page


def test_another_file_is_refused(published, tmp_path):
    (tmp_path / "other.bin").write_bytes(published.read_bytes()[:-1] + b"\x00")
    result = CliRunner().invoke(app, ["models", "fetch", "googlenet", "--from", str(tmp_path / "other.bin")])
    assert "wrong hash" in str(result.exception)
    assert not (tmp_path / "home/models" / FILE).exists()
    result = CliRunner().invoke(app, ["models", "fetch", "googlenet", "--from", str(tmp_path / "none.bin")])
    assert "there is no file" in str(result.exception)
