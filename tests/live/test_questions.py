"""What a visitor may ask, and drawings as MNIST would have them."""

import base64

import numpy as np
import pytest
import torch

import deepfool
from deepfool.datasets import load
from deepfool.errors import InputError
from deepfool.live.drawing import fit_drawing
from deepfool.live.exhibit import open_exhibit
from deepfool.live.questions import read_question
from deepfool.live.samples import list_samples
from deepfool.models.sources import resolve
from tests import nets
from tests.live.conftest import about_sample


@pytest.fixture(scope="module")
def exhibit():
    return open_exhibit([resolve("mlp-mnist-small")], load("mnist-sample"))


@pytest.fixture(scope="module")
def table():
    return open_exhibit([resolve(nets.small())], load(nets.points(50)))


def b64(count, value=1):
    return base64.b64encode(bytes([value]) * count).decode()


HOSTILE = [
    None, [], 3, "x", {}, {"input": None}, {"input": {"kind": "file", "path": "/etc/passwd"}},
    about_sample(-1), about_sample(1000), about_sample(0.5), about_sample("0"), about_sample(True), about_sample(None),
    about_sample(p=3), about_sample(p="2"), about_sample(p=float("nan")), about_sample(p=[2]), about_sample(p=True),
    about_sample(bounds=[1, 0]), about_sample(bounds=[0]), about_sample(bounds="unit"),
    about_sample(bounds=[0, float("inf")]),
    about_sample(bounds="data"), about_sample(target=10), about_sample(target=-1), about_sample(target="3"),
    about_sample(goal="top:10"), about_sample(goal="labels"), about_sample(goal="target:3"),
    about_sample(goal=["top:3"]),
    about_sample(goal="top:3", target=4), about_sample(goal="within:1"), about_sample(goal="../etc"),
    about_sample(mask="!!"), about_sample(mask=b64(783)), about_sample(mask=b64(784, 0)), about_sample(mask=[1] * 784),
    about_sample(sides=[]), about_sample(sides=[{"model": 0, "attack": "deepfool"}] * 3), about_sample(sides=[3]),
    about_sample(sides=[{"model": 1, "attack": "deepfool"}]), about_sample(sides=[{"model": 0, "attack": "os:system"}]),
    about_sample(sides=[{"model": 0, "attack": ["deepfool"]}]), about_sample(effort=10**9), about_sample(effort="100"),
    {**about_sample(), "input": {"kind": "pixels", "levels": b64(783)}},
    {**about_sample(), "input": {"kind": "pixels", "levels": "ÿ"}},
    {**about_sample(), "input": {"kind": "row", "values": [0.0] * 784}},
    {**about_sample(), "input": {"kind": "drawing", "side": 10**6, "levels": b64(10)}},
    {**about_sample(), "input": {"kind": "drawing", "side": 140, "levels": b64(10)}},
    {**about_sample(), "input": {"kind": "drawing", "side": 140, "levels": b64(140 * 140, 0)}},
]  # fmt: skip


@pytest.mark.parametrize("sent", HOSTILE, ids=range(len(HOSTILE)))
def test_what_makes_no_sense_is_refused_in_words(exhibit, sent):
    with pytest.raises(InputError, match=r"[a-z ]{8}"):
        read_question(sent, exhibit)


@pytest.mark.parametrize("last", [[], [None], [float("nan")], ["1"], [1e300], [0.0, 0.0], [True], [[0.0]]])
def test_rows_must_be_numbers(table, last):
    values = [0.0] * 5 + last
    with pytest.raises(InputError):
        read_question({**about_sample(), "bounds": None, "input": {"kind": "row", "values": values}}, table)


def test_a_row_and_the_box_of_its_data(table):
    asked = read_question(
        about_sample(3, bounds="data", mask=base64.b64encode(bytes([0, 1, 1, 1, 1, 1])).decode()), table
    )
    rows = nets.points(50)[0]
    low, high = asked.bounds
    assert torch.allclose(low.float(), rows.amin(0))
    assert torch.allclose(high.float(), rows.amax(0))
    assert asked.mask.tolist() == [False, True, True, True, True, True]


def test_the_most_fragile_samples_come_first_where_a_run_has_measured_them(tmp_path):
    run = deepfool.evaluate(nets.small(), nets.points(30), out=tmp_path / "run", audit=False)
    exhibit = open_exhibit([resolve(nets.small())], load(nets.points(30)), run=run)
    found = list_samples(exhibit, count=30, fragile=True)["samples"]
    rho = [each["rho"] for each in found]
    assert rho == sorted(rho)
    assert {each["index"] for each in found} <= set(range(30))
    assert found[0]["index"] == int(run.records().index[run.records().ratio("p").argmin()])
    with pytest.raises(InputError, match="other data"):
        open_exhibit([resolve(nets.small())], load(nets.points(5)), run=run)


def test_pixels_arrive_as_they_were_sent(exhibit):
    levels = np.arange(784, dtype=np.uint16).astype(np.uint8)
    sent = {**about_sample(), "input": {"kind": "pixels", "levels": base64.b64encode(levels.tobytes()).decode()}}
    asked = read_question(sent, exhibit)
    assert torch.equal((asked.x * 255).round().flatten().to(torch.uint8), torch.from_numpy(levels))
    assert asked.exact


def test_a_drawing_does_not_depend_on_where_or_how_large_it_was_drawn():
    pad = np.zeros((140, 140), np.uint8)
    pad[20:60, 20:28] = 255
    pad[20:28, 20:50] = 255
    moved = np.roll(pad, (50, 60), (0, 1))
    assert torch.equal(fit_drawing(pad, 28), fit_drawing(moved, 28))
    large = np.kron(pad[:70, :70], np.ones((2, 2), np.uint8))
    assert (fit_drawing(pad, 28).int() - fit_drawing(large, 28).int()).abs().float().mean() < 2


def test_a_drawing_is_as_large_and_as_centred_as_mnist():
    """By MNIST itself: its digits fill 20 pixels, and their centre of mass is in the middle."""
    digits = load("mnist-sample").images()[:100, 0]
    for digit in digits:
        again = fit_drawing(np.kron(digit.numpy(), np.ones((5, 5), np.uint8)), 28)[0]
        rows, columns = (again > 0).nonzero().T
        assert 19 <= max(int(rows.max() - rows.min()), int(columns.max() - columns.min())) + 1 <= 21
        weight = again.double() / again.sum()
        middle = [(weight.sum(1 - axis) * torch.arange(28)).sum() for axis in (0, 1)]
        assert all(abs(float(at) - 13.5) <= 1 for at in middle)


def test_thin_and_tiny_drawings_stay_inside():
    dot = np.zeros((140, 140), np.uint8)
    dot[139, 139] = 255
    line = np.zeros((140, 140), np.uint8)
    line[:, 0] = 255
    for pad in (dot, line):
        fitted = fit_drawing(pad, 28)
        assert fitted.shape == (1, 28, 28)
        assert fitted.max() == 255
