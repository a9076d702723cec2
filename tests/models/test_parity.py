"""Our AlexNet and GoogLeNet against the graphs that the `onnx` package carries, run by onnxruntime.

Those graphs (`light_bvlc_alexnet`, `light_inception_v1`) are Caffe's own networks converted, with the weights left
out: they are put back here at random, the same in both. The converter rounded most pooling sizes down where Caffe
rounds them up. So parity is shown twice: on inputs in which every window fits, where the two roundings agree, with our
networks as they are; and at the graphs' own 224 pixels with our rounding set as theirs.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from deepfool.models.caffenet import alexnet
from deepfool.models.googlenet import googlenet

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


class Graph:
    """One of the light graphs with given weights, at a given input size, returning the scores before the softmax."""

    def __init__(self, name: str, weights: dict[str, torch.Tensor], side: int) -> None:
        model = onnx.load(LIGHT / f"{name}.onnx")
        graph = model.graph
        makers = [node for node in graph.node if node.op_type == "ConstantOfShape"]
        empty = {node.output[0] for node in makers} | {i.name for i in graph.initializer if i.name.endswith("_b_0")}
        assert empty == set(weights), "the graph and the module have the same weights, by name"
        for node in makers:
            graph.node.remove(node)
        kept = [i for i in graph.initializer if i.name not in empty and not i.name.endswith("__SHAPE")]
        del graph.initializer[:]
        graph.initializer.extend(kept)
        for label, value in weights.items():
            graph.initializer.append(onnx.numpy_helper.from_array(value.numpy(), label))
        softmax = graph.node[-1]
        assert softmax.op_type == "Softmax"
        graph.node.remove(softmax)
        del graph.output[:]
        graph.output.append(onnx.helper.make_tensor_value_info(softmax.input[0], onnx.TensorProto.FLOAT, [1, 1000]))
        del graph.input[:]
        image = onnx.helper.make_tensor_value_info("data_0", onnx.TensorProto.FLOAT, [1, 3, side, side])
        graph.input.append(image)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.asarray(self.session.run(None, {"data_0": x.numpy()})[0]))


def randomise(network: nn.Module) -> None:
    """Weights that keep the signal at one scale through all layers, and biases that matter."""
    with torch.no_grad():
        for layer in network.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                layer.bias.normal_(std=0.1)


def onnx_names(network: nn.Module) -> dict[str, torch.Tensor]:
    kinds = {"weight": "w_0", "bias": "b_0"}
    return {
        f"{path.replace('.', '/')}_{kinds[kind]}": value.detach()
        for path, _, kind, value in ((*name.rpartition("."), value) for name, value in network.named_parameters())
    }


CASES = [
    # name, network, input side, and which of our pools round down there as the graph does
    ("light_bvlc_alexnet", alexnet, 227, ()),
    ("light_bvlc_alexnet", alexnet, 224, ("pool1", "pool2")),
    ("light_inception_v1", googlenet, 222, ()),
    ("light_inception_v1", googlenet, 224, ("pool1", "pool2", "pool3", "pool4")),
]


@pytest.mark.parametrize(("graph", "factory", "side", "round_down"), CASES)
@torch.no_grad()
def test_same_weights_give_the_same_scores(graph, factory, side, round_down):
    torch.manual_seed(0)
    ours = factory().eval()
    randomise(ours)
    for name in round_down:
        getattr(ours, name).ceil_mode = False
    theirs = Graph(graph, onnx_names(ours), side)
    for _ in range(2):
        x = torch.rand(1, 3, side, side)
        scores, expected = ours(x), theirs(ours.input(x))
        assert expected.std() > 0.1  # scores that say something
        scale = expected.abs().max()
        assert (scores - expected).abs().max() <= 1e-4 * scale
        torch.testing.assert_close(scores.softmax(1), expected.softmax(1), rtol=0, atol=1e-4)


@torch.no_grad()
def test_another_order_of_layers_would_be_seen():
    """The comparison has teeth: CaffeNet's order in AlexNet's place gives other scores."""
    from deepfool.models.caffenet import caffenet

    torch.manual_seed(0)
    ours, other = alexnet().eval(), caffenet().eval()
    randomise(ours)
    other.load_state_dict(ours.state_dict())
    x = torch.rand(1, 3, 227, 227)
    scores, others = ours(x), other(x)
    assert (scores - others).abs().max() > 1e-3 * scores.abs().max()
