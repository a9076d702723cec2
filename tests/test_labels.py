"""Class names of the data and of the model: matched where they agree, and said where they do not."""

import json

import pytest
import torch
from PIL import Image
from torch import nn

from deepfool import evaluate
from deepfool.datasets import load
from deepfool.models.sources import Source
from deepfool.runs.labels import LabelWarning, match_labels


def colours(folder, names):
    """A folder with one image for each class."""
    for name in names:
        (folder / name).mkdir(parents=True)
        Image.new("RGB", (8, 8), (len(name), 0, 0)).save(folder / name / "a.png")
    return load(f"folder:{folder}", size=8)


def model(classes, names=(), spec="py:mine:net"):
    module = nn.Sequential(nn.Flatten(), nn.Linear(192, classes))
    return Source(module, spec, (3, 8, 8), tuple(names), "0" * 64)


def zoo(name, classes):
    return model(classes, spec=name)


def test_names_get_the_numbers_of_the_model(tmp_path):
    data = colours(tmp_path, ["Truck", "dog", "frog"])  # 0, 1, 2 in the order of the folders
    found = match_labels(zoo("lenet-cifar10", 10), data)
    assert found.labels.tolist() == [9, 5, 6]
    assert found.classes[9] == "truck"
    assert found.fingerprint() == data.fingerprint()
    assert found.file(1) == data.file(1)
    assert torch.equal(found.batch([1]), data.batch([1]))


@pytest.mark.parametrize("names", [["n01491361", "n01440764"], ["tiger_shark", "Tench"]])
def test_imagenet_by_synset_or_name(tmp_path, names):
    names = sorted(names)
    expected = {"n01491361": 3, "tiger_shark": 3, "n01440764": 0, "Tench": 0}
    from deepfool.models.imagenet import list_names

    found = match_labels(model(1000, list_names()), colours(tmp_path, names))
    assert found.labels.tolist() == [expected[name] for name in names]


def test_synsets_are_known_even_if_the_names_of_the_model_are_not(tmp_path):
    data = colours(tmp_path, ["n01491361", "n01440764"])
    assert match_labels(model(1000), data).labels.tolist() == [0, 3]


def test_a_name_of_two_classes_needs_its_synset(tmp_path):
    names = tuple("crane" if number in (2, 5) else f"class {number}" for number in range(8))
    with pytest.warns(LabelWarning, match="1 of 2 classes that the model does not have .crane"):
        found = match_labels(model(8, names), colours(tmp_path, ["class_7", "crane"]))
    assert found.labels.tolist() == [7, -1]


def test_synonyms(tmp_path):
    found = match_labels(model(2, ["tench, Tinca tinca", "goldfish"]), colours(tmp_path, ["tinca_tinca"]))
    assert found.labels.tolist() == [0]


def test_a_mismatch_is_said_instead_of_an_accuracy_of_zero(tmp_path):
    colours(tmp_path / "data", ["bicycle", "unicycle"])
    with pytest.warns(LabelWarning, match=r"the model does not have \(bicycle, unicycle; the model has air"):
        run = evaluate("lenet-cifar10", f"folder:{tmp_path / 'data'}", out=tmp_path / "run", size=32)
    assert [row["true_label"] for row in run.rows()] == [None, None]


def test_the_rows_have_the_labels_of_the_model_and_verify_finds_the_data(tmp_path):
    from deepfool.runs.verification import verify

    colours(tmp_path / "data", ["ship", "automobile"])
    run = evaluate(
        "lenet-cifar10", f"folder:{tmp_path / 'data'}", out=tmp_path / "run", size=32, save_perturbations=True
    )
    assert [row["true_label"] for row in run.rows()] == [1, 8]
    assert run.manifest["data"]["classes"][8] == "ship"
    assert verify(run).holds


def test_a_folder_that_a_model_was_trained_on_keeps_its_order(tmp_path, recwarn):
    found = match_labels(model(2), colours(tmp_path, ["b", "a"]))
    assert found.labels.tolist() == [0, 1]
    assert not recwarn.list


def test_a_few_classes_for_a_model_of_many_without_names(tmp_path):
    with pytest.warns(LabelWarning, match=r"2 classes \(a, b\) and the model has 10, whose names are not known"):
        match_labels(model(10), colours(tmp_path, ["b", "a"]))


def list_labels(folder, content):
    for name in ("1.png", "2.png"):
        Image.new("RGB", (8, 8)).save(folder / name)
    (folder / "labels.json").write_text(json.dumps(content))
    return load(f"folder:{folder}", size=8)


@pytest.mark.parametrize(
    "content",
    [
        {"1.png": "ship", "2.png": "cat"},
        [{"file": "1.png", "name": "ship"}, {"file": "2.png", "label": "cat"}],
    ],
)
def test_labels_json_may_hold_names(tmp_path, content):
    assert match_labels(zoo("lenet-cifar10", 10), list_labels(tmp_path, content)).labels.tolist() == [8, 3]


def test_labels_json_with_numbers_of_another_order(tmp_path, recwarn):
    rows = [{"file": "1.png", "label": 0, "name": "ship"}, {"file": "2.png", "label": 1, "name": "cat"}]
    data = list_labels(tmp_path, rows)
    with pytest.warns(LabelWarning, match=r"label 0 is 'ship' in the data and 'airplane' .* is the model's class 8"):
        assert match_labels(zoo("lenet-cifar10", 10), data) is data
    right = list_labels(tmp_path, [row | {"label": label} for row, label in zip(rows, (8, 3), strict=True)])
    recwarn.clear()
    assert match_labels(zoo("lenet-cifar10", 10), right) is right
    assert not recwarn.list
