"""The .caffemodel reader, on files written by Google's protobuf from the messages of caffe.proto."""

import hashlib

import numpy as np
import pytest
import torch
from torch import nn

from deepfool.errors import DataError
from deepfool.models import caffemodel, zoo
from deepfool.models.caffemodel import load_caffemodel, read_layers
from deepfool.models.googlenet import googlenet

descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
from google.protobuf import descriptor_pool, message_factory  # noqa: E402

FIELDS = {  # message: {field: (number, type, repeated)}, from src/caffe/proto/caffe.proto
    "BlobShape": {"dim": (1, "int64", "packed")},
    "BlobProto": {
        "num": (1, "int32", ""), "channels": (2, "int32", ""), "height": (3, "int32", ""), "width": (4, "int32", ""),
        "data": (5, "float", "packed"), "diff": (6, "float", "packed"), "shape": (7, "BlobShape", ""),
        "double_data": (8, "double", "packed"),
    },
    "ParamSpec": {"name": (1, "string", ""), "lr_mult": (3, "float", "")},
    "LayerParameter": {
        "name": (1, "string", ""), "type": (2, "string", ""), "bottom": (3, "string", "repeated"),
        "top": (4, "string", "repeated"), "loss_weight": (5, "float", "repeated"),
        "param": (6, "ParamSpec", "repeated"), "blobs": (7, "BlobProto", "repeated"), "phase": (10, "int32", ""),
    },
    "V1LayerParameter": {
        "bottom": (2, "string", "repeated"), "top": (3, "string", "repeated"), "name": (4, "string", ""),
        "type": (5, "int32", ""), "blobs": (6, "BlobProto", "repeated"), "blobs_lr": (7, "float", "repeated"),
    },
    "NetParameter": {
        "name": (1, "string", ""), "layers": (2, "V1LayerParameter", "repeated"), "input": (3, "string", "repeated"),
        "input_dim": (4, "int32", "repeated"), "force_backward": (5, "bool", ""),
        "layer": (100, "LayerParameter", "repeated"),
    },
}  # fmt: skip


def _message_types():
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="caffe_test.proto", package="caffe_test", syntax="proto2")
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, mode) in fields.items():
            label = kinds.LABEL_REPEATED if mode else kinds.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=label)
            if kind in FIELDS:
                added.type, added.type_name = kinds.TYPE_MESSAGE, f".caffe_test.{kind}"
            else:
                added.type = getattr(kinds, f"TYPE_{kind.upper()}")
            added.options.packed = mode == "packed"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"caffe_test.{name}")) for name in FIELDS}


MESSAGES = _message_types()
STYLES = ["layer", "layers", "double"]


def write(path, arrays, style="layer"):
    """Write {layer: [array, ...]} as Caffe does: with `layer`, with the older `layers`, or in doubles."""
    net = MESSAGES["NetParameter"](name="test net", input=["data"], input_dim=[1, 3, 8, 8], force_backward=True)
    layers = net.layers if style == "layers" else net.layer
    layers.add(name="data", top=["data"])  # a layer without weights
    for name, blobs in arrays.items():
        layer = layers.add(name=name, bottom=["a"], top=["b"])
        if style == "layers":
            layer.type = 4
        else:
            layer.type = "Convolution"
            layer.param.add(lr_mult=1.0)
        for array in blobs:
            array = np.asarray(array)
            blob = layer.blobs.add()
            if style == "layers":
                blob.num, blob.channels, blob.height, blob.width = (1,) * (4 - array.ndim) + array.shape
            else:
                blob.shape.dim.extend(array.shape)
            (blob.double_data if style == "double" else blob.data).extend(array.ravel().tolist())
            if style == "layer":
                blob.diff.extend([0.5] * array.size)  # gradients, as in a snapshot
    path.write_bytes(net.SerializeToString())
    return path


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(4, 6, 3, groups=2)
        self.block = nn.ModuleDict({"1x1": nn.Conv2d(6, 2, 1, bias=False)})
        self.fc = nn.Linear(10, 5)


def arrays_of(model):
    layers = {}
    for name, value in model.named_parameters():
        layers.setdefault(name.rpartition(".")[0].replace(".", "/"), []).append(value.detach().numpy())
    return layers


@pytest.mark.parametrize("style", STYLES)
def test_weights_are_read_in_every_style(tmp_path, style):
    source, target = Tiny(), Tiny()
    load_caffemodel(target, write(tmp_path / "net.caffemodel", arrays_of(source), style))
    for name, value in source.named_parameters():
        assert torch.equal(target.get_parameter(name), value), name


def test_numbers_that_are_not_packed_are_read_too(tmp_path):
    net = MESSAGES["NetParameter"]()
    layer = net.layer.add(name="fc", type="InnerProduct")
    layer.blobs.add().shape.dim.extend([2])
    content = net.SerializeToString()
    # Two floats, one field each (tag 5 << 3 | 5), appended to the blob; every enclosing length grows by ten.
    extra = b"".join(b"\x2d" + np.float32(v).tobytes() for v in (1.5, -2))
    blob = layer.blobs[0].SerializeToString()
    head = content[: content.index(blob)]
    at = head.rindex(bytes([len(blob)]))
    outer = content.index(bytes([len(layer.SerializeToString())]))
    grown = bytearray(head + blob + extra)
    grown[at] += 10
    grown[outer] += 10
    (tmp_path / "a.caffemodel").write_bytes(bytes(grown))
    (found,) = read_layers(tmp_path / "a.caffemodel")
    assert found.name == "fc"
    assert found.blobs[0].tolist() == [1.5, -2.0]


@pytest.mark.parametrize("style", STYLES)
def test_a_truncated_file_is_refused_and_changes_nothing(tmp_path, style):
    source, target = Tiny(), Tiny()
    before = {name: value.clone() for name, value in target.state_dict().items()}
    whole = write(tmp_path / "whole.caffemodel", arrays_of(source), style).read_bytes()
    file = tmp_path / "cut.caffemodel"
    for end in sorted({0, 1, 5, *range(20, len(whole), 37), len(whole) - 1}):
        file.write_bytes(whole[:end])
        with pytest.raises(DataError, match=r"cut\.caffemodel"):
            load_caffemodel(target, file)
    assert all(torch.equal(value, before[name]) for name, value in target.state_dict().items())


def test_random_damage_never_raises_another_kind_of_error(tmp_path):
    rng = np.random.default_rng(0)
    whole = write(tmp_path / "whole.caffemodel", arrays_of(Tiny())).read_bytes()
    file = tmp_path / "damaged.caffemodel"
    messages = []
    for _ in range(300):
        content = bytearray(whole)
        content[rng.integers(len(content))] = rng.integers(256)
        file.write_bytes(bytes(content))
        try:  # damage to the numbers themselves cannot be seen without a hash
            load_caffemodel(Tiny(), file)
        except DataError as error:
            messages.append(str(error))
    assert len(messages) > 10
    assert all("damaged.caffemodel" in message for message in messages)


def test_messages_name_the_file_and_the_layer(tmp_path):
    file, arrays = tmp_path / "net.caffemodel", arrays_of(Tiny())

    def refusal(changed, **options):
        with pytest.raises(DataError) as caught:
            load_caffemodel(Tiny(), write(file, changed), **options)
        assert str(file) in str(caught.value)
        return str(caught.value)

    without = {name: blobs for name, blobs in arrays.items() if name != "block/1x1"}
    assert "'block/1x1' of the network is not in the file" in refusal(without)
    assert "'loss1/fc': the network has no layer of that name" in refusal(arrays | {"loss1/fc": [np.zeros(3)]})
    load_caffemodel(Tiny(), write(file, arrays | {"loss1/fc": [np.zeros(3)]}), skip=("loss1/",))
    message = refusal(arrays | {"fc": [np.zeros((5, 11)), np.zeros(5)]})
    assert "layer 'fc': expected fc.weight of shape (5, 10), got (5, 11)" in message
    assert "got (10, 5)" in refusal(arrays | {"fc": [np.zeros((10, 5)), np.zeros(5)]})
    assert "layer 'fc': expected 2 arrays, got 1" in refusal(arrays | {"fc": [np.zeros((5, 10))]})

    net = MESSAGES["NetParameter"].FromString(write(file, arrays).read_bytes())
    del net.layer[1].blobs[0].data[-1]
    file.write_bytes(net.SerializeToString())
    with pytest.raises(DataError, match=r"layer 'conv1': an array of shape \(6, 2, 3, 3\) has 107 numbers"):
        load_caffemodel(Tiny(), file)
    file.write_bytes(b"\x89HDF\r\n\x1a\n")
    with pytest.raises(DataError, match="HDF5"):
        load_caffemodel(Tiny(), file)
    file.write_bytes(b"<html>not found</html>")
    with pytest.raises(DataError, match=r"net\.caffemodel"):
        load_caffemodel(Tiny(), file)


def test_a_duplicate_layer_is_refused(tmp_path):
    net = MESSAGES["NetParameter"].FromString(write(tmp_path / "a", arrays_of(Tiny())).read_bytes())
    net.layer.append(net.layer[1])
    (tmp_path / "b").write_bytes(net.SerializeToString())
    with pytest.raises(DataError, match="'conv1': the layer appears twice"):
        load_caffemodel(Tiny(), tmp_path / "b")


def test_a_file_with_a_published_name_must_have_the_published_hash(tmp_path):
    file = write(tmp_path / "bvlc_googlenet.caffemodel", arrays_of(Tiny()))
    with pytest.raises(DataError, match="405fc5acd08a3bb12de8ee5e23a96bec22f08204"):
        load_caffemodel(Tiny(), file)
    found = hashlib.sha1(file.read_bytes()).hexdigest()
    load_caffemodel(Tiny(), file, sha1=found)
    with pytest.raises(DataError, match="expected the published file"):
        load_caffemodel(Tiny(), file.rename(tmp_path / "own.caffemodel"), sha1="0" * 40)


def test_googlenet_from_the_cache_gives_the_scores_of_its_source(tmp_path, monkeypatch):
    """End to end: a full-size file in the older style, with auxiliary classifiers, through `models.load`."""
    torch.manual_seed(1)
    source = googlenet().eval()
    arrays = arrays_of(source) | {
        "loss1/conv": [np.ones((128, 512, 1, 1), np.float32), np.ones(128, np.float32)],
        "loss2/classifier": [np.ones((10, 4), np.float32), np.ones(10, np.float32)],
    }
    monkeypatch.setenv("DEEPFOOL_HOME", str(tmp_path))
    with pytest.raises(DataError) as caught:
        zoo.load("googlenet")
    for part in ("deepfool models fetch googlenet", "405fc5acd08a", str(tmp_path / "models"), "http"):
        assert part in str(caught.value)

    (tmp_path / "models").mkdir()
    file = write(tmp_path / "models" / "bvlc_googlenet.caffemodel", arrays, "layers")
    with pytest.raises(DataError, match="sha1"):
        zoo.load("googlenet")
    found = hashlib.sha1(file.read_bytes()).hexdigest()
    monkeypatch.setitem(caffemodel.PUBLISHED_SHA1, "bvlc_googlenet.caffemodel", found)
    loaded = zoo.load("googlenet")
    assert not loaded.training
    for name, value in source.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    x = torch.rand(1, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(loaded(x), source(x))
