"""What a notebook shows of the result of an attack."""

import re

import pytest
import torch
from torch import nn

from deepfool import Adversarial, deepfool, models
from deepfool.attacks.shared.showing import MOST_PICTURES, MOST_ROWS
from deepfool.datasets import load
from tests import nets


@pytest.fixture(scope="module")
def lenet():
    return models.load("lenet-mnist")


@pytest.fixture(scope="module")
def digits():
    return load("mnist-sample").batch(range(8))


def test_images_are_shown_as_pictures(lenet, digits):
    found = deepfool(lenet, digits[:3])
    html = found._repr_html_()
    assert html.count("data:image/png") == 9  # x, r and x + r of each
    assert f"{int(found.label[0])} → {int(found.adv_label[0])}" in html
    assert f"{found.norm[0].item():.4g}" in html


def test_only_the_first_are_shown_and_the_rest_is_counted(lenet, digits):
    html = deepfool(lenet, digits)._repr_html_()
    assert html.count("data:image/png") == 3 * MOST_PICTURES
    assert f"The first {MOST_PICTURES} of 8 samples." in html
    html = deepfool(nets.small(), nets.points(30)[0])._repr_html_()
    assert html.count("<tr") == 1 + MOST_ROWS
    assert "<img" not in html


def test_a_failed_search_shows_no_result(lenet, digits):
    found = deepfool(lenet, digits[:4], max_iter=1)
    failed = int((~found.fooled).sum())
    assert 0 < failed < 4
    html = found._repr_html_()
    assert html.count("data:image/png") == 3 * (4 - failed) + failed
    assert html.count("not known") == failed
    assert "exhausted" in html
    assert "among the fooled" in html


def test_a_remark_on_a_fooled_row_is_shown():
    x = torch.tensor([[3.0, 1.0]])
    found = deepfool(nn.Identity(), x)
    fields = {**vars(found), "reason": ("a <b>remark</b>",)}
    html = Adversarial(**fields)._repr_html_()
    assert "a &lt;b&gt;remark" in html


def test_inputs_in_another_range_are_shown_from_their_lowest_to_their_highest_value(lenet, digits):
    class Shifted(nn.Module):
        def forward(self, x):
            return lenet(x / 4 + 0.5)

    html = deepfool(Shifted(), digits[:1] * 4 - 2)._repr_html_()
    assert "lowest to its highest" in html
    assert "lowest to its highest" not in deepfool(lenet, digits[:1])._repr_html_()


def test_large_photographs_are_reduced():
    class Mean(nn.Module):
        def forward(self, x):
            return x.mean((2, 3))

    x = torch.rand(1, 3, 900, 700)
    html = deepfool(Mean(), x)._repr_html_()
    assert len(html) < 200_000
    assert html.count("data:image/jpeg") == 3
    assert [int(width) for width in re.findall(r'width="(\d+)"', html)] == [128] * 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_dtype_can_be_shown(dtype):
    x = torch.tensor([[[[0.9, 0.1], [0.2, 0.1]]]], dtype=dtype)
    html = deepfool(nn.Flatten(), x)._repr_html_()
    assert html.count("<img") == 3


def test_nothing_can_be_shown_too():
    assert "0 samples" in Adversarial.empty(torch.zeros(0, 1, 4, 4), p=2)._repr_html_()
