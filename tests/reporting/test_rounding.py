"""Perturbations that survive rounding to 8 bits."""

import pytest
import torch
from PIL import Image
from torch import nn

from deepfool import deepfool
from deepfool.datasets import load
from deepfool.errors import InputError
from deepfool.models.sources import resolve
from deepfool.reporting.picture import SIDE, Panels, draw_panels
from deepfool.reporting.rounding import round_adversarial
from deepfool.reporting.single import read_back, write_image


@pytest.mark.parametrize(("name", "data"), [("lenet-mnist", "mnist-sample"), ("lenet-cifar10", "cifar10-sample")])
@pytest.mark.parametrize("p", [2, float("inf")])
def test_every_rounded_image_fools_from_its_file(name, data, p, tmp_path):
    source = resolve(name)
    x = load(data).batch(range(12))
    found = deepfool(source.module, x, p=p, bounds=(0, 1))
    stretched = 0
    for i in range(len(x)):
        rounded = round_adversarial(source.module, x[i], found.r[i], int(found.label[i]))
        assert rounded is not None
        write_image(tmp_path / "a.png", rounded.levels)
        again = read_back(tmp_path / "a.png")
        assert torch.equal(again, rounded.x)
        assert int(source.module(again[None]).argmax()) == rounded.label != int(found.label[i])
        stretched += rounded.scale > 1
    assert data != "cifar10-sample" or stretched, "some of these are smaller than a grey level"


def test_a_perturbation_that_cannot_survive():
    """If no stretch changes the decision, the result is None."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[0.0, 0, 0, 0], [0, 0, 0, 0]]))
        model[1].bias.copy_(torch.tensor([2.0, 0.0]))
    x = torch.full((1, 2, 2), 0.5)
    assert round_adversarial(model, x, torch.full_like(x, 1e-4), label=0) is None


def test_what_is_no_picture_is_refused():
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    with pytest.raises(InputError, match="one sample of shape"):
        round_adversarial(model, torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 2, 2), 0)
    with pytest.raises(InputError, match=r"in \[0, 1\]"):
        round_adversarial(model, torch.full((1, 2, 2), 3.0), torch.zeros(1, 2, 2), 0)


def test_panels_hold_the_pixels():
    x = torch.rand(3, 32, 32).numpy()
    sheet = draw_panels([Panels("deepfool", x, 0 * x + 0.1, "a" * 300, "b", "1 %")] * 2)
    assert isinstance(sheet, Image.Image)
    inside = sheet.getpixel((16 + SIDE // 2, 16 + SIDE // 2))
    assert max(abs(a - round(float(b) * 255)) for a, b in zip(inside, x[:, 16, 16], strict=True)) <= 1
