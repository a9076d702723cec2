from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from deepfool.errors import InputError, MissingExtraError, ModelError
from deepfool.models.graphs import FixedBatch, refuse_code
from deepfool.models.sources import as_module, resolve

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

# --- ONNX


def write_onnx(path: Path, *, batch: int | str = "n", flatten: bool = True) -> Path:
    """Convolution, ReLU, average, one dense layer; with a constant reshape it works for one batch size only."""
    draw = np.random.default_rng(0)
    weights = {
        "kernel": draw.normal(size=(4, 3, 3, 3)).astype(np.float32),
        "dense": draw.normal(size=(5, 4)).astype(np.float32),
        "bias": draw.normal(size=5).astype(np.float32),
        "shape": np.array([batch if isinstance(batch, int) else 1, 4], dtype=np.int64),
    }
    node = onnx.helper.make_node
    nodes = [
        node("Conv", ["x", "kernel"], ["c"], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"]),
        node("GlobalAveragePool", ["r"], ["p"]),
        node("Flatten", ["p"], ["f"]) if flatten else node("Reshape", ["p", "shape"], ["f"]),
        node("Gemm", ["f", "dense", "bias"], ["y"], transB=1),
    ]
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "small",
        [value("x", onnx.TensorProto.FLOAT, [batch, 3, 8, 8])],
        [value("y", onnx.TensorProto.FLOAT, [batch, 5])],
        [
            onnx.numpy_helper.from_array(array, name)
            for name, array in weights.items()
            if name != "shape" or not flatten
        ],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))
    return path


def run_onnx(path: Path, x: torch.Tensor) -> torch.Tensor:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return torch.tensor(session.run(None, {"x": x.numpy()})[0])


def test_onnx_gives_what_onnxruntime_gives(tmp_path: Path, gradients):
    path = write_onnx(tmp_path / "small.onnx")
    source = resolve(f"onnx:{path}")
    x = torch.rand(3, 3, 8, 8)
    assert source.input_shape == (3, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(source.module(x), run_onnx(path, x), rtol=1e-5, atol=1e-5)
    gradients(source.module.double(), x.double())


def test_onnx_of_a_fixed_batch_size_takes_any_batch(tmp_path: Path, gradients):
    path = write_onnx(tmp_path / "fixed.onnx", batch=2, flatten=False)
    source = resolve(f"onnx:{path}")
    assert isinstance(source.module, FixedBatch)
    x = torch.rand(5, 3, 8, 8)
    expected = torch.cat([run_onnx(path, x[0:2]), run_onnx(path, x[2:4]), run_onnx(path, x[3:5])[1:]])
    with torch.no_grad():
        torch.testing.assert_close(source.module(x), expected, rtol=1e-5, atol=1e-5)
    gradients(source.module.double(), x.double())


def test_onnx_graphs_with_the_same_weights_have_different_fingerprints(tmp_path: Path):
    path = write_onnx(tmp_path / "small.onnx")
    graph = onnx.load(str(path))
    graph.graph.node[1].op_type = "Tanh"
    onnx.save(graph, str(tmp_path / "other.onnx"))
    assert resolve(f"onnx:{path}").fingerprint != resolve(f"onnx:{tmp_path / 'other.onnx'}").fingerprint
    assert resolve(f"onnx:{path}").fingerprint == resolve(f"onnx:{path}").fingerprint


def test_onnx_errors_name_the_file(tmp_path: Path):
    with pytest.raises(InputError, match="there is no file"):
        resolve(f"onnx:{tmp_path / 'none.onnx'}")
    (tmp_path / "bad.onnx").write_bytes(b"not a protobuf")
    with pytest.raises(ModelError, match=r"bad\.onnx could not be read"):
        resolve(f"onnx:{tmp_path / 'bad.onnx'}")
    graph = onnx.load(str(write_onnx(tmp_path / "two.onnx")))
    graph.graph.input.append(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, [1]))
    onnx.save(graph, str(tmp_path / "two.onnx"))
    with pytest.raises(ModelError, match=r"two\.onnx was expected to take one input, it takes 2 \(x, z\)"):
        resolve(f"onnx:{tmp_path / 'two.onnx'}")


def test_onnx_operator_that_the_converter_lacks(tmp_path: Path):
    graph = onnx.load(str(write_onnx(tmp_path / "odd.onnx")))
    graph.graph.node[1].op_type = "Cosh"
    graph.opset_import[0].version = 18
    onnx.save(graph, str(tmp_path / "odd.onnx"))
    with pytest.raises(ModelError, match=r"odd\.onnx uses an ONNX operator that onnx2torch does not know.*Cosh"):
        resolve(f"onnx:{tmp_path / 'odd.onnx'}")


def test_onnx_weights_that_are_computed_are_refused_with_a_hint():
    """The test data of the onnx package has such files: their weights come from ConstantOfShape."""
    light = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / "light_squeezenet.onnx"
    with pytest.raises(ModelError, match="computes the weight 'conv1_w_0' instead of storing it"):
        resolve(f"onnx:{light}")


def test_onnx_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write_onnx(tmp_path / "small.onnx")
    monkeypatch.setitem(sys.modules, "onnx2torch", None)
    with pytest.raises(MissingExtraError, match=r'onnx2torch. Hint: pip install "deepfool\[onnx\]"'):
        resolve(f"onnx:{path}")


# --- torch.export


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(144, 5)
    ).eval()


def write_export(path: Path, model: nn.Module, *, dynamic: bool = True) -> Path:
    shapes = ({0: torch.export.Dim("n")},) if dynamic else None
    torch.export.save(torch.export.export(model, (torch.rand(2, 3, 8, 8),), dynamic_shapes=shapes), path)
    return path


@pytest.mark.parametrize("dynamic", [True, False])
def test_export_gives_what_was_exported(tmp_path: Path, dynamic: bool, gradients):
    model = network()
    source = resolve(f"export:{write_export(tmp_path / 'model.pt2', model, dynamic=dynamic)}")
    assert source.input_shape == (3, 8, 8)
    assert isinstance(source.module, FixedBatch) is not dynamic
    x = torch.rand(5, 3, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(source.module(x), model(x))
    source.module.eval()  # torch refuses this for exported programs; our wrapper allows it
    gradients(source.module, x)
    gradients(source.module.double(), x.double())


def test_a_program_in_memory_is_a_model_too():
    model = network()
    program = torch.export.export(model, (torch.rand(2, 3, 8, 8),), dynamic_shapes=({0: torch.export.Dim("n")},))
    x = torch.rand(3, 3, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(as_module(program)(x), model(x))


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.BatchNorm2d(3)])
def test_export_in_training_mode_is_refused(tmp_path: Path, layer: nn.Module):
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(192, 2)).train()
    with pytest.raises(ModelError, match=r"exported in training mode.*model\.eval\(\)"):
        resolve(f"export:{write_export(tmp_path / 'model.pt2', model, dynamic=False)}")


def test_export_of_several_inputs_is_refused(tmp_path: Path):
    program = torch.export.export(nn.Bilinear(2, 2, 2), (torch.rand(2, 2), torch.rand(2, 2)))
    torch.export.save(program, tmp_path / "two.pt2")
    with pytest.raises(ModelError, match="one input, it takes 2"):
        resolve(f"export:{tmp_path / 'two.pt2'}")


def test_export_that_is_not_an_archive(tmp_path: Path):
    (tmp_path / "bad.pt2").write_bytes(b"nothing")
    with pytest.raises(ModelError, match=r"bad\.pt2 could not be opened"):
        resolve(f"export:{tmp_path / 'bad.pt2'}")
    with pytest.raises(InputError, match="there is no file"):
        resolve(f"export:{tmp_path / 'none.pt2'}")


def tamper(source: Path, target: Path, ending: str, change) -> Path:
    """Copy an archive with one member changed."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(
                name.replace(source.stem, target.stem, 1), change(content) if name.endswith(ending) else content
            )
    return target


def test_export_with_pickled_code_in_it_is_not_opened(tmp_path: Path, bomb):
    """torch.export.load itself would unpickle this: it falls back to a bare load of the example inputs."""
    path = write_export(tmp_path / "model.pt2", network())
    torch.save(((bomb,), {}), tmp_path / "bomb.pt")
    evil = tamper(path, tmp_path / "evil.pt2", "sample_inputs/model.pt", lambda _: (tmp_path / "bomb.pt").read_bytes())
    with pytest.raises(ModelError, match=r"evil\.pt2 could not be opened"):
        resolve(f"export:{evil}")


@pytest.mark.parametrize("place", ["expression", "guard", "target", "constant"])
def test_export_that_reaches_outside_torch_is_refused(tmp_path: Path, place: str):
    marker = tmp_path / "it-ran"
    code = f"open({str(marker)!r}, 'w')"

    def change(content: bytes) -> bytes:
        document = json.loads(content)
        if place == "guard":
            document["guards_code"] = [code]
        elif place == "target":
            document["graph_module"]["graph"]["nodes"][0]["target"] = "torch.os.system"
        elif place == "expression":
            document["graph_module"]["graph"]["tensor_values"]["input"]["sizes"][0]["as_expr"]["expr_str"] = code
        else:
            document["config"] = {"c": {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True}}
        return json.dumps(document).encode()

    path = write_export(tmp_path / "model.pt2", network())
    ending = "constants_config.json" if place == "constant" else "models/model.json"
    with pytest.raises(ModelError, match="could run code"):
        resolve(f"export:{tamper(path, tmp_path / 'evil.pt2', ending, change)}")
    assert not marker.exists()


def test_honest_archives_of_many_kinds_pass(tmp_path: Path):
    """Sizes that are computed, bounded and compared, a constant tensor, a pooled image."""

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mask = torch.ones(3, 1, 1)
            self.register_buffer("scale", torch.tensor(2.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            n, c, h, w = x.shape
            x = nn.functional.pad(x * self.mask * self.scale, (0, w // 2, 0, h % 3))
            return nn.functional.adaptive_avg_pool2d(x, 2).reshape(n, c * 4)

    sizes = {
        0: torch.export.Dim("n", max=64),
        2: torch.export.Dim("h", min=4, max=32),
        3: torch.export.Dim("w", min=4, max=32),
    }
    program = torch.export.export(Odd(), (torch.rand(2, 3, 8, 8),), dynamic_shapes=(sizes,))
    torch.export.save(program, tmp_path / "odd.pt2")
    refuse_code(tmp_path / "odd.pt2")
    source = resolve(f"export:{tmp_path / 'odd.pt2'}")
    assert source.input_shape is None
    x = torch.rand(4, 3, 9, 7)
    torch.testing.assert_close(source.module(x), Odd()(x))
