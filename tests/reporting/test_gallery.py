"""The samples that are shown: which, and that their pictures are theirs."""

import base64
import io
import json

import numpy as np
import torch
from PIL import Image

from deepfool import Run, evaluate
from deepfool.datasets import load
from deepfool.models.sources import resolve
from deepfool.reporting import gallery
from deepfool.reporting.gallery import make_gallery
from tests.reporting.simulated import simulate


def open_uri(uri):
    image = Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))
    return np.asarray(image.convert("RGB") if image.mode == "P" else image)


def test_both_ends_are_there_and_in_order(runs):
    records = Run(runs / "lenet").records()
    found = make_gallery(Run(runs / "lenet"), records)
    ratios = [card.ratio for card in found.cards]
    assert ratios == sorted(ratios)
    ordered = np.sort(records.ratio("p"))
    assert ratios[:12] == ordered[:12].tolist()
    assert ratios[-12:] == ordered[-12:].tolist()
    assert {label for label, _ in found.labels} == set(records.label.tolist()), "every class can be chosen"


def test_the_pictures_are_those_of_the_samples(runs):
    run, samples = Run(runs / "lenet"), load("mnist-sample")
    stored = {row["index"]: r for rows, some in run.perturbations() for row, r in zip(rows, some, strict=True)}
    for card in make_gallery(run, run.records()).cards:
        x, r = samples.batch([card.index])[0].numpy(), stored[card.index]
        assert np.array_equal(open_uri(card.original), (x[0] * 255).round())
        assert np.array_equal(open_uri(card.perturbed), np.rint((x + r).clip(0, 1)[0] * 255))
        shown = open_uri(card.perturbation).astype(int)
        strong = np.abs(r[0]) > 0.2 * np.abs(r).max()
        redder = shown[..., 0] > shown[..., 2]
        assert np.array_equal(redder[strong], (r[0] > 0)[strong]), "vermilion is lighter, blue is darker"


def test_attacked_again_is_the_same_as_stored(runs, tmp_path):
    stored = make_gallery(Run(runs / "lenet"), Run(runs / "lenet").records())
    run = evaluate("lenet-mnist", "mnist-sample", out=tmp_path / "run", limit=60)
    again = make_gallery(run, run.records())
    assert again.notes == []
    assert [card.index for card in again.cards] == [card.index for card in stored.cards]
    for one, other in zip(again.cards, stored.cards, strict=True):
        assert np.abs(open_uri(one.perturbed).astype(int) - open_uri(other.perturbed)).max() <= 1


def test_rows_that_come_out_otherwise_are_left_out(runs, tmp_path):
    rows = [json.loads(line) for line in (runs / "fc" / "records.jsonl").read_text().splitlines()]
    for row in rows[:30]:
        row["r_p"] *= 1.5
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "manifest.json").write_bytes((runs / "fc" / "manifest.json").read_bytes())
    found = make_gallery(Run(tmp_path), Run(tmp_path).records())
    assert "came out otherwise than in the run" in found.notes[0]
    assert found.cards
    assert all(card.index >= 30 for card in found.cards)


def test_why_pictures_are_missing(tmp_path):
    run = Run(simulate(tmp_path / "objects"))
    found = make_gallery(run, run.records())
    assert found.cards
    assert not found.pictures
    assert "made from data in memory" in found.notes[0]


def test_a_model_given_as_an_object(tmp_path):
    model, data = resolve("fc500-mnist").module, load("mnist-sample")
    run = evaluate(model, data, out=tmp_path / "run", limit=20)
    assert not make_gallery(run, run.records()).pictures
    assert make_gallery(run, run.records(), model=model, data=data).pictures


def test_other_weights_are_refused(tmp_path):
    data = load("mnist-sample")
    run = evaluate(resolve("fc500-mnist").module, data, out=tmp_path / "run", limit=20)
    found = make_gallery(run, run.records(), model="lenet-mnist", data=data)
    assert "the model is not the one of the run" in found.notes[0]


def test_code_is_not_run_unasked(tmp_path, monkeypatch):
    (tmp_path / "hostile_module.py").write_text(
        "import pathlib\npathlib.Path('ran').touch()\ndef make():\n    raise RuntimeError\n"
    )
    monkeypatch.chdir(tmp_path)
    where = {"spec": "mnist-sample", "name": "mnist-sample", "split": "test", "size": None, "classes": []}
    run = Run(simulate(tmp_path / "run", model="py:hostile_module:make", data=where))
    assert "not run without permission" in make_gallery(run, run.records()).notes[0]
    assert not (tmp_path / "ran").exists()
    make_gallery(run, run.records(), may_run_code=True)
    assert (tmp_path / "ran").exists()


def test_an_attack_that_is_code_is_not_run_unasked(runs, tmp_path):
    manifest = json.loads((runs / "fc" / "manifest.json").read_text())
    manifest["identity"]["attack"]["name"] = "os:getcwd"
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "records.jsonl").write_bytes((runs / "fc" / "records.jsonl").read_bytes())
    assert "attack is code" in make_gallery(Run(tmp_path), Run(tmp_path).records()).notes[0]


def test_rows_of_numbers_are_listed_without_pictures(tmp_path):
    model = torch.nn.Linear(4, 3)
    data = (torch.rand(30, 4), torch.zeros(30, dtype=torch.long))
    run = evaluate(model, data, out=tmp_path / "run")
    found = make_gallery(run, run.records(), model=model, data=data)
    assert "no pictures" in found.notes[0]
    assert len(found.cards) >= 24


def test_the_budget_holds(runs, monkeypatch):
    monkeypatch.setattr(gallery, "BUDGET", 20_000)
    run = Run(runs / "lenet")
    found = make_gallery(run, run.records())
    assert sum(len(card.original + card.perturbed + card.perturbation) for card in found.cards) <= 20_000
    assert "stays small" in found.notes[0]
    assert {card.end for card in found.cards} == {"fragile", "robust"}


def test_patience_holds(runs, monkeypatch):
    monkeypatch.setattr(gallery, "PATIENCE", 0.0)
    run = Run(runs / "fc")
    found = make_gallery(run, run.records())
    assert len(found.cards) == 2
    assert "take too long" in found.notes[0]


def test_other_norms_and_bounds_are_attacked_again_alike(runs):
    run = Run(runs / "linf")
    found = make_gallery(run, run.records())
    assert found.notes == []
    assert found.pictures
