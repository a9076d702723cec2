"""ONNX files as torch's own exporter writes them today: real exports, against onnxruntime."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from deepfool import deepfool
from deepfool.errors import ModelError
from deepfool.models.opsets import lower
from deepfool.models.sources import resolve
from deepfool.models.torchvision_operators import prepare_torchvision
from tests.models.test_graphs import run_onnx

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")


class Everyday(nn.Module):
    """What classifiers are made of: convolutions, all kinds of normalisation and activation, attention."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 12, 3, stride=2, padding=1), nn.BatchNorm2d(12), nn.Hardswish(), nn.GroupNorm(3, 12),
            nn.Mish(), nn.AvgPool2d(2), nn.Conv2d(12, 10, 1), nn.GELU(), nn.MaxPool2d(2, ceil_mode=True),
        )  # fmt: skip
        self.attention = nn.TransformerEncoderLayer(10, 2, 16, activation="gelu", batch_first=True)
        self.norm = nn.LayerNorm(10)
        self.head = nn.Linear(10 + 10 + 8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        tokens = self.attention(y.flatten(2).transpose(1, 2))
        parts = self.norm(tokens).mean(1).chunk(3, dim=1)  # 4, 4 and 2 wide
        spread = y.mean((2, 3)) + y.amax((2, 3))
        flat = y[:, 1:9:2, ::2].reshape(x.shape[0], -1)[:, :8]
        return self.head(torch.cat([*parts, spread, flat], 1))


def export(network: nn.Module, path: Path, *, dynamic: bool) -> Path:
    """With the exporter's defaults: weights in a file beside it, the newest operator set it cares for."""
    prepare_torchvision()  # the exporter looks for it
    shapes = ({0: torch.export.Dim("batch", min=1)},) if dynamic else None
    logging.disable(logging.CRITICAL)  # it says a lot
    try:
        example = (torch.rand(2, 3, 16, 16),)
        torch.onnx.export(
            network.eval(), example, path, dynamo=True, input_names=["x"], dynamic_shapes=shapes, verbose=False
        )
    finally:
        logging.disable(logging.NOTSET)
    return path


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    return export(Everyday(), tmp_path_factory.mktemp("onnx") / "everyday.onnx", dynamic=True)


# The exporter, not the measurement, uses what torch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def test_what_the_exporter_writes_gives_what_onnxruntime_gives(exported: Path, gradients):
    assert onnx.load(str(exported), load_external_data=False).opset_import[0].version >= 18
    source = resolve(f"onnx:{exported}")
    assert source.input_shape == (3, 16, 16)
    for size in (1, 2, 5):
        x = torch.rand(size, 3, 16, 16)
        torch.testing.assert_close(source.module(x), run_onnx(exported, x), rtol=1e-4, atol=1e-5)
    gradients(source.module, torch.rand(2, 3, 16, 16))
    assert deepfool(source.module, torch.rand(3, 3, 16, 16)).fooled.all()


def test_a_fixed_batch_size(tmp_path: Path):
    network = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 5))
    path = export(network, tmp_path / "fixed.onnx", dynamic=False)
    x = torch.rand(4, 3, 16, 16)
    torch.testing.assert_close(
        resolve(f"onnx:{path}").module(x),
        torch.cat([run_onnx(path, x[:2]), run_onnx(path, x[2:])]),
        rtol=1e-4,
        atol=1e-5,
    )


def test_weights_that_were_left_behind(exported: Path, tmp_path: Path):
    """The exporter writes them into a second file, which is easily forgotten."""
    shutil.copy(exported, tmp_path / "alone.onnx")
    with pytest.raises(ModelError, match=r"alone\.onnx .*everyday\.onnx\.data.*Hint: .* beside"):
        resolve(f"onnx:{tmp_path / 'alone.onnx'}")


def parse(body: str, version: int = 20):
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {version}]> net (float[2, 3, 5] x, int64[k] s) => (float[k2] y) {body}'
    )


@pytest.mark.parametrize(
    ("body", "match"),
    [
        ("{ y = ReduceMax (x, s) }", "ReduceMax over axes that are computed"),
        ("<int64[2] shape = {0, -1}> { y = Reshape <allowzero = 1> (x, shape) }", "a size of 0"),
        ("{ r = Reshape (x, s)  y, z = Split <num_outputs = 2> (r) }", "a size that is not fixed"),
        ("<int64[1] pads = {1}> { y = Pad (x, pads, , pads) }", "Pad"),
    ],
)
def test_what_cannot_be_rewritten_is_refused(body: str, match: str):
    with pytest.raises(Exception, match=match):
        lower(parse(body))


def test_older_files_are_not_touched():
    model = parse("{ y = Reshape (x, s) }", version=17)
    assert lower(model) is model


def test_a_reduction_without_axes_may_mean_nothing_at_all():
    lowered = lower(parse("{ y = ReduceMean <noop_with_empty_axes = 1> (x) }"))
    assert lowered.graph.node[0].op_type == "Identity"
