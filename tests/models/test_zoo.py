"""Loading from the zoo: shipped weights, their cards, and errors."""

import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from deepfool import datasets, models
from deepfool.cli.models import describe_accuracy
from deepfool.errors import DataError, InputError
from deepfool.models import zoo
from deepfool.models.cards import read_card, read_weights
from deepfool.models.zoo import ZOO
from deepfool.training.recipes import RECIPES
from deepfool.training.sgd import Recipe, test_error, to_unit

SHIPPED = [name for name in ZOO if (zoo.WEIGHTS / f"{name}.safetensors").is_file()]


def test_the_small_networks_ship():
    assert set(SHIPPED) == {
        "fc500-mnist", "lenet-mnist", "lenet-cifar10", "nin-cifar10",
        "conv-mnist-linf", "conv-mnist-l2", "conv-mnist-certified", "mlp-mnist-small", "kwta-mnist",
    }  # fmt: skip


@pytest.mark.parametrize("name", [name for name in SHIPPED if ZOO[name].paper_error is not None])
def test_errors_are_the_papers_or_better(name):
    assert round(ZOO[name].card.test_error, 3) <= ZOO[name].paper_error  # the paper gives tenths of a percent


@pytest.mark.parametrize("name", ["conv-mnist-linf", "conv-mnist-l2", "conv-mnist-certified"])
def test_hardened_networks_are_as_robust_as_their_cards_say(name):
    sample, card = datasets.load("mnist-sample"), ZOO[name].card
    x, y = to_unit(sample.images()[:200]), sample.labels[:200]
    found = RECIPES[name].objective.measure(models.load(name), x, y)
    assert len(found) == len(card.robust_accuracy) > 0
    for here, promised in zip(found, card.robust_accuracy, strict=True):
        assert {**here, "samples": 0, "accuracy": 0} == {**promised, "samples": 0, "accuracy": 0}, "the same settings"
        assert promised["samples"] == 10_000
        deviation = (promised["accuracy"] * (1 - promised["accuracy"]) / len(y)) ** 0.5
        assert abs(here["accuracy"] - promised["accuracy"]) <= 4 * deviation + 1 / len(y)


@pytest.mark.parametrize("name", [name for name in SHIPPED if ZOO[name].paper_error is None])
def test_the_docs_say_what_the_card_says(name):
    page = (Path(__file__).parents[2] / "docs" / "sources.md").read_text()
    (row,) = (line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
    *_, error, robust, _ = row.split("|")
    assert error.strip() == f"{100 * ZOO[name].card.test_error:.2f} %"
    assert robust.strip() == "; ".join(map(describe_accuracy, ZOO[name].card.robust_accuracy))


def test_nin_is_the_papers_and_its_card_says_what_other_recipes_gave():
    entry = ZOO["nin-cifar10"]
    assert abs(entry.card.test_error - entry.paper_error) < 0.01
    assert entry.card.recipe["dropout"] == 0.5
    assert len(entry.card.tried) > 1
    (this,) = (each for each in entry.card.tried if each["recipe"].startswith("this one"))
    assert this["test_error"] == entry.card.test_error


def test_only_the_network_that_is_masked_on_purpose_is_marked():
    assert [name for name, entry in ZOO.items() if entry.masked] == ["kwta-mnist"]
    assert "masked on purpose" in ZOO["kwta-mnist"].about


@pytest.mark.parametrize("name", SHIPPED)
def test_hardened_and_small_networks_are_small_files(name):
    if ZOO[name].paper_error is None:
        assert (zoo.WEIGHTS / f"{name}.safetensors").stat().st_size < 1.5e6


@pytest.mark.parametrize("name", SHIPPED)
def test_cards_match_their_files(name):
    entry, path = ZOO[name], zoo.WEIGHTS / f"{name}.safetensors"
    card = read_card(path)
    assert card.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (card.name, card.data, card.parameters) == (name, entry.data, entry.parameters)
    assert card.command.startswith(f"deepfool train {name}")
    made_by = Recipe(**{key: value for key, value in card.recipe.items() if value is not None})
    made_by = replace(made_by, crops=tuple(tuple(pair) for pair in made_by.crops))
    assert made_by == RECIPES[entry.name], "the recipe in the package is the one that made the weights"


@pytest.mark.parametrize("name", SHIPPED)
def test_loaded_networks_classify_the_shipped_samples_as_well_as_their_cards_say(name):
    sample = datasets.load(f"{ZOO[name].data}-sample")
    network = models.load(name)
    assert not network.training
    error, promised = test_error(network, sample.images(), sample.labels), ZOO[name].card.test_error
    deviation = (promised * (1 - promised) / len(sample)) ** 0.5
    assert abs(error - promised) <= 4 * deviation + 1 / len(sample)


def test_without_weights_the_network_is_untrained_and_the_same_each_time():
    first, second = (models.load("fc500-mnist", pretrained=False) for _ in range(2))
    trained = models.load("fc500-mnist")
    assert torch.equal(first[1].weight, second[1].weight)
    assert not torch.equal(first[1].weight, trained[1].weight)
    assert not first.training


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(InputError, match="googlenet"):
        models.load("googelnet")


@pytest.fixture
def weights(tmp_path, monkeypatch):
    """A copy of fc500's files that may be broken."""
    for suffix in (".safetensors", ".json"):
        shutil.copy(zoo.WEIGHTS / f"fc500-mnist{suffix}", tmp_path)
    monkeypatch.setattr(zoo, "WEIGHTS", tmp_path)
    monkeypatch.setenv("DEEPFOOL_HOME", str(tmp_path / "cache"))
    return tmp_path / "fc500-mnist.safetensors"


def test_changed_weights_are_refused(weights):
    models.load("fc500-mnist")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"fc500-mnist\.safetensors: expected sha256"):
        models.load("fc500-mnist")


def test_a_missing_or_broken_card_is_named(weights):
    card = weights.with_suffix(".json")
    card.write_text("{}")
    with pytest.raises(DataError, match=r"fc500-mnist\.json: not a card"):
        models.load("fc500-mnist")
    card.unlink()
    with pytest.raises(DataError, match=r"fc500-mnist\.json: the card"):
        models.load("fc500-mnist")


def test_missing_weights_say_how_to_train_them_and_own_training_fills_the_gap(weights):
    elsewhere = Path(os.environ["DEEPFOOL_HOME"]) / "models"
    elsewhere.mkdir(parents=True)
    moved = weights.rename(elsewhere / weights.name)
    card = weights.with_suffix(".json")
    card.rename(elsewhere / card.name)
    assert models.load("fc500-mnist") is not None
    moved.unlink()
    with pytest.raises(DataError, match="deepfool train fc500-mnist"):
        models.load("fc500-mnist")


def test_weights_of_another_network_are_refused(weights):
    with pytest.raises(DataError, match=r"fc500-mnist\.safetensors: .*(Missing|Unexpected)"):
        read_weights(ZOO["lenet-mnist"].build(), weights)
    weights.write_bytes(b"not a weight file")
    with pytest.raises(DataError, match="not a safetensors file"):
        read_weights(ZOO["fc500-mnist"].build(), weights)


@pytest.mark.parametrize("name", SHIPPED)
def test_cards_are_plain_json(name):
    def refuse(word):
        raise ValueError(f"{word} is not JSON")

    json.loads((zoo.WEIGHTS / f"{name}.json").read_text(), parse_constant=refuse)
