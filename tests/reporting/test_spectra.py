"""The spectrum: the closed form of an affine model, what it draws, and the command."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from deepfool import evaluate
from deepfool.cli import app
from deepfool.datasets import load
from deepfool.errors import InputError
from deepfool.models.sources import resolve
from deepfool.reporting.page import write_report
from deepfool.reporting.spectra import SPECTRUM, draw_spectrum, list_rows, measure_spectrum, read_spectrum
from deepfool.subspaces import draw_subspace, make_bands

OVERSHOOT = 1.02


@pytest.fixture(scope="module")
def affine():
    """Of low frequencies only: a smooth pattern against none."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 1))
    pattern = make_bands((1, 8, 8), 4)[0].project(torch.randn(1, 64)) + 0.01 * torch.randn(1, 64)
    net[1].weight.data, net[1].bias.data = pattern, torch.tensor([0.3])
    return net.requires_grad_(False), torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def test_an_affine_model(affine):
    net, x = affine
    told = []
    found = measure_spectrum(
        resolve(net), load((x, None)), bands=4, dimensions=[16, 32], seed=3, on_progress=lambda *each: told.append(each)
    )
    gap, w = net(x)[:, 0].abs().double().numpy(), net[1].weight.double()
    spaces = [*make_bands((1, 8, 8), 4), draw_subspace(64, 16, 3), draw_subspace(64, 32, 3)]
    for entry, space in zip((*found.bands, *found.random), spaces, strict=True):
        slope = float(space.to(w).norm())
        assert entry.median.value == pytest.approx(OVERSHOOT * float(np.median(gap)) / slope, rel=1e-3)
        share = math.sqrt(space.dimensions / 64) * float(w.norm()) / slope  # the same for every sample
        assert entry.ratio.value == pytest.approx(share, rel=1e-3)
    medians = [entry.median.value for entry in found.bands]
    assert medians[0] < min(medians[1:]) / 3  # it looks at low frequencies
    assert medians[0] >= found.whole.median.value * 0.999
    assert [entry.dimensions for entry in found.bands] == [16] * 4
    assert told[-1] == ("", 7, 7)
    assert len(list(list_rows(found))) == 7
    json.dumps(found.as_dict(), allow_nan=False)


def test_rows_of_features_have_no_bands():
    found = measure_spectrum(resolve(nn.Linear(10, 3)), load((torch.rand(8, 10), None)), dimensions=[5])
    assert (found.bands, len(found.random)) == ((), 1)


def test_what_cannot_be_measured():
    source, data = resolve(nn.Linear(10, 3)), load((torch.rand(8, 10), None))
    with pytest.raises(InputError, match=r"dimensions must lie in \[1, 10\]"):
        measure_spectrum(source, data, dimensions=[11])
    with pytest.raises(InputError, match="limit must be a whole number"):
        measure_spectrum(source, data, limit=0)


def test_the_law_on_a_network(tmp_path):
    """Within 20 % from 20 dimensions on; docs/howto/spectrum.md has more networks and samples."""
    found = measure_spectrum(resolve("lenet-mnist"), load("mnist-sample"), limit=30, bands=4, dimensions=[20, 98])
    for entry in found.random:
        assert entry.fooled == entry.samples
        assert 0.8 < entry.ratio.value < 1.2
    assert found.bands[0].median.value < found.bands[-1].median.value / 5  # digits are low frequencies
    for name in ("spectrum.svg", "spectrum.png"):
        assert draw_spectrum(found, tmp_path / name).stat().st_size > 5000


def test_the_command(tmp_path):
    command = [
        "spectrum",
        "--model",
        "lenet-mnist",
        "--data",
        "mnist-sample",
        "--limit",
        "6",
        "--bands",
        "2",
        "--quiet",
    ]
    shown = CliRunner().invoke(app, [*command, "--dimensions", "49", "-o", str(tmp_path / "s.svg")])
    assert shown.exit_code == 0, shown.output
    assert "band 1 of 2" in shown.output
    assert (tmp_path / "s.svg").exists()
    found = json.loads(CliRunner().invoke(app, [*command, "--dimensions", "49", "--json"]).stdout)
    assert [entry["dimensions"] for entry in (*found["bands"], *found["random"])] == [392, 392, 49]
    run = evaluate("lenet-mnist", "mnist-sample", limit=4, out=tmp_path / "run")
    assert "Where it is fragile" not in write_report([run]).read_text()
    kept = CliRunner().invoke(app, [*command, "--dimensions", "49", "--into", str(run.folder)])
    assert kept.exit_code == 0, kept.output
    page = (run.folder / "report.html").read_text()
    assert "Where it is fragile" in page
    assert "band 2 of 2" in page
    (run.folder / SPECTRUM).write_text("{")
    assert read_spectrum(run) is None
    other = evaluate(nn.Linear(4, 2), (torch.rand(3, 4), None), out=tmp_path / "other")
    refused = CliRunner().invoke(app, [*command, "--dimensions", "49", "--into", str(other.folder)])
    assert "not of the model" in str(refused.exception)
    assert "whole numbers" in str(CliRunner().invoke(app, [*command, "--dimensions", "many"]).exception)
