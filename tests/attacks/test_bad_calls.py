"""Every argument of every attack, given what it cannot use: an error of ours that names the argument, or it works.

A table of function, argument and bad value; and beside it the unusual values that are good (NumPy's scalars, lists,
tensors made in inference mode), and must work.
"""

import math
import re
import warnings
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

import deepfool as package
from deepfool import (
    Adversarial,
    affine,
    ddn,
    deepfool,
    fab,
    fgsm,
    fmn,
    lbfgs,
    sigma_zero,
    smallest,
    smallest_eps,
    sparsefool,
    superdeepfool,
)  # fmt: skip
from deepfool.attacks.tighten import tighten
from deepfool.errors import DeepFoolError, InputError

D, C, N = 4, 3, 2


def model():
    net = nn.Linear(D, C)
    with torch.no_grad():
        net.weight.copy_(torch.eye(C, D))
        net.bias.zero_()
    return net


def points():
    return torch.tensor([[0.6, 0.4, 0.1, 0.5], [0.2, 0.7, 0.3, 0.5]])


def quantised(*shape):
    with warnings.catch_warnings():  # torch is about to drop them; some still have them
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.ones(*shape), 0.1, 0, torch.quint8)


FOUND = deepfool(model(), points())

ATTACKS = {
    "deepfool": lambda **given: deepfool(given.pop("model"), given.pop("x"), **{"max_iter": 3, **given}),
    "superdeepfool": lambda **given: superdeepfool(given.pop("model"), given.pop("x"), **{"max_iter": 3, **given}),
    "smallest": lambda **given: smallest(given.pop("model"), given.pop("x"), **{"budget": 10, **given}),
    "ddn": lambda **given: ddn(given.pop("model"), given.pop("x"), **{"steps": 3, **given}),
    "fmn": lambda **given: fmn(given.pop("model"), given.pop("x"), **{"steps": 3, **given}),
    "fab": lambda **given: fab(given.pop("model"), given.pop("x"), **{"steps": 3, **given}),
    "sparsefool": lambda **given: sparsefool(
        given.pop("model"), given.pop("x"), **{"max_iter": 3, "bounds": (0, 1), **given}
    ),
    "sigma_zero": lambda **given: sigma_zero(
        given.pop("model"), given.pop("x"), **{"steps": 3, "bounds": (0, 1), **given}
    ),
    "fgsm": lambda **given: fgsm(given.pop("model"), given.pop("x"), **{"eps": 0.1, **given}),
    "lbfgs": lambda **given: lbfgs(given.pop("model"), given.pop("x"), **{"max_iter": 2, "brackets": 2, **given}),
    "tighten": lambda **given: tighten(
        given.pop("model"), given.pop("x"), given.pop("adversarial", FOUND), **{"steps": 3, **given}
    ),
    "smallest_eps": lambda **given: smallest_eps(
        given.pop("model"), given.pop("data", (given.pop("x"), torch.tensor([0, 1]))), **{"grid": 2, **given}
    ),
}

NO_NUMBERS = [None, "0.5", b"1", True, np.bool_(True), 1j, math.nan, [0.5], torch.ones(2), {}, object()]
NO_POSITIVE = [*NO_NUMBERS, -1.0, 0, math.inf, -math.inf, 10**400]
NO_COUNTS = [*NO_NUMBERS, -1, 0, 2.0, math.inf, 10**30]
NO_OPTIONAL_COUNTS = [value for value in NO_COUNTS if value is not None]
NO_SHARES = [*NO_NUMBERS, -0.1, 1.5, math.inf]
NO_UNITS = [None, "voxel", 3, True, ["pixel"], object()]
NO_FLAGS = ["no", "yes", 0, 1, None, [], torch.tensor(True), math.nan]
NO_NORMS = [None, "two", True, np.bool_(True), 0.5, -1, math.nan, 1j, [2], torch.ones(2), {}]
NO_TENSORS = [
    None, "x", b"x", 3, 0.5, [[0.1] * D] * N, np.ones((N, D)), {}, object(), torch.ones(N, D).long(),
    torch.ones(N, D).bool(), torch.ones(N, D).to(torch.complex64), torch.tensor(0.5), torch.ones(N, D).to_sparse(),
    torch.ones(N, D, device="meta"),
    quantised(N, D), torch.full((N, D), math.nan),
    torch.full((N, D), -math.inf), torch.ones(N, D).to(torch.float8_e4m3fn),
]  # fmt: skip
NO_LABELS = [
    "01", [0.0, 1.0], [0, None], [[0, 1]], [0], 3.5, math.nan, {}, object(), [True, False], torch.tensor([0.0, 1.0]),
    torch.tensor([[0, 1]]), torch.tensor([0, 7]), torch.tensor([-1, 0]), [0, 10**30], torch.tensor([0, 1]).to_sparse(),
    torch.zeros(N, dtype=torch.long, device="meta"), torch.tensor([0j, 1j]), [[0], [0, 1]], np.array(["a", "b"]),
]  # fmt: skip
NO_TARGETS = [*NO_LABELS, True, -1, C, 10**30, "cat", np.int64(C), torch.tensor(9)]
NO_MASKS = [
    "all", {}, object(), [1, 0], torch.ones(7), torch.ones(N, D, 1), torch.full((D,), math.nan), math.nan, 1j,
    torch.ones(D).to(torch.complex64), torch.ones(D).to_sparse(), torch.ones(D, device="meta"), [[1], [0, 1]],
    quantised(D), np.array(["a"] * D),
]  # fmt: skip
NO_BOUNDS = [
    "01", 3, {}, object(), (0,), (0, 1, 2), (1, 0), (None, 1), ("0", "1"), (math.nan, 1), (0, 1j), (0.5, 1),
    torch.tensor([0.0, 1.0]), (torch.zeros(7), 1), (torch.zeros(D).to_sparse(), 1), (torch.zeros(D, device="meta"), 1),
    (torch.zeros(D).to(torch.complex64), 1), (np.zeros(3), 1), ([[0], [0, 1]], 1),
]  # fmt: skip
NO_THRESHOLDS = [value for value in [*NO_NUMBERS, math.inf, -math.inf, 10**400] if value is not None]
NO_MODELS = [None, "lenet-mnist", 3, {}, object(), torch.ones(3, D), [nn.Linear(D, C)]]
NO_START = [value for value in NO_TENSORS if value is not None] + [torch.ones(N, D + 1), torch.ones(N)]

COMMON = {
    "model": NO_MODELS, "x": NO_TENSORS, "bounds": NO_BOUNDS, "labels": NO_LABELS, "target": NO_TARGETS,
    "mask": NO_MASKS, "threshold": NO_THRESHOLDS, "tighten": NO_FLAGS,
    "outputs": [None, "scores", 0, True, [], object()],
}  # fmt: skip
OWN = {
    "deepfool": {
        "p": NO_NORMS, "overshoot": [*NO_NUMBERS, -0.1, math.inf], "max_iter": NO_COUNTS,
        "candidates": ["some", *NO_OPTIONAL_COUNTS],
    },
    "superdeepfool": {
        "overshoot": [*NO_NUMBERS, -0.1, math.inf], "max_iter": NO_COUNTS, "turns": NO_COUNTS,
        "candidates": NO_OPTIONAL_COUNTS,
    },
    "smallest": {
        "p": [*NO_NORMS, 3], "budget": [*NO_OPTIONAL_COUNTS, 9], "candidates": NO_OPTIONAL_COUNTS,
        "seed": [*NO_NUMBERS, -1, 0.5, 10**30], "unit": [*NO_UNITS, "pixel"],
    },
    "ddn": {
        "steps": NO_COUNTS, "step_size": NO_POSITIVE, "first_norm": NO_POSITIVE, "gamma": [*NO_SHARES, 0, 1],
        "sharpness": NO_POSITIVE, "start": NO_START,
    },
    "fmn": {
        "p": [*NO_NORMS, 3], "steps": NO_COUNTS, "step_size": NO_POSITIVE, "gamma": [*NO_SHARES, 0, 1],
        "start": NO_START,
    },
    "fab": {
        "p": [*NO_NORMS, 3], "steps": NO_COUNTS, "alpha_max": NO_SHARES, "beta": NO_SHARES,
        "eta": [*NO_NUMBERS, 0.5, math.inf], "candidates": NO_OPTIONAL_COUNTS, "one_by_one": NO_OPTIONAL_COUNTS,
    },
    "sparsefool": {
        "max_iter": NO_COUNTS, "inner_iter": NO_COUNTS, "push": NO_POSITIVE, "overshoot": [*NO_NUMBERS, -0.1, math.inf],
        "unit": NO_UNITS, "bounds": [*NO_BOUNDS, None],
    },
    "sigma_zero": {
        "steps": NO_COUNTS, "step_size": NO_POSITIVE, "sigma": NO_POSITIVE, "first_cut": [*NO_SHARES, 0, 1],
        "cut_step": [*NO_SHARES, 0, 1], "unit": NO_UNITS, "bounds": [*NO_BOUNDS, None],
    },
    "fgsm": {"eps": NO_POSITIVE},
    "lbfgs": {
        "candidates": NO_COUNTS, "max_iter": NO_COUNTS, "brackets": NO_COUNTS, "bisections": [*NO_NUMBERS, -1, 2.0],
        "sharpness": NO_POSITIVE,
    },
    "tighten": {
        "adversarial": [None, "found", 3, FOUND.x, {}, [FOUND], Adversarial.empty(torch.rand(0, D), 2)],
        "steps": NO_COUNTS, "precision": [*NO_SHARES, 0, 1],
    },
    "smallest_eps": {
        "data": [
            None, "mnist", 3, {}, points(), [], (points(), None), (points(), "01"), (points(), [0]), (points(), 1),
            ([[0.1] * D] * N, [0, 1]), [points()], [(points(), [0, 1], 3)], (points().long(), [0, 1]),
            (points().to_sparse(), [0, 1]), (points().to("meta"), [0, 1]), (points(), torch.tensor([0, 9])),
            (points(), torch.rand(N)), (torch.tensor(0.5), [0]), ("x", [0, 1]), iter([3]), (points()[:0], []),
        ],
        "share": [*NO_SHARES, 0], "highest": [value for value in NO_POSITIVE if value is not None],
        "grid": [*NO_COUNTS, 1], "precision": [*NO_SHARES, 0, 1], "batch_size": NO_COUNTS,
    },
}  # fmt: skip
WITHOUT = {
    "smallest": ("tighten",),
    "sparsefool": ("tighten",),
    "sigma_zero": ("tighten",),
    "tighten": ("labels", "mask", "tighten"),
    "smallest_eps": ("x", "labels", "target", "tighten"),
}


def calls():
    for name in ATTACKS:
        table = {key: values for key, values in COMMON.items() if key not in WITHOUT.get(name, ())} | OWN[name]
        for argument, values in table.items():
            yield from ((name, argument, value) for value in values)


def told(value):
    text = f"{tuple(value.shape)} {value.dtype} {value.layout}" if isinstance(value, torch.Tensor) else repr(value)
    return re.sub(r" at 0x\w+|\s+", " ", text)[:40]


@pytest.mark.parametrize(
    ("name", "argument", "value"), [pytest.param(*call, id=f"{call[0]}-{call[1]}-{told(call[2])}") for call in calls()]
)
def test_what_cannot_be_used_is_refused(name, argument, value):
    with pytest.raises(DeepFoolError) as caught:
        ATTACKS[name](**{"model": model(), "x": points(), argument: value})
    message = str(caught.value)
    words = {"data": "data|label|x must", "bounds": r"bounds|x must lie in \["}
    assert re.search(words.get(argument, rf"\b{argument}\b"), message), message
    assert len(message) < 400


def test_there_are_enough_of_them():
    assert len(list(calls())) > 900


GOOD = [
    ("deepfool", {"max_iter": np.int64(5), "overshoot": np.float32(0.02), "tighten": np.bool_(True), "p": np.int8(2)}),
    ("deepfool", {"candidates": np.int32(2), "threshold": np.float64(0.5), "target": np.int64(2)}),
    ("deepfool", {"overshoot": Fraction(1, 50), "target": torch.tensor(2), "max_iter": torch.tensor(5)}),
    ("deepfool", {"mask": np.array([1, 1, 0, 0]), "bounds": (np.zeros(D), np.float32(1)), "labels": np.array([0, 1])}),
    ("deepfool", {"mask": [[True] * D] * N, "bounds": [0, [1.0] * D], "labels": (0, 1), "target": [1, 0]}),
    ("superdeepfool", {"turns": np.int8(3), "candidates": np.int64(2), "tighten": np.bool_(False)}),
    ("smallest", {"budget": np.int64(50), "seed": np.uint64(3), "candidates": np.int16(2)}),
    ("ddn", {"steps": np.int64(5), "step_size": np.float32(1), "gamma": np.float16(0.05), "start": FOUND}),
    ("fmn", {"steps": np.int64(5), "step_size": np.float64(1), "start": FOUND.x}),
    ("fab", {"steps": np.int64(5), "eta": np.float32(1.05), "one_by_one": np.int64(2)}),
    ("sparsefool", {"max_iter": np.int64(3), "push": np.float32(1.5), "overshoot": np.float16(0.02)}),
    ("sigma_zero", {"steps": np.int8(5), "sigma": np.float32(1e-3), "first_cut": np.float64(0.2)}),
    ("smallest", {"p": np.int8(0), "bounds": (0, 1)}),
    ("fgsm", {"eps": np.float32(0.1)}),
    ("lbfgs", {"candidates": np.int64(2), "sharpness": np.float32(1), "bisections": np.int64(0)}),
    ("tighten", {"steps": np.int64(5), "precision": np.float32(1e-3)}),
    ("smallest_eps", {"share": np.float32(0.5), "grid": np.int64(4), "highest": np.float64(2)}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given"), GOOD)
def test_scalars_of_numpy_and_lists_will_do(name, given):
    ATTACKS[name](**{"model": model(), "x": points(), **given})


@pytest.mark.parametrize("name", [name for name in ATTACKS if name not in ("tighten", "smallest_eps")])
def test_unusual_tensors_that_hold_good_values_will_do(name):
    net = model()
    expected = ATTACKS[name](model=net, x=points()).x
    with torch.inference_mode():
        made = points()
        inside = ATTACKS[name](model=net, x=made).x
    for x in (made, points().requires_grad_(), points().T.contiguous().T, nn.Parameter(points())):
        torch.testing.assert_close(ATTACKS[name](model=net, x=x).x, expected)
    torch.testing.assert_close(inside, expected)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *(("weight", value) for value in [*NO_TENSORS, torch.ones(2, 3, D), torch.ones(0, D), torch.ones(C, D + 1)]),
        *(("bias", value) for value in [*NO_TENSORS[:-1], torch.ones(2, C), torch.ones(C + 1)]),
        *(("x", value) for value in [*NO_TENSORS, torch.ones(N, D + 1), torch.ones(D), torch.ones(N, D).double()]),
        *(("p", value) for value in NO_NORMS),
        *(("bounds", value) for value in NO_BOUNDS),
    ],
    ids=lambda value: told(value),
)  # fmt: skip
def test_affine(argument, value):
    given = {"weight": torch.eye(C, D), "bias": torch.zeros(C), "x": points(), argument: value}
    with pytest.raises(InputError):
        affine(given.pop("weight"), given.pop("bias"), given.pop("x"), **given)


def test_bounds_keep_the_precision_of_x():
    x = torch.tensor([[0.1, 0.5, 0.5, 0.5]], dtype=torch.float64)
    result = deepfool(model().double(), x, bounds=(0.1, 0.9))
    assert result.x.min() >= 0.1


def test_every_function_is_in_the_table():
    functions = {name for name in package.__all__ if name.islower() and callable(getattr(package, name))}
    others = {"audit", "certifiable", "certify", "evaluate", "finetune", "affine", "universal"}
    assert functions - others == set(ATTACKS)
