"""Tables with a schema: answers are valid rows, on affine models as small as HiGHS or trying all rows finds."""

import json
import math

import numpy as np
import pandas
import pytest
import torch
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from torch import nn

from deepfool import Feature, Schema, deepfool, smallest
from deepfool.attacks.shared.cheapest import Moves, find_cheapest
from deepfool.errors import DataError, InputError
from tests.tables import draw_table, list_pairs, list_rows, solve_milp

WORK = Feature("work", "one-hot", categories=["office", "field", "home"], cost=0.7)
PLAIN = Schema([
    Feature("income", low=0, high=9, cost=2.0), Feature("age", "integer", 18, 90, "up", shift=40, scale=12), WORK,
    Feature("born", "integer", change="none"), Feature("debt", "integer", 0, 20, "down", scale=2),
])  # fmt: skip
TABLE = {"income": [3.5, 8.0], "age": [30, 60], "work": ["field", "home"], "born": [7, 3], "debt": [12, 0]}


@pytest.mark.parametrize("p", [1, math.inf])
def test_affine_models_against_a_mixed_integer_program(p):
    """Those rows that no valid change can flip are found out too; `benchmarks/schemas.py` has more of them."""
    rng, ratios, none = np.random.default_rng(11), [], 0
    for _ in range(30):
        schema, x, model = draw_table(rng)
        found = deepfool(model, x, p=p, schema=schema)
        schema.check(found.x)
        for i, row in enumerate(x.numpy()):
            exact = min(solve_milp(schema, row, g, gap, p) for g, gap in list_pairs(model, row))
            if math.isinf(exact):
                none += 1
                assert not found.fooled[i]
                assert found.reason[i]
            else:
                ratios.append(float(found.norm[i]) / exact)
    assert len(ratios) >= 45
    assert none > 0
    assert min(ratios) > 1 - 1e-4
    assert np.quantile(ratios, 0.95) < 1.001
    assert max(ratios) < 1.02


@pytest.mark.parametrize("p", [1, 2, math.inf])
def test_against_all_rows(p):
    """Where nothing is continuous, all valid rows can be tried: of an affine model, and of a network that bends."""
    rng, ratios = np.random.default_rng(5), {"affine": [], "network": []}
    for seed in range(12):
        schema, x, _ = draw_table(rng, small=True)
        table = schema.decode(x)
        schema = Schema([each for each in schema.features if each.kind != "continuous"])
        x, d = schema.encode(table).double(), schema.columns
        torch.manual_seed(seed)
        affine, net = nn.Linear(d, 3), nn.Sequential(nn.Linear(d, 12), nn.Tanh(), nn.Linear(12, 3))
        weights = np.ones(d) if schema.weights is None else np.array(schema.weights)
        for name, model in (("affine", affine.double()), ("network", net.double())):
            (model if name == "affine" else model[0]).weight.data /= torch.tensor(schema.scale) / 3
            found = deepfool(model, x, p=p, schema=schema)
            schema.check(found.x)
            for i, row in enumerate(x.numpy()):
                rows = list_rows(schema, row)
                other = model(torch.tensor(rows)).argmax(1).numpy() != int(found.label[i])
                exact = np.linalg.norm(weights * (rows - row), p, axis=1)[other].min(initial=math.inf)
                assert math.isinf(exact) or name == "network" or found.fooled[i]
                if math.isfinite(exact) and found.fooled[i]:
                    ratios[name].append(float(found.norm[i]) / exact)
    assert len(ratios["affine"]) >= 8
    assert len(ratios["network"]) >= 8
    assert np.array(ratios["affine"]) == pytest.approx(1, rel=1e-4)
    assert np.min(ratios["network"]) > 1 - 1e-4
    assert np.mean(ratios["network"]) < 1.1


@pytest.mark.parametrize("attack", [deepfool, smallest], ids=lambda each: each.__name__)
@pytest.mark.parametrize("p", [1, 2, math.inf])
def test_rows_keep_to_the_schema(attack, p):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(PLAIN.columns, 16), nn.ReLU(), nn.Linear(16, 3))
    x = PLAIN.encode(TABLE)
    net[-1].bias.data -= net(x).mean(0).detach()  # so that the decisions are close
    found = attack(net, x, p=p, schema=PLAIN)
    assert found.fooled.all()
    PLAIN.check(found.x)
    before, after = PLAIN.decode(x), PLAIN.decode(found.x)
    assert after["born"] == before["born"]
    assert all(b >= a for a, b in zip(before["age"], after["age"], strict=True))
    assert all(b <= a for a, b in zip(before["debt"], after["debt"], strict=True))
    assert torch.equal(net(found.x).argmax(1), found.adv_label)
    weights = torch.tensor(PLAIN.weights)
    assert torch.allclose((weights * found.r).norm(p, dim=1), found.norm, rtol=1e-4)


def test_goals_masks_and_bounds():
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(PLAIN.columns, 16), nn.ReLU(), nn.Linear(16, 1))
    x = PLAIN.encode(TABLE)
    moved = deepfool(net, x, schema=PLAIN, goal="within:0.05")
    assert moved.fooled.all()
    assert ((net(moved.x) - net(x)).abs() >= 0.05 - 1e-5).all()
    PLAIN.check(moved.x)
    mask = torch.ones(PLAIN.columns)
    mask[2] = 0  # one column of a group: the group stays
    kept = deepfool(net, x, schema=PLAIN, goal="within:0.05", mask=mask)
    assert (kept.r[:, 2:5] == 0).all()
    narrow = deepfool(net, x, schema=PLAIN, goal="within:0.05", bounds=(x - 0.5, x + 0.5))
    assert ((narrow.x - x).abs() <= 0.5 + 1e-6).all()


def test_what_has_no_gradient_is_climbed():
    class Steps(nn.Module):
        """As a tree decides: by comparisons."""

        def forward(self, x):
            score = ((x[:, 0] > 5).float() + (x[:, 5] < 4).float() - 1.5 + 0 * x.sum(1)).detach()
            return torch.stack([-score, score], 1)

    schema = Schema([*PLAIN.features[:1], *PLAIN.features[2:]])  # income, work (1 to 3), born, debt
    x = schema.encode({name: values[:1] for name, values in TABLE.items()})
    found = smallest(Steps(), x, p=1, schema=schema)
    assert found.fooled.all()
    after = schema.decode(found.x)
    assert after["income"][0] > 5
    assert after["debt"][0] < 8  # 2 * 4: the scale
    assert after["work"] == ["field"]  # nothing that is not needed


def test_solver_small_cases():
    steps = Moves(np.array([-4.0, 0.0]), np.array([4.0, 10.0]), np.array([1.0, 0.0]), [])
    assert find_cheapest(steps, np.array([2.0, 1.0]), 4.5, 1) == pytest.approx([2, 0.5])
    assert find_cheapest(steps, np.array([2.0, 1.0]), 5.0, math.inf) == pytest.approx([2, 2])
    assert find_cheapest(steps, np.array([0.0, -1.0]), 5.0, 2) is None
    free = Moves(np.array([-np.inf, -1.0]), np.array([np.inf, 1.0]), np.zeros(2), [])
    assert find_cheapest(free, np.array([3.0, 4.0]), 5.0, 2) == pytest.approx([0.6, 0.8])
    assert find_cheapest(free, np.array([3.0, 4.0]), 10.0, 2) == pytest.approx([2, 1])
    assert find_cheapest(free, np.array([3.0, 4.0]), 10.0, 1) == pytest.approx([2, 1])


def test_files_frames_and_scalers(tmp_path):
    assert Schema.of_dict(PLAIN.as_dict()) == PLAIN
    (tmp_path / "s.json").write_text(json.dumps(PLAIN.as_dict()))
    assert Schema.read(tmp_path / "s.json") == PLAIN
    (tmp_path / "s.toml").write_text('[[feature]]\nname = "age"\nkind = "integer"\nlow = 18\nchange = "up"\n')
    assert Schema.read(tmp_path / "s.toml").features == (Feature("age", "integer", 18, change="up"),)
    frame = pandas.DataFrame({"a": [1, 2, 6], "b": [0.5, 1.5, 2.5], "c": ["x", "y", "x"], "d": [True, False, True]})
    schema = Schema.of_frame(frame, fixed=["d"], down=["b"])
    assert [(each.kind, each.change) for each in schema.features] == [
        ("integer", "any"), ("continuous", "down"), ("one-hot", "any"), ("integer", "none"),
    ]  # fmt: skip
    x = schema.encode(frame)
    assert x[:, 0].mean().abs() < 1e-6
    assert x[:, 1].std(unbiased=False) == pytest.approx(1, rel=1e-5)
    assert schema.decode(x)["c"] == ["x", "y", "x"]
    assert schema.decode(x)["a"] == [1, 2, 6]
    raw = Schema.of_frame(frame, standardise=False)
    columns = raw.encode(frame).numpy()
    for scaler in (StandardScaler(), MinMaxScaler()):
        behind = raw.behind(scaler.fit(columns))
        assert torch.allclose(behind.encode(frame), torch.tensor(scaler.transform(columns)).float(), atol=1e-5)
        behind.check(scaler.transform(columns))
        assert behind.weights == pytest.approx([raw.features[0].cost * behind.scale[0], *behind.weights[1:]])
    dropped = Schema([Feature("c", "one-hot", categories=["y"], rest="x")])
    assert dropped.encode(frame).tolist() == [[0], [1], [0]]
    assert dropped.decode(dropped.encode(frame))["c"] == ["x", "y", "x"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Feature("a", "number"), "kind of a must be one of"),
        (lambda: Feature("a", change="left"), "change of a must be one of"),
        (lambda: Feature("a", low=2, high=1), "low must not exceed high"),
        (lambda: Feature("a", low="x"), "low must be a number"),
        (lambda: Feature("a", cost=0), "cost must be a number > 0"),
        (lambda: Feature("a", scale=-1.0), "scale must be > 0"),
        (lambda: Feature("a", scale=[1, 2]), "one for each of 1 columns"),
        (lambda: Feature("a", "one-hot"), "categories belong to one-hot"),
        (lambda: Feature("a", categories=["x"]), "categories belong to one-hot"),
        (lambda: Feature("a", "one-hot", categories=["x", "x"]), "must differ"),
        (lambda: Feature("a", "one-hot", change="up", categories=["x", "y"]), "neither up nor down"),
        (lambda: Feature("a", rest="x"), "only one-hot"),
        (lambda: Feature(""), "needs a name"),
        (lambda: Schema([]), "at least one"),
        (lambda: Schema([Feature("a"), Feature("a")]), "two features"),
        (lambda: Schema.of_dict({"feature": [{"name": "a", "sort": 1}]}), "a feature has no 'sort'"),
        (lambda: Schema.of_dict({"feature": [{}]}), "needs a name"),
        (lambda: Schema.of_dict([]), "must be a list of features"),
        (lambda: PLAIN.encode({"age": [1]}), "no column 'income'"),
        (lambda: PLAIN.encode({**TABLE, "work": ["office", "sea"]}), "no category 'sea'"),
        (lambda: PLAIN.behind(object()), "no fitted scaler"),
        (lambda: Schema.of_frame(pandas.DataFrame({"a": [1.0, None]})), "missing values"),
        (lambda: Schema.of_frame(pandas.DataFrame({"a": [1.0]}), fixed=["b"]), "no column 'b'"),
        (lambda: attack(schema=3), "must be a deepfool.Schema"),
        (lambda: attack(schema=Schema([Feature("a")])), "describes 1 columns"),
        (lambda: attack(p=1.5), "p = 1, 2 and inf"),
        (lambda: attack(weights=torch.ones(7)), "the schema has costs"),
        (lambda: attack(subspace="random:3"), "leave one of them out"),
        (lambda: attack(add=0.3), "row 0: age is 33.6, which is not whole"),
    ],
)
def test_what_a_schema_cannot_be(make, words):
    with pytest.raises(InputError, match=words):
        make()


def attack(*, schema=PLAIN, add=0.0, **given):
    return deepfool(nn.Linear(PLAIN.columns, 2), PLAIN.encode(TABLE) + add, schema=schema, **given)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        Schema.read(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[[feature]\n")
    with pytest.raises(DataError, match="cannot be read"):
        Schema.read(tmp_path / "bad.toml")
