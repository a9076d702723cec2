"""The training loop: what a recipe does, and that a killed run resumes to the same weights."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from deepfool.errors import InputError, RunError
from deepfool.training.sgd import Progress, Recipe, test_error, train

RECIPE = Recipe(epochs=4, learning_rate=0.05, batch_size=16, shift=2, flip=True, crops=((0, 6), (2, 8)), clip=1.0)


def make_data(count=72):
    stream = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 3, 8, 8), dtype=torch.uint8, generator=stream)
    return images, images[:, 0].float().mean((1, 2)).gt(127).long()


def make_model():
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Dropout(0.3),
        nn.Conv2d(8, 8, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2),
    )  # fmt: skip


def equal(first, second):
    return all(
        torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    )


class KilledError(Exception):
    pass


@pytest.mark.parametrize("bfloat16", [False, True])
@pytest.mark.parametrize(("epoch", "batch"), [(0, 2), (1, 5), (2, 1), (3, 5)])
def test_a_resumed_run_ends_with_the_same_weights(tmp_path, epoch, batch, bfloat16):
    """Killed inside an epoch, or after its last batch and before its checkpoint; the weights match bit for bit."""
    recipe = replace(RECIPE, bfloat16=bfloat16)
    unbroken = train(make_model(), *make_data(), recipe, seed=3)

    def kill(progress):
        if (progress.epoch, progress.batch) == (epoch, batch):
            raise KilledError

    with pytest.raises(KilledError):
        train(make_model(), *make_data(), recipe, seed=3, checkpoint=tmp_path / "run.pt", on_progress=kill)
    torch.rand(17)  # another process has another random state
    seen = []
    resumed = train(make_model(), *make_data(), recipe, seed=3, checkpoint=tmp_path / "run.pt", on_progress=seen.append)
    assert equal(resumed, unbroken)
    assert seen[0].epoch == epoch, "it resumed after the last complete epoch"
    assert [file.name for file in tmp_path.iterdir()] == ["run.pt"]


def test_a_kill_during_a_checkpoint_keeps_the_previous_one(tmp_path, monkeypatch):
    unbroken = train(make_model(), *make_data(), RECIPE)
    real, calls = torch.save, []

    def save(state, stream):
        calls.append(state["epoch"])
        if len(calls) == 2:
            stream.write(b"half a check")
            raise KilledError
        real(state, stream)

    monkeypatch.setattr(torch, "save", save)
    with pytest.raises(KilledError):
        train(make_model(), *make_data(), RECIPE, checkpoint=tmp_path / "run.pt")
    assert equal(train(make_model(), *make_data(), RECIPE, checkpoint=tmp_path / "run.pt"), unbroken)
    assert calls == [1, 2, 2, 3, 4]


def test_a_finished_run_is_loaded_unchanged(tmp_path):
    first = train(make_model(), *make_data(), RECIPE, checkpoint=tmp_path / "run.pt")
    again = train(make_model(), *make_data(), RECIPE, checkpoint=tmp_path / "run.pt", on_progress=pytest.fail)
    assert equal(first, again)


def test_the_seed_decides_and_the_global_random_state_is_kept():
    torch.manual_seed(9)
    before = torch.get_rng_state()
    first = make_model()
    torch.set_rng_state(before)
    train(first, *make_data(), RECIPE, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert equal(first, train(make_model(), *make_data(), RECIPE, seed=1))
    assert not equal(first, train(make_model(), *make_data(), RECIPE, seed=2))


def test_a_checkpoint_of_another_recipe_or_seed_is_refused(tmp_path):
    train(make_model(), *make_data(), RECIPE, checkpoint=tmp_path / "run.pt")
    with pytest.raises(InputError, match="another recipe or seed"):
        train(make_model(), *make_data(), replace(RECIPE, epochs=5), checkpoint=tmp_path / "run.pt")
    with pytest.raises(InputError, match="another recipe or seed"):
        train(make_model(), *make_data(), RECIPE, seed=1, checkpoint=tmp_path / "run.pt")


@pytest.mark.parametrize("content", [b"", b"no checkpoint", b"PK\x03\x04 half an archive"])
def test_a_broken_checkpoint_is_named(tmp_path, content):
    (tmp_path / "run.pt").write_bytes(content)
    with pytest.raises(RunError, match=r"run\.pt cannot be read"):
        train(make_model(), *make_data(), RECIPE, checkpoint=tmp_path / "run.pt")


def test_a_checkpoint_that_would_run_code_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return print, ("code was run",)

    torch.save({"epoch": 1, "model": Evil()}, tmp_path / "run.pt")
    with pytest.raises(RunError, match=r"run\.pt cannot be read"):
        train(make_model(), *make_data(), RECIPE, checkpoint=tmp_path / "run.pt")


def test_a_loss_that_is_not_finite_stops_the_run():
    with pytest.raises(RunError, match="smaller learning rate"):
        train(make_model(), *make_data(), Recipe(epochs=30, learning_rate=1e30, batch_size=16))


def test_one_step_is_sgd_with_nesterov_momentum_and_decay_by_hand():
    """Two full-batch steps on a linear model, against the update written out."""
    images, labels = make_data(16)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    w = model[1].weight.detach().double().requires_grad_()
    b = model[1].bias.detach().double().requires_grad_()
    recipe = Recipe(epochs=2, learning_rate=0.1, batch_size=16, momentum=0.9, weight_decay=0.01, warmup=0.5)
    train(model, images, labels, recipe)
    velocity = [torch.zeros_like(w), torch.zeros_like(b)]
    x = images.flatten(1).double() / 255
    for rate in (0.1, 0.1 * 0.5 * (1 + math.cos(math.pi))):  # the warm-up's end, and the cosine's
        grads = torch.autograd.grad(F.cross_entropy(x @ w.T + b, labels), (w, b))
        with torch.no_grad():
            for parameter, v, grad in zip((w, b), velocity, grads, strict=True):
                g = grad + 0.01 * parameter
                v.mul_(0.9).add_(g)
                parameter -= rate * (g + 0.9 * v)
    torch.testing.assert_close(model[1].weight.double(), w, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(model[1].bias.double(), b, rtol=1e-4, atol=1e-6)


def test_progress_counts_batches_and_reports_the_test_error_of_each_epoch():
    images, labels = make_data()
    seen: list[Progress] = []
    train(make_model(), images, labels, RECIPE, test=(images, labels), on_progress=seen.append)
    assert [p.batch for p in seen if p.epoch == 0 and p.test_error is None] == [1, 2, 3, 4, 5]
    errors = [p for p in seen if p.test_error is not None]
    assert [p.epoch for p in errors] == [0, 1, 2, 3]
    assert all(0 <= p.test_error <= 1 for p in errors)


def test_test_error_uses_eval_mode_and_restores_the_mode():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.9)).train()
    x = F.one_hot(torch.arange(40) % 4, 4).float().view(40, 4, 1, 1)
    assert test_error(model, x, torch.arange(40) % 4, batch_size=7) == 0
    assert test_error(model, x, torch.zeros(40, dtype=torch.long), batch_size=7) == 0.75
    assert model.training
