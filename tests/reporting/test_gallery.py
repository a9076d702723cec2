"""The samples that are shown: which ones, that their pictures are right, and that the run folder alone is enough."""

import base64
import io
import json
import shutil

import numpy as np
import pytest
import safetensors.numpy
import torch
from PIL import Image
from torch import nn

from deepfool import Run, evaluate
from deepfool.datasets import load
from deepfool.models.sources import resolve
from deepfool.reporting.gallery import make_gallery
from deepfool.reporting.page import write_report
from deepfool.runs.evaluation import Interrupted
from deepfool.runs.gallery import EACH_END, GALLERY, IN_COMMON, MOST_BYTES, read_gallery
from tests.reporting.simulated import simulate


def open_uri(uri):
    image = Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))
    return np.asarray(image.convert("RGB") if image.mode == "P" else image)


def linear(shape, classes=3):
    """The same linear model on images each time."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), classes))
    with torch.no_grad():
        model[1].weight.copy_(torch.randn(model[1].weight.shape, generator=torch.Generator().manual_seed(3)))
        model[1].bias.zero_()
    return model


def images(n, shape):
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(5)), torch.zeros(n, dtype=torch.long)


def show(run):
    return make_gallery(run, run.records())


def test_both_ends_are_there_and_in_order(runs):
    run = Run(runs / "lenet")
    ratios = [card.ratio for card in show(run).cards]
    ordered = np.sort(run.records().ratio("p")).tolist()
    assert ratios == [*ordered[:EACH_END], *ordered[-EACH_END:]]
    assert {card.end for card in show(run).cards[:EACH_END]} == {"fragile"}
    assert {card.end for card in show(run).cards[-EACH_END:]} == {"robust"}


def test_the_pictures_are_those_of_the_samples(runs):
    run, samples = Run(runs / "lenet"), load("mnist-sample")
    stored = {row["index"]: r for rows, some in run.perturbations() for row, r in zip(rows, some, strict=True)}
    for card in show(run).cards:
        x, r = samples.batch([card.index])[0].numpy(), stored[card.index]
        assert np.array_equal(open_uri(card.original), (x[0] * 255).round())
        assert np.array_equal(open_uri(card.perturbed), np.rint((x + r).clip(0, 1)[0] * 255))
        shown = open_uri(card.perturbation).astype(int)
        strong = np.abs(r[0]) > 0.2 * np.abs(r).max()
        redder = shown[..., 0] > shown[..., 2]
        assert np.array_equal(redder[strong], (r[0] > 0)[strong]), "vermilion is lighter, blue is darker"


def test_without_stored_perturbations_the_pictures_are_the_same(runs, tmp_path):
    stored = show(Run(runs / "lenet"))
    again = show(evaluate("lenet-mnist", "mnist-sample", out=tmp_path / "run", limit=60))
    assert again.notes == []
    assert [card.index for card in again.cards] == [card.index for card in stored.cards]
    for one, other in zip(again.cards, stored.cards, strict=True):
        assert np.abs(open_uri(one.perturbed).astype(int) - open_uri(other.perturbed)).max() <= 1


def test_other_norms_and_bounds(runs):
    found = show(Run(runs / "linf"))
    assert found.notes == []
    assert found.pictures


def test_the_report_needs_neither_model_nor_data(tmp_path):
    """Both are deleted before the report is written."""
    x, y = images(30, (1, 8, 8))
    np.savez(tmp_path / "data.npz", x=x.numpy(), y=y.numpy())
    torch.save(linear((1, 8, 8)).state_dict(), tmp_path / "weights.pt")
    run = evaluate(
        f"file:{tmp_path / 'weights.pt'}", f"npz:{tmp_path / 'data.npz'}", arch="py:tests.reporting.test_gallery:tiny",
        out=tmp_path / "run",
    )  # fmt: skip
    (tmp_path / "weights.pt").unlink()
    (tmp_path / "data.npz").unlink()
    assert show(run).pictures
    assert write_report([run]).read_text().count("data:image/png") == 3 * 2 * EACH_END


def tiny():
    return linear((1, 8, 8))


def test_models_and_data_in_memory(tmp_path):
    run = evaluate(resolve("fc500-mnist").module, load("mnist-sample"), out=tmp_path / "run", limit=20)
    assert len(show(run).cards) == 20
    assert show(run).pictures


@pytest.mark.parametrize("keep", [False, True])
def test_a_resumed_run_has_the_gallery_of_an_unbroken_one(tmp_path, keep):
    options = {"batch_size": 8, "save_perturbations": keep}
    data = images(64, (1, 8, 8))
    whole = evaluate(linear((1, 8, 8)), data, out=tmp_path / "whole", **options)

    def stop(progress):
        import signal

        if progress.done >= 24:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted):
        evaluate(linear((1, 8, 8)), data, out=tmp_path / "broken", on_progress=stop, **options)
    assert not (tmp_path / "broken" / GALLERY).exists()
    broken = Run(tmp_path / "broken")
    assert "added when the run is complete" in show(broken).notes[0]
    resumed = evaluate(linear((1, 8, 8)), data, out=tmp_path / "broken", **options)
    assert (resumed.folder / GALLERY).read_bytes() == (whole.folder / GALLERY).read_bytes()


@pytest.mark.parametrize("change", [{"batch_size": 5}, {"workers": 2, "batch_size": 16}])
def test_the_gallery_does_not_depend_on_batches_or_workers(tmp_path, change):
    data = images(40, (3, 8, 8))
    one = read_gallery(evaluate(linear((3, 8, 8)), data, out=tmp_path / "one"))
    other = read_gallery(evaluate(linear((3, 8, 8)), data, out=tmp_path / "other", **change))
    assert one.index.tolist() == other.index.tolist()
    for name in ("original", "perturbed", "perturbation"):
        assert np.abs(getattr(one, name).astype(int) - getattr(other, name)).max() <= 1


@pytest.mark.parametrize(
    ("shape", "count", "notes"),
    [
        ((1, 28, 28), 24, []),
        ((3, 224, 224), 8, ["Pictures of {} samples are kept"]),
        ((3, 401, 300), 14, ["Pictures of {}", "reduced to 1/2"]),
    ],
)
def test_the_size_is_bounded(tmp_path, shape, count, notes):
    run = evaluate(linear(shape), images(30, shape), out=tmp_path / "run", batch_size=8)
    assert (run.folder / GALLERY).stat().st_size < 1.5 * MOST_BYTES + 20_000
    found = show(run)
    # A few more where a sample that every run keeps is one of those at the ends.
    assert count <= len(found.cards) <= min(24, count + IN_COMMON)
    assert {card.end for card in found.cards} == {"fragile", "robust"}
    assert len(found.notes) == len(notes)
    for note, wanted in zip(found.notes, notes, strict=True):
        assert wanted.format(len(found.cards)) in note


def test_samples_that_are_not_images_are_listed(tmp_path):
    data = (torch.rand(30, 4), torch.zeros(30, dtype=torch.long))
    found = show(evaluate(torch.nn.Linear(4, 3), data, out=tmp_path / "run"))
    assert "not images" in found.notes[0]
    assert len(found.cards) == 24
    assert not found.pictures


def test_perturbations_that_come_out_differently_are_not_shown(tmp_path):
    """The attack draws, so another batch gives another perturbation."""
    run = evaluate(
        linear((1, 8, 8)), images(60, (1, 8, 8)), "tests.nets:drawing_attack", out=tmp_path / "run", batch_size=7
    )
    found = show(run)
    assert "another perturbation than in the run" in found.notes[0]
    assert len(found.cards) < 24 or not found.pictures


def test_an_older_run_says_how_to_get_a_gallery(runs, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(runs / "fc", folder)
    (folder / GALLERY).unlink()
    found = show(Run(folder))
    assert len(found.cards) == 24
    assert not found.pictures
    assert "give the `deepfool evaluate` command of this run again" in found.notes[0]
    before = (folder / "records.jsonl").read_bytes()
    run = evaluate("fc500-mnist", "mnist-sample", out=folder, limit=60)
    assert show(run).pictures
    assert (folder / "records.jsonl").read_bytes() == before, "nothing was measured again"
    assert (folder / GALLERY).read_bytes() == (runs / "fc" / GALLERY).read_bytes()


def test_a_folder_without_model_or_gallery(tmp_path):
    found = show(Run(simulate(tmp_path / "run", model="py:no.such:thing")))
    assert found.cards
    assert GALLERY in found.notes[0]


def damage(**changes):
    def apply(path):
        with safetensors.safe_open(path, framework="numpy") as file:
            tensors, about = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
        for name, change in changes.items():
            if name == "about":
                about = {"about": json.dumps(json.loads(about["about"]) | change)}
            else:
                tensors[name] = np.ascontiguousarray(change(tensors[name]))
        path.write_bytes(safetensors.numpy.save(tensors, about))

    return apply


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:500]),
        lambda path: path.write_bytes(b"\0" * (2 * MOST_BYTES + 1)),
        damage(original=lambda t: t[:5]),
        damage(original=lambda t: t.astype(np.float32)),
        damage(perturbed=lambda t: t[..., :5]),
        damage(factor=lambda t: t * np.nan),
        damage(index=lambda t: t.astype(np.int32)),
        damage(about={"files": [1] * 24}),
        damage(about={"notes": "x"}),
        damage(about={"files": []}),
    ],
)
def test_a_damaged_gallery_is_not_shown(runs, tmp_path, change):
    folder = tmp_path / "run"
    shutil.copytree(runs / "fc", folder)
    change(folder / GALLERY)
    found = show(Run(folder))
    assert "is damaged" in found.notes[0]
    assert not found.pictures
    assert len(found.cards) == 24
