"""`compare`: which is A, which is B, which is more robust, beyond chance or not, and when that cannot be told."""

import json

import pytest

from deepfool import Run, evaluate
from deepfool.errors import RunError
from deepfool.metrics.comparison import FEWEST
from deepfool.metrics.pairing import pair
from tests.calling import call
from tests.test_gates import healthy, pair_of_runs, stretch, with_identity


def other_model(folder, name="another.Model"):
    """Make a simulated run one of another model."""
    with_identity(folder, model={"sha256": "ef" * 32})
    about = json.loads((folder / "manifest.json").read_text())
    about["model"]["spec"] = name
    (folder / "manifest.json").write_text(json.dumps(about))
    return folder


def two_models(tmp_path, by, last=60, n=60):
    before, after = pair_of_runs(tmp_path, by, last, n)
    return before, other_model(after)


def compare(*words):
    """The sentence, on one line."""
    done = call("compare", *words)
    return " ".join(done.stdout.split()), done.stderr


def test_a_and_b_are_named_and_one_is_more_robust(tmp_path):
    before, after = two_models(tmp_path, 1.2)
    said, _ = compare(before, after)
    assert "A made.up.Model deepfool in l2, no bounds" in said
    assert "B another.Model deepfool in l2, no bounds" in said
    assert "B (another.Model) is more robust than A (made.up.Model): the perturbations found are 20 % larger" in said
    assert "This is beyond chance" in said
    assert "rho_adv of A <= " in said
    said, _ = compare(after, before)
    assert "A (another.Model) is more robust than B (made.up.Model)" in said


def test_what_may_be_chance(tmp_path):
    said, _ = compare(*two_models(tmp_path, 0.5, last=1))
    assert "are equally robust, as far as 60 samples can tell" in said
    assert "but that may be chance" in said
    assert "more robust than" not in said


def test_the_same_distances(tmp_path):
    said, _ = compare(*two_models(tmp_path, 1.0))
    assert "the perturbations found are of the same size" in said


def test_a_mean_that_the_samples_do_not_follow(tmp_path):
    before, after = two_models(tmp_path, 1.001)
    stretch(after, 0.01, last=15)
    said, _ = compare(before, after)
    assert "A (made.up.Model) is more robust than" in said
    assert "The single samples say otherwise: 45 of 60 are larger in B" in said


def test_too_few_samples_to_tell(tmp_path):
    said, _ = compare(*two_models(tmp_path, 2.0, n=FEWEST - 1, last=FEWEST - 1))
    assert f"cannot be told from {FEWEST - 1} samples" in said


def test_samples_without_an_answer(tmp_path):
    """A run that provoked a false ranking: a search that fails must not make a model look robust, nor fragile."""
    before = healthy(tmp_path / "before")
    after = other_model(healthy(tmp_path / "after", censored=5))
    said, _ = compare(before, after)
    assert "Which is more robust is not known: 0 samples of A (made.up.Model) and 5 of B (another.Model)" in said
    assert "rho_adv of B not known 5 without an answer" in said
    assert "Among the 55 samples with an answer in both, the mean difference (B - A) is 0" in said
    assert "Wilcoxon" not in said
    found = json.loads(call("compare", before, after, "--json").stdout)
    assert found["more_robust"] is found["beyond_chance"] is found["mean_difference"] is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"attack": {"name": "smallest", "knobs": {"bounds": None}}}, "attack deepfool and smallest"),
        ({"attack": {"name": "deepfool", "knobs": {"bounds": [0, 1]}}}, r"bounds none and \[0, 1\]"),
        ({"skip_misclassified": True}, "misclassified samples skipped in only one"),
    ],
)
def test_models_measured_in_different_ways_are_refused(tmp_path, changes, why):
    before, after = two_models(tmp_path, 1.2)
    with_identity(after, **changes)
    with pytest.raises(RunError, match=f"in different ways.*{why}.*--anyway"):
        call("compare", before, after)
    said, notes = compare(before, after, "--anyway")
    assert "Which model is more robust cannot be told" in said
    assert "not measured in the same way" in notes
    assert "is more robust than" not in said


def test_other_precision_is_a_remark(tmp_path):
    before, after = two_models(tmp_path, 1.2)
    with_identity(after, dtype="float64", seed=3)
    said, notes = compare(before, after)
    assert "is more robust than" in said
    assert "the runs also differ in: precision float32 and float64; seed 0 and 3." in notes


@pytest.fixture(scope="module")
def lenet(tmp_path_factory):
    """One model under two attacks, and in two ways."""
    folder = tmp_path_factory.mktemp("lenet")
    for name, attack, knobs in (
        ("deepfool", "deepfool", {}), ("smallest", "smallest", {"budget": 20}),
        ("boxed", "deepfool", {"bounds": (0, 1)}),
    ):  # fmt: skip
        evaluate("lenet-mnist", "mnist-sample", attack, out=folder / name, limit=24, **knobs)
    return folder


def test_one_model_under_two_attacks(lenet):
    said, notes = compare(lenet / "deepfool", lenet / "smallest")
    assert "Both runs measure the same model, by different attacks. B (smallest) finds perturbations that are" in said
    assert "upper bound on the distance, so the smaller one is nearer to the truth" in said
    assert "more robust" not in said
    assert "attack deepfool and smallest" in notes


def test_one_model_with_and_without_bounds(lenet):
    said, notes = compare(lenet / "deepfool", lenet / "boxed")
    assert "Both runs measure the same model, with different settings" in said
    assert "nearer to the truth" not in said, "another question has another answer"
    assert "bounds none and [0, 1]" in notes


def test_a_run_with_itself(lenet):
    said, notes = compare(lenet / "deepfool", lenet / "deepfool")
    assert "the same model in the same way. The perturbations found are of the same size." in said
    assert notes == ""


def test_json_is_complete(lenet):
    """Everything that the terminal shows, and what it was made from."""
    found = json.loads(call("compare", lenet / "deepfool", lenet / "smallest", "--json").stdout)
    pairing = pair(Run(lenet / "deepfool"), Run(lenet / "smallest"))
    assert found["sentence"] == pairing.sentence
    assert found["notes"] == pairing.notes
    assert (found["about"], found["norm"], found["pairs"]) == ("attacks", "l2", 24)
    assert found["differences"] == ["attack deepfool and smallest"]
    for side in "ab":
        assert set(found[side]) == {
            "run", "model", "model_sha256", "data", "data_sha256", "attack", "p", "knobs", "dtype", "seed", "samples",
            "measured",
        }  # fmt: skip
    assert found["b"]["knobs"]["budget"] == 20
    assert found["change"] < 0
    assert {"rho_a", "rho_b", "mean_difference", "median_difference", "p_value", "beyond_chance"} <= set(found)


def test_an_empty_run(tmp_path, lenet):
    folder = healthy(tmp_path / "empty")
    (folder / "records.jsonl").unlink()
    with pytest.raises(RunError, match="has no rows to compare"):
        call("compare", folder, folder)
