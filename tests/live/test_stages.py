"""What the page is told is what the attacks find."""

import base64
import itertools
import json
import math

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import deepfool
from deepfool.cli import app
from deepfool.datasets import load
from deepfool.live import plane, stages
from deepfool.live.exhibit import open_exhibit
from deepfool.live.plane import Plane, find_plane, survey
from deepfool.live.questions import read_question
from deepfool.live.scenes import Scene
from deepfool.live.tracing import trace
from deepfool.models.sources import resolve
from tests import nets
from tests.live.conftest import about_sample

SAMPLE = 7


@pytest.fixture(scope="module")
def exhibit():
    return open_exhibit(
        [resolve("lenet-mnist"), resolve("mlp-mnist-small")], load("mnist-sample"), data_spec="mnist-sample"
    )


@pytest.fixture(scope="module")
def table():
    return open_exhibit([resolve("py:tests.nets:small")], load(nets.points(50)))


def ask(exhibit, **more):
    """{event: [fields]} of all stages."""
    told = {}
    for name, fields in stages.work(read_question(about_sample(SAMPLE, **more), exhibit), exhibit):
        told.setdefault(name, []).append(json.loads(json.dumps(fields, allow_nan=False)))
    return told


def numbers(text):
    return torch.from_numpy(np.frombuffer(base64.b64decode(text), "<f4").copy())


@pytest.fixture(scope="module")
def told(exhibit):
    return ask(exhibit, sides=[{"model": 0, "attack": "smallest"}])


def test_the_answers_are_those_of_the_attacks(exhibit, told):
    x = exhibit.data.batch([SAMPLE])
    for answer, attack in zip(told["answer"], (deepfool.deepfool, deepfool.smallest), strict=True):
        found = attack(exhibit.models[0].module, x, bounds=(0, 1))
        assert answer["fooled"]
        assert answer["adv_label"] == int(found.adv_label)
        assert math.isclose(answer["norm"], float(found.norm), rel_tol=1e-3)
        assert torch.allclose(numbers(answer["r"]), found.r.flatten(), atol=1e-3)
        assert answer["scores"][0][0] == answer["adv_label"]
    assert told["answer"][1]["norm"] < told["answer"][0]["norm"]
    assert told["input"][0]["label"] == told["input"][0]["true"] == int(exhibit.data.labels[SAMPLE])
    assert torch.allclose(numbers(told["input"][0]["x"]), x.flatten())


def test_the_walk_begins_at_the_input_and_crosses_the_boundary(told):
    for walk, answer in zip(told["walk"], told["answer"], strict=True):
        shares = dict(zip(walk["classes"], walk["shares"], strict=True))
        assert walk["t"][0] == 0
        assert walk["t"][-1] == 3
        before, after = shares[answer["label"]], shares[answer["adv_label"]]
        assert before[0] > after[0]
        assert before[-1] < after[-1]
        at_one = walk["t"].index(1)
        assert math.isclose(after[at_one], answer["scores"][0][1], abs_tol=1e-3)


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("bounds", [None, (0, 1)])
def test_a_trace_is_deepfool_and_its_steps_add_up(p, bounds):
    model, x = nets.small(), nets.points(12)[0]
    for row in x.unsqueeze(1):
        found, steps = trace(model, row, p=p, bounds=bounds)
        plain = deepfool.deepfool(model, row, p=p, bounds=bounds)
        assert torch.allclose(found.r, plain.r)
        assert int(found.iterations) == int(plain.iterations) == len(steps)
        for before, step in zip([None, *steps], steps, strict=False):
            r_i = step.r - (0 if before is None else before.r)
            assert math.isclose(float(torch.linalg.vector_norm(r_i, p)), step.length, rel_tol=1e-4, abs_tol=1e-6)
            assert step.nearest != int(found.label)
        if bounds is None:
            assert torch.allclose(1.02 * steps[-1].r, found.r[0], atol=1e-6)


def test_the_steps_lead_to_the_answer(told):
    steps, answer = told["steps"][0]["steps"], told["answer"][0]
    assert len(steps) == answer["iterations"]
    assert steps[-1]["total"] <= answer["norm"] <= 1.03 * steps[-1]["total"]
    assert steps[-1]["nearest"] == answer["adv_label"]
    assert all(before["before"] > after["before"] for before, after in itertools.pairwise(steps))


def test_the_map_shows_what_the_model_says(exhibit, told):
    """Points of the finest grid, classified again one by one: next to all of them agree."""
    first, last = told["map"][0], told["map"][-1]
    n, half = last["n"], first["half"]
    labels = np.frombuffer(base64.b64decode(last["labels"]), np.uint8).reshape(n, n)
    u, v, x = numbers(first["u"]), numbers(first["v"]), numbers(told["input"][0]["x"])
    assert abs(float(u @ v)) < 1e-4
    draw = np.random.default_rng(0)
    where = draw.integers(0, n, (300, 2))
    a = torch.from_numpy(2 * where[:, 1] / (n - 1) - 1).float()[:, None] * half
    b = torch.from_numpy(1 - 2 * where[:, 0] / (n - 1)).float()[:, None] * half
    with torch.no_grad():
        true = exhibit.models[0].module((x + a * u + b * v).reshape(-1, 1, 28, 28)).argmax(1)
    shown = torch.tensor([last["classes"][labels[i, j]] for i, j in where])
    assert (shown == true).float().mean() > 0.98
    best = min(told["answer"], key=lambda answer: answer["norm"])
    assert torch.allclose(torch.tensor(first["found"]), torch.tensor([best["norm"], 0.0]), atol=1e-3)
    assert first["path"][0] == [0, 0]
    assert len(first["path"]) == len(told["steps"][0]["steps"]) + 1


def test_refining_finds_what_classifying_everything_finds(monkeypatch, table):
    scene = Scene(
        0,
        read_question(about_sample(3, bounds=None), table).sides[0],
        read_question(about_sample(3, bounds=None), table),
        table,
    )
    list(stages.look(scene))
    list(stages.run_deepfool(scene))
    flat = find_plane(scene, scene.best.r, scene.best.adv_label)
    *_, (full, _) = survey(scene, flat)
    monkeypatch.setattr(plane, "IN_FULL", 0.0)
    monkeypatch.setattr(plane, "ENOUGH", math.inf)
    *_, (refined, _) = survey(scene, flat)
    assert full.shape == refined.shape == (129, 129)
    assert (full == refined).mean() > 0.995


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_balls_have_their_radius_all_around(p):
    torch.manual_seed(3)
    u, v = torch.linalg.qr(torch.randn(30, 2, dtype=torch.float64))[0].T
    flat = Plane(torch.zeros(30), u, v, 1.0, None, None)
    for a, b in flat.ball(0.7, p):
        assert math.isclose(float(torch.linalg.vector_norm(a * u + b * v, p)), 0.7, rel_tol=1e-9)


def test_masks_targets_and_norms_reach_the_attacks(exhibit):
    half = np.zeros((28, 28), np.uint8)
    half[:, :14] = 1
    target = 2 if int(exhibit.data.labels[SAMPLE]) != 2 else 3
    told = ask(exhibit, mask=base64.b64encode(half.tobytes()).decode(), target=target, p="inf",
               sides=[{"model": 0, "attack": "deepfool"}, {"model": 1, "attack": "fmn"}])  # fmt: skip
    for answer in told["answer"]:
        assert answer["adv_label"] == target
        r = numbers(answer["r"]).reshape(28, 28)
        assert (r[:, 14:] == 0).all()
        assert math.isclose(answer["norm"], float(r.abs().max()), rel_tol=1e-4)
    assert {(answer["side"], answer["attack"]) for answer in told["answer"]} == {
        (0, "deepfool"),
        (1, "deepfool"),
        (1, "fmn"),
    }


@pytest.mark.parametrize("goal", ["top:3", "confidence:0.9", "margin:4"])
def test_goals_reach_the_attacks(exhibit, goal):
    """The answers are those of the goal, the downloads keep to it, and the programs name it."""
    told = ask(exhibit, goal=goal, sides=[{"model": 1, "attack": "smallest"}])
    model = exhibit.models[1].module
    x = numbers(told["input"][0]["x"]).reshape(1, 1, 28, 28)
    label = told["input"][0]["label"]
    for answer in told["answer"]:
        assert answer["fooled"]
        z = model(x + numbers(answer["r"]).reshape(x.shape)).detach()[0]
        others = z[[k for k in range(10) if k != label]]
        if goal == "top:3":
            assert int((others >= z[label] - 1e-5).sum()) >= 3
        elif goal == "margin:4":
            assert float(others.max() - z[label]) >= 4 - 1e-3
        else:
            assert float(z.softmax(0)[answer["adv_label"]]) >= 0.9 - 1e-3
    assert f"--goal {goal}" in told["kept"][0]["command"]
    assert f"goal='{goal}'" in told["kept"][0]["python"]
    bound = told["bound"][0]
    if goal == "margin:4":
        assert bound["lower"] <= min(answer["norm"] for answer in told["answer"]) * (1 + 1e-6)
    else:
        assert goal.partition(":")[0] in bound["reason"]  # which goals have no proof is said
    assert told["map"]


def test_two_attacks_are_compared_by_their_own_answers(exhibit):
    told = ask(exhibit, sides=[{"model": 0, "attack": "deepfool"}, {"model": 0, "attack": "fgsm"}])
    assert [each["attack"] for each in told["kept"]] == ["deepfool", "fgsm"]
    assert [each["attack"] for each in told["map"] if "attack" in each] == ["deepfool", "fgsm"]


def test_a_row_is_answered_inside_the_box_of_its_data(table):
    told = ask(table, bounds="data", sides=[{"model": 0, "attack": "smallest"}])
    rows = nets.points(50)[0]
    for answer in told["answer"]:
        y = numbers(told["input"][0]["x"]) + numbers(answer["r"])
        assert not answer["fooled"] or ((y >= rows.amin(0) - 1e-5) & (y <= rows.amax(0) + 1e-5)).all()
    assert "perturbation" not in told["answer"][0]


def test_what_cannot_be_fooled_is_said_and_not_drawn():
    flat = open_exhibit([resolve(nets.Flat())], load((torch.full((10, 6), 0.2), torch.zeros(10, dtype=torch.long))))
    told = ask(flat, bounds=None)
    assert not told["answer"][0]["fooled"]
    assert told["answer"][0]["reason"]
    assert "no plane" in told["nomap"][0]["why"]
    assert not {"walk", "map", "kept"} & set(told)


def test_what_is_proven_lies_below_what_was_found(exhibit):
    """On a small network, in linf; and of the table's network, which has a tanh, it is said why there is no proof."""
    told = ask(exhibit, p="inf", sides=[{"model": 1, "attack": "smallest"}])
    bound = told["bound"][0]
    assert 0 < bound["lower"] <= min(answer["norm"] for answer in told["answer"]) * (1 + 1e-6)
    u, v = (numbers(told["map"][0][name]).double() for name in "uv")
    for a, b in bound["line"]:
        assert math.isclose(float((a * u + b * v).abs().max()), bound["lower"], rel_tol=1e-4)


def test_a_model_without_a_proof_says_why():
    exhibit = open_exhibit([resolve("py:tests.nets:unproved")], load(nets.points(50)))
    bound = ask(exhibit, bounds=None)["bound"][0]
    assert bound["lower"] == 0
    assert "gelu" in bound["reason"].lower()


def test_the_command_and_the_program_make_the_same_again(exhibit, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept, best = told["kept"][0], told["answer"][1]
    (tmp_path / "original.png").write_bytes(base64.b64decode(kept["original"].partition(",")[2]))
    done = CliRunner().invoke(app, [*kept["command"].split()[1:], "--json"])
    assert done.exit_code == 0, done.output
    again = json.loads(done.stdout)["attacks"][0]
    assert again["adv_label"] == best["adv_label"]
    assert math.isclose(again["norm"], best["norm"], rel_tol=1e-3)
    namespace = {}
    exec(kept["python"], namespace)
    assert math.isclose(float(namespace["found"].norm), best["norm"], rel_tol=1e-3)
