"""Every argument of every function that is no attack, given what it cannot use: an error of ours, in a sentence."""

import math
import re

import numpy as np
import pytest
import torch
from torch import nn

from deepfool import Classifier, Run, datasets, evaluate, finetune, metrics, models
from deepfool.errors import DataError, DeepFoolError
from deepfool.runs.rows import Records

X, Y = torch.rand(6, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1, 2])
NET = nn.Linear(4, 3)

NO_NUMBERS = ["0.5", b"1", True, 1j, math.nan, [0.5], torch.ones(2), {}, object()]
NO_COUNTS = [*NO_NUMBERS, -1, 0, 2.0, math.inf, 10**30]
NO_FLAGS = ["no", 0, None, [], math.nan]
NO_TEXTS = [3, 0.5, True, [], {}, object(), b"x"]
NO_DATA = [
    None, "mnits", "npz:", "npz:nowhere.npz", "folder:nowhere", "x:y", "", 3, 0.5, [], {}, object(), X, (X,), (X, Y, Y),
    (X, Y[:3]), (X, "labels"), (X, torch.rand(6)), (X.long(), Y), (X.to(torch.complex64), Y), (X.to_sparse(), Y),
    (X.to("meta"), Y), (X * math.nan, Y), (X[:0], Y[:0]), (X[:, 0], Y), (X, Y - 5), (X, object()), ("a", "b"),
    (X.numpy().astype(np.longdouble), Y), (X.numpy().astype(object), Y), (X, [[0], [0, 1]]), (X, {}),
    (X, Y.to("meta")), (X, Y.to_sparse()), (X, Y.to(torch.complex64)),
]  # fmt: skip
NO_MODELS = [None, "lenet-mits", "py:", "py:os", "py:os:nothing", "py:os:getcwd", "onnx:no.onnx", "file:x", "", 3, 0.5,
             [], {}, object(), X, lambda x: x, nn.Linear]  # fmt: skip
NO_BOUNDS = ["01", 3, {}, (0,), (1, 0), (None, 1), ("a", 1), (math.nan, 1), (0, 1j), (torch.zeros(7), 1), object()]

EVALUATE = {
    "model": NO_MODELS,
    "data": [*NO_DATA, (X, Y + 1), (X, torch.tensor([0, 1, 2, 3, -1, -1]))],
    "attack": [None, 3, "deepfol", "", "os:system", ":", [], {}, object(), nn.Linear, lambda x: x, lambda model, x: x],
    "out": [3, True, [], {}, object(), "\0", b"run"],
    "p": [None, "two", True, 0.5, -1, math.nan, 1j, [2], torch.ones(2), {}],
    "bounds": NO_BOUNDS,
    "arch": ["lenet-mnist", 3, NET],
    "split": [None, *NO_TEXTS, "train"],
    "size": NO_COUNTS,
    "limit": NO_COUNTS,
    "indices": ["0-", "a", "9-99", [99], [-1], [0.5], ["a"], [True], [None], 3, 0.5, {}, object(), [[0, 1]], [],
                torch.rand(2), torch.tensor([[0]]), [10**30]],
    "shard": ["1/2", 3, (0, 2), (3, 2), (1,), (1, 2, 3), ("a", "b"), (0.5, 2), (None, 1), (1, 0), {}, object()],
    "batch_size": ["many", None, *NO_COUNTS],
    "device": [None, "gpu", "", 3.5, [], object(), "cuda:99", "meta"],
    "dtype": [None, "float8", "int64", 3, torch.float32, [], object()],
    "seed": [None, *NO_NUMBERS, -1, 0.5, 10**30],
    "skip_misclassified": NO_FLAGS,
    "save_perturbations": NO_FLAGS,
    "compile": NO_FLAGS,
    "workers": NO_COUNTS,
    "engine": [None, "slurm", 3, [], object()],
    "ray_address": ["here:1", 3],
    "on_progress": [None, 3, "print"],
    "on_stop": [None, 3, "print"],
    "max_iter": NO_COUNTS,
    "no_such_knob": [1],
    "x": [1],
    "labels": [[0] * 6],
}  # fmt: skip


def evaluate_with(tmp_path, **given):
    return evaluate(
        given.pop("model", NET), given.pop("data", (X, Y)), given.pop("attack", "deepfool"),
        **{"out": tmp_path / "run", "device": "cpu", **given},
    )  # fmt: skip


FINETUNE = {
    "model": NO_MODELS,
    "data": [*NO_DATA, (X, Y + 1), (X, Y - 1)],
    "test": [*NO_DATA, (X, Y + 1), (X, Y - 1)],
    "perturb": [None, 3, "deepfol", "", "os:system", ":", [], {}, nn.Linear],
    "epochs": [None, *NO_NUMBERS, -1, 0.5],
    "lr_scale": [None, *NO_NUMBERS, 0, -1, math.inf],
    "magnify": [None, *NO_NUMBERS, 0, -1, math.inf],
    "recipe": ["sgd", 3, {}, object()],
    "learning_rate": [*NO_NUMBERS, 0, -1, math.inf],
    "fresh": NO_FLAGS,
    "mix": [None, *NO_NUMBERS, -0.1, 1.1],
    "judges": [None, 3, "deepfool", ["deepfol"], [3], {"a": 1}, ["os:system"], object()],
    "judged": NO_COUNTS,
    "seed": [None, *NO_NUMBERS, -1],
    "p": [None, "two", True, 0.5, math.nan, [2]],
    "bounds": NO_BOUNDS,
    "split": [*NO_TEXTS[:2], "train"],
    "test_split": [None, *NO_TEXTS[:2], "train"],
    "size": NO_COUNTS,
    "limit": NO_COUNTS,
    "batch_size": NO_COUNTS,
    "device": ["gpu", 3.5, object()],
    "cache": [3, True, [], object(), b"x"],
    "engine": ["slurm", 3],
    "workers": NO_COUNTS,
    "checkpoint": [3, True, [], object(), b"x"],
    "on_progress": [None, 3, "print"],
    "threshold": ["a", math.nan, True, [1]],
    "no_such_knob": [1],
}


def finetune_with(tmp_path, **given):
    given = {"cache": tmp_path, "epochs": 1, "device": "cpu", "max_iter": 2, "test": (X, Y), **given}
    return finetune(given.pop("model", NET), given.pop("data", (X, Y)), **given)


ROWS = [{"index": i, "label": 0, "adv_label": 1, "status": "FOOLED", "r_l2": 1.0, "x_l2": 2.0, "r_p": 1.0, "x_p": 2.0}
        for i in range(4)]  # fmt: skip
RECORDS = Records.of(ROWS, p=2)
NO_RECORDS = [None, "run", 3, [], {}, ROWS, object()]
NO_VALUES = [None, "a", 3, {}, object(), np.array(["a"]), np.ones((2, 2)), [1.0, "a"], np.array([1j])]
NO_CONFIDENCE = [None, *NO_NUMBERS, 0, 1, -1, 1.5, math.inf]
NO_NORM = [None, "l3", 2, "", [], object()]
NO_EPS = [None, *NO_NUMBERS, -1, math.inf]
VALUES = np.array([1.0, 2.0, 3.0])

OTHERS = [
    (Classifier, {"model": NET}, {
        "model": [None, "lenet", 3, [], X], "threshold": [*NO_NUMBERS, math.inf],
        "outputs": [None, "no", 0, True, []], "memory_budget": [None, *NO_COUNTS],
    }),
    (Run, {}, {"folder": [None, "nowhere", 3, True, [], {}, object(), b"x", "\0", ""]}),
    (datasets.load, {"spec": (X, Y)}, {
        "spec": NO_DATA, "split": [None, *NO_TEXTS, "train"], "size": NO_COUNTS,
    }),
    (models.load, {"name": "lenet-mnist"}, {
        "name": [None, "lenet", 3, "", [], {}, object()], "pretrained": ["no", 0, None, []],
    }),
    (models.resolve, {"spec": NET}, {"spec": NO_MODELS, "arch": ["lenet", 3], "device": [None, "gpu", 3.5, object()]}),
    (models.as_module, {"model": NET}, {"model": NO_MODELS}),
    (metrics.rho_adv, {"records": RECORDS}, {
        "records": NO_RECORDS, "norm": NO_NORM, "confidence": NO_CONFIDENCE, "seed": [*NO_NUMBERS, -1],
        "resamples": [None, *NO_COUNTS],
    }),
    (metrics.relative_distances, {"records": RECORDS}, {"records": NO_RECORDS, "norm": NO_NORM}),
    (metrics.mean_with_interval, {"values": VALUES}, {
        "values": NO_VALUES, "confidence": NO_CONFIDENCE, "seed": [*NO_NUMBERS, -1], "resamples": [None, *NO_COUNTS],
    }),
    (metrics.quantile, {"values": VALUES, "q": 0.5}, {
        "values": [*NO_VALUES, np.array([1.0, math.nan])], "q": [None, *NO_NUMBERS, -0.1, 1.1],
        "confidence": NO_CONFIDENCE,
    }),
    (metrics.share, {"count": 1, "total": 2}, {
        "count": [None, *NO_NUMBERS, -1, 3, 0.5], "total": [None, *NO_NUMBERS, -1, 0.5], "confidence": NO_CONFIDENCE,
    }),
    (metrics.distances, {"records": RECORDS}, {"records": NO_RECORDS, "norm": NO_NORM}),
    (metrics.accuracy_curve, {"records": RECORDS}, {
        "records": NO_RECORDS, "norm": NO_NORM,
        "eps": [None, "a", True, 1j, 0, -1, 0.5, [], [-1.0], [1.0, 0.5], [math.nan], [math.inf], ["a"], [[0.1]], {},
                object()],
    }),
    (metrics.accuracy_at, {"records": RECORDS, "eps": 0.1}, {"records": NO_RECORDS, "eps": NO_EPS, "norm": NO_NORM}),
    (metrics.fooled_within, {"records": RECORDS, "eps": 0.1}, {
        "records": NO_RECORDS, "eps": NO_EPS[:-1], "norm": NO_NORM,
    }),
    (metrics.confusion, {"records": RECORDS}, {"records": NO_RECORDS}),
    (metrics.per_class, {"records": RECORDS}, {
        "records": NO_RECORDS, "norm": NO_NORM, "seed": [*NO_NUMBERS, -1], "resamples": [None, *NO_COUNTS],
    }),
    (metrics.share_fooled, {"records": RECORDS}, {"records": NO_RECORDS}),
    (metrics.count_iterations, {"records": RECORDS}, {"records": NO_RECORDS}),
    (metrics.clean_accuracy, {"records": RECORDS}, {"records": NO_RECORDS}),
    (metrics.compare, {"a": RECORDS, "b": RECORDS}, {
        "a": NO_RECORDS, "b": NO_RECORDS, "norm": NO_NORM, "confidence": NO_CONFIDENCE, "seed": [*NO_NUMBERS, -1],
    }),
    (metrics.summarize, {}, {"run": [None, "nowhere", 3, RECORDS, object()]}),
    (metrics.find_warnings, {"records": RECORDS}, {"run": [None, "nowhere", 3, object()]}),
    (metrics.check_same_data, {"b": None}, {"a": [None, "nowhere", 3, RECORDS]}),
    (metrics.shared_norm, {"b": None, "norm": "p"}, {"a": [None, "nowhere", 3, RECORDS]}),
]  # fmt: skip


def told(value):
    text = f"{tuple(value.shape)} {value.dtype} {value.layout}" if isinstance(value, torch.Tensor) else repr(value)
    return re.sub(r" at 0x\w+|\s+", " ", text)[:40]


def lay_out(table):
    return [
        pytest.param(argument, value, id=f"{argument}-{told(value)}")
        for argument, values in table.items()
        for value in values
    ]


def check(message):
    assert len(message) < 700
    assert " " in message


@pytest.mark.parametrize(("argument", "value"), lay_out(EVALUATE))
def test_evaluate(argument, value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DeepFoolError) as caught:
        evaluate_with(tmp_path, **{argument: value})
    check(str(caught.value))


@pytest.mark.parametrize(("argument", "value"), lay_out(FINETUNE))
def test_finetune(argument, value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DeepFoolError) as caught:
        finetune_with(tmp_path, **{argument: value})
    check(str(caught.value))


@pytest.mark.parametrize(
    ("function", "good", "argument", "value"),
    [
        pytest.param(function, good, argument, value, id=f"{function.__name__}-{argument}-{told(value)}")
        for function, good, table in OTHERS
        for argument, values in table.items()
        for value in values
    ],
)
def test_other_functions(function, good, argument, value):
    with pytest.raises(DeepFoolError) as caught:
        function(**{**good, argument: value})
    check(str(caught.value))


def test_labels_beyond_the_classes_are_named(tmp_path):
    for run in (evaluate_with, finetune_with):
        with pytest.raises(DataError, match="has the label 3, but the model has 3 classes, 0 to 2"):
            run(tmp_path, data=(X, Y + 1))
    with pytest.raises(DataError, match="has the label 3"):
        finetune_with(tmp_path, data=(X, Y + 1), perturb="clean")


@pytest.mark.parametrize("perturb", ["deepfool", "fgsm", "clean"])
def test_a_threshold_holds_for_training_and_judges_too(perturb, tmp_path):
    """The score is the first feature: at 0.5 the model is right, at 0 it would call everything class 1."""
    net = nn.Linear(4, 1)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[1.0, 0, 0, 0]]))
        net.bias.zero_()
    x = torch.rand(40, 4, generator=torch.Generator().manual_seed(1))
    data = (x, (x[:, 0] > 0.5).long())
    tuned = finetune(
        net, data, test=data, perturb=perturb, epochs=1, judges=("deepfool", "fgsm"), judged=40, device="cpu",
        cache=tmp_path, threshold=0.5, learning_rate=1e-6,
    )  # fmt: skip
    assert tuned.epochs[0].test_error == 0
    judged = Run(tuned.epochs[0].runs["deepfool"])
    assert judged.identity["attack"]["knobs"]["threshold"] == 0.5
    assert {row["label"] for row in judged.rows()} == {0, 1}
    assert tuned.epochs[0].rho["fgsm"] < 1


def test_what_is_good_works(tmp_path):
    run = evaluate_with(
        tmp_path, limit=np.int64(4), batch_size=np.int64(2), seed=np.uint8(3), indices=np.array([0, 2, 4, 5, 1]),
        max_iter=np.int64(5), overshoot=np.float32(0.02), shard=(np.int64(1), 2), p=np.float64(2),
        save_perturbations=np.bool_(True),
    )  # fmt: skip
    assert [row["index"] for row in run.rows()] == [0, 2]
    assert evaluate_with(tmp_path / "b", data=(X, torch.full((6,), -1))).complete, "unknown labels stay allowed"
    finetune_with(tmp_path, epochs=np.int64(1), mix=np.float32(0.5), judged=np.int64(3), seed=np.int64(1))
    for function, good, _ in OTHERS[:19]:
        if function is not Run:
            function(**good)
