"""Fine-tuning: the paper's protocol step by step, caching and resuming, and several processes against one."""

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from deepfool import Run, deepfool, evaluate, finetune, smallest_eps
from deepfool.attacks.shared.adversarial import Status
from deepfool.datasets import load
from deepfool.errors import DataError, InputError, MissingExtraError, ModelError, RunError
from deepfool.metrics import rho_adv
from deepfool.models.fingerprints import fingerprint
from deepfool.reporting.epochs import draw_epochs
from deepfool.training import finetuning
from deepfool.training.finetuning import LEARNING_RATE, choose_recipe
from deepfool.training.processes import Accelerated, Team
from deepfool.training.recipes import RECIPES
from deepfool.training.results import Epoch
from deepfool.training.sgd import Recipe, last_rate, test_error
from tests import nets, tuning
from tests.waiting import PATIENCE

PLAIN = Recipe(epochs=1, learning_rate=0.1, batch_size=1000, momentum=0.9, weight_decay=0.01)
"""One batch holds everything: an epoch is one step."""

calls = []
"""Batches that the attacks below were given, with the weights of the model at that time."""


def noting(model, x, *, p=2, overshoot=0.02):
    calls.append((len(x), fingerprint(model.model)))
    return deepfool(model, x, p=p, overshoot=overshoot)


def failing(model, x, *, p=2):
    """DeepFool that gives up where the first feature is small."""
    found = deepfool(model, x, p=p)
    lost = x[:, 0] < 0.5
    status = torch.where(lost, int(Status.EXHAUSTED), found.status)
    return replace(found, status=status, reason=tuple("gave up" if each else "" for each in lost.tolist()))


@pytest.fixture(autouse=True)
def no_calls():
    calls.clear()


@pytest.fixture
def points():
    """Points whose labels a trained network gets right, mostly."""
    x, _ = nets.points(80)
    y = nets.small()(x).argmax(1)
    y[::7] = (y[::7] + 1) % 4
    return x, y


def tune(points, folder, **options):
    given = {"test": points, "cache": folder, "judged": 20, "recipe": PLAIN, "learning_rate": 0.1}
    return finetune(options.pop("model", None) or nets.small(), points, **{**given, **options})


def states_equal(first, second):
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def step_by_hand(model, x, y, rate, steps, momentum=0.9, decay=0.01):
    """SGD with Nesterov's momentum, written out, in double."""
    model = model.double()
    velocity = [torch.zeros_like(weight) for weight in model.parameters()]
    for _ in range(steps):
        grads = torch.autograd.grad(F.cross_entropy(model(x.double()), y), list(model.parameters()))
        with torch.no_grad():
            for weight, v, grad in zip(model.parameters(), velocity, grads, strict=True):
                g = grad + decay * weight
                v.mul_(momentum).add_(g)
                weight -= rate * (g + momentum * v)
    return model


def close(first, second):
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return all(torch.allclose(a.double(), b.double(), atol=1e-5) for a, b in pairs)


# The protocol.


@pytest.mark.parametrize("alpha", [1.0, 3.0])
def test_it_is_sgd_on_the_perturbed_images_and_true_labels_at_the_scaled_rate(points, tmp_path, alpha):
    x, y = points
    found = deepfool(nets.small(), x)
    assert found.fooled.all()
    tuned = tune(points, tmp_path, epochs=3, magnify=alpha, lr_scale=0.5)
    assert tuned.learning_rate == 0.05
    assert close(tuned.model, step_by_hand(nets.small(), x + alpha * found.r, y, 0.05, 3))
    assert not close(tuned.model, step_by_hand(nets.small(), x, y, 0.05, 3)), "clean images end elsewhere"


def test_clean_epochs_are_plain_training(points, tmp_path):
    tuned = tune(points, tmp_path, epochs=2, perturb="clean")
    assert close(tuned.model, step_by_hand(nets.small(), *points, 0.05, 2))
    assert tuned.perturbed is None
    assert tuned.left_clean == 0
    assert not (tmp_path / "perturbed").exists()


def test_fgsm_steps_on_every_image_away_from_its_true_label(points, tmp_path):
    x, y = points
    generator = torch.Generator().manual_seed(3)

    def linear():
        model = nn.Linear(6, 4)
        model.load_state_dict(weights)
        return model

    weights = {"weight": torch.randn(4, 6, generator=generator), "bias": torch.zeros(4)}
    y = torch.where(torch.arange(80) % 7 == 0, y, linear()(x).argmax(1))
    eps = smallest_eps(linear(), (x, y)).eps
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(F.cross_entropy(linear()(leaf), y), leaf)
    moved = x + eps * gradient.sign()
    assert (linear()(x).argmax(1) != y).any(), "some were wrong to begin with; they are moved too"
    still_right = linear()(moved).argmax(1) == y
    assert 0 < still_right.float().mean() <= 0.1, "some are not fooled; they are moved all the same"
    tuned = tune((x, y), tmp_path, model=linear(), epochs=1, perturb="fgsm")
    assert close(tuned.model, step_by_hand(linear(), moved, y, 0.05, 1))
    assert tuned.left_clean == 0
    own = tune((x, y), tmp_path, model=linear(), epochs=1, perturb="fgsm", eps=0.01)
    assert close(own.model, step_by_hand(linear(), x + 0.01 * gradient.sign(), y, 0.05, 1)), "an eps of one's own"


def test_what_was_not_fooled_stays_clean_and_is_counted(points, tmp_path):
    x, y = points
    lost = x[:, 0] < 0.5
    images = torch.where(lost[:, None], x, x + deepfool(nets.small(), x).r)
    tuned = tune(points, tmp_path, epochs=1, perturb=failing)
    assert tuned.left_clean == int(lost.sum()) > 10
    assert close(tuned.model, step_by_hand(nets.small(), images, y, 0.05, 1))


def test_magnified_images_stay_inside_the_bounds(points, tmp_path):
    x, y = points
    found = deepfool(nets.small(), x, bounds=(0, 1))
    far = x + 3 * torch.where(found.fooled[:, None], found.r, 0)
    images = far.clamp(0, 1)
    assert not torch.equal(images, far)
    tuned = tune(points, tmp_path, epochs=1, magnify=3.0, bounds=(0, 1))
    assert close(tuned.model, step_by_hand(nets.small(), images, y, 0.05, 1))


def test_the_callers_model_is_unchanged_and_the_result_is_in_eval_mode(points, tmp_path):
    model = nets.small().train()
    before = fingerprint(model)
    stream = torch.get_rng_state()
    tuned = tune(points, tmp_path, model=model, epochs=1)
    assert fingerprint(model) == before
    assert model.training
    assert all(weight.grad is None and weight.requires_grad for weight in model.parameters())
    assert not tuned.model.training
    assert torch.equal(torch.get_rng_state(), stream)


def test_frozen_layers_stay_frozen(points, tmp_path):
    model = nets.small()
    model[0].requires_grad_(False)
    tuned = tune(points, tmp_path, model=model, epochs=1)
    assert torch.equal(tuned.model[0].weight, model[0].weight)
    assert not torch.equal(tuned.model[2].weight, model[2].weight)


def test_the_seed_decides(points, tmp_path):
    small = replace(PLAIN, batch_size=16)
    first, again, other = (tune(points, tmp_path, recipe=small, seed=seed, epochs=1) for seed in (0, 0, 1))
    assert states_equal(first.model, again.model)
    assert first.epochs == again.epochs
    assert not states_equal(first.model, other.model)


# Rates.


def test_half_of_which_rate():
    for name, recipe in RECIPES.items():
        chosen = choose_recipe(name, None, None, None, 0.5, 5, None)
        assert chosen.learning_rate == pytest.approx(0.5 * last_rate(recipe))
        assert 0 < chosen.learning_rate < recipe.learning_rate / 4
        assert (chosen.crops, chosen.bfloat16, chosen.epochs) == ((), False, 5)
        assert (chosen.flip, chosen.batch_size, chosen.dropout) == (recipe.flip, recipe.batch_size, recipe.dropout)
    assert choose_recipe("file:x.safetensors", "lenet-mnist", None, None, 0.5, 5, None) == choose_recipe(
        "lenet-mnist", None, None, None, 0.5, 5, None
    )
    assert choose_recipe(nets.small(), None, None, None, 0.5, 5, None).learning_rate == LEARNING_RATE / 2


# Judges.


def test_judges_agree_with_evaluate(points, tmp_path):
    x, y = points
    tuned = tune(points, tmp_path / "cache", epochs=1, judges=("deepfool", "smallest", "fgsm"))
    assert [each.epoch for each in tuned.epochs] == [0, 1]
    for each, model in zip(tuned.epochs, (nets.small(), tuned.model), strict=True):
        assert each.test_error == test_error(model, x, y)
        for judge in ("deepfool", "smallest"):
            run = evaluate(model, points, judge, out=tmp_path / f"{judge}{each.epoch}", limit=20)
            assert each.rho[judge] == pytest.approx(rho_adv(run.records()).value, rel=1e-5)
            assert Run(each.runs[judge]).count == 20
        assert each.rho["fgsm"] == pytest.approx(smallest_eps(model, (x[:20], y[:20])).rho_l2, rel=1e-5)
    assert tuned.epochs[0].rho["smallest"] < tuned.epochs[0].rho["deepfool"] < tuned.epochs[0].rho["fgsm"]


def test_a_judge_that_fails_says_so(points, tmp_path):
    tuned = tune(points, tmp_path, epochs=0, judges=("tests.test_finetuning:failing",))
    lost = int((points[0][:20, 0] < 0.5).sum())
    assert tuned.epochs[0].censored == {"tests.test_finetuning:failing": lost}
    assert lost > 0


def test_a_share_that_fgsm_never_reaches(tmp_path):
    """Inside the box there is one class only: no step misclassifies anything."""
    model = nn.Linear(1, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0], [0.0]]))
        model.bias.copy_(torch.tensor([1.0, 0.0]))
    data = torch.rand(10, 1), torch.zeros(10, dtype=torch.long)
    options = {"test": data, "epochs": 0, "judges": ("fgsm",), "bounds": (0, 1), "cache": tmp_path}
    assert finetune(model, data, perturb="clean", **options).epochs[0].rho == {"fgsm": math.inf}
    with pytest.raises(RunError, match="never misclassifies"):
        finetune(model, data, perturb="fgsm", **options)


# Fresh perturbations, and mixed images.


def test_all_epochs_share_one_perturbed_set_unless_fresh(points, tmp_path):
    tune(points, tmp_path, perturb=noting, epochs=3)
    assert calls == [(80, calls[0][1])]
    calls.clear()
    tuned = tune(points, tmp_path, perturb=noting, epochs=3, fresh=True)
    assert len(calls) == 2, "the first set is that of the untouched model, which is there already"
    assert len({weights for _, weights in calls}) == 2, "each from the weights of its time"
    assert [folder.name for folder in (tmp_path / "perturbed").iterdir() if folder.is_dir()] == [tuned.perturbed.name]

    x, y = points
    model, velocity_free = nets.small(), replace(PLAIN, momentum=0.0)
    for _ in range(3):
        model = step_by_hand(model.float(), x + deepfool(model.float(), x).r, y, 0.05, 1, momentum=0.0)
    assert close(tune(points, tmp_path, recipe=velocity_free, epochs=3, fresh=True).model, model)


def test_mix_is_the_share_of_clean_images(points, tmp_path):
    x, y = points
    r = deepfool(nets.small(), x).r
    spared = torch.randperm(80, generator=torch.Generator().manual_seed(5 * 1_000_003))[:20]
    images = x + r
    images[spared] = x[spared]
    tuned = tune(points, tmp_path, epochs=1, mix=0.25, seed=5)
    assert close(tuned.model, step_by_hand(nets.small(), images, y, 0.05, 1))
    all_clean = tune(points, tmp_path, epochs=1, mix=1.0)
    assert close(all_clean.model, step_by_hand(nets.small(), x, y, 0.05, 1))


# Caching and resuming.


def test_a_perturbed_set_is_made_once_and_again_for_anything_that_changes_it(points, tmp_path):
    first = tune(points, tmp_path, perturb=noting, epochs=1)
    again = tune(points, tmp_path, perturb=noting, epochs=1, magnify=2.0, lr_scale=0.1, judges=())
    assert len(calls) == 1, "neither alpha nor the rate is a matter of the set"
    assert first.perturbed == again.perturbed
    other = nets.small()
    with torch.no_grad():
        other[0].bias.add_(1e-3)
    changes = ({"overshoot": 0.5}, {"p": math.inf}, {"limit": 40}, {"seed": 1}, {"model": other})
    folders = [tune(points, tmp_path, perturb=noting, epochs=1, judges=(), **change).perturbed for change in changes]
    assert len({first.perturbed, *folders}) == 6
    assert len(calls) == 6


def test_an_attack_of_the_same_name_with_other_code_has_its_own_set(points, tmp_path):
    def make(overshoot):
        def attack(model, x, *, p=2):
            return deepfool(model, x, p=p, overshoot=overshoot)

        return attack

    one, other = (tune(points, tmp_path, perturb=make(value), epochs=1, judges=()) for value in (0.02, 0.5))
    assert one.perturbed != other.perturbed
    assert not states_equal(one.model, other.model)


class KilledError(BaseException):
    pass


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("stage", ["perturbing", "training", "judging"])
def test_a_resumed_run_ends_with_the_same_weights(points, tmp_path, stage, fresh):
    options = {"perturb": noting, "epochs": 3, "recipe": replace(PLAIN, batch_size=16), "fresh": fresh, "mix": 0.25}
    unbroken = tune(points, tmp_path / "unbroken", **options)
    calls.clear()
    seen = []

    def kill(progress):
        seen.append(progress)
        if progress.stage == stage and progress.epoch == (1 if stage == "perturbing" else 2):
            raise KilledError

    broken = {**options, "checkpoint": tmp_path / "state.pt"}
    with pytest.raises(KilledError):
        tune(points, tmp_path / "broken", **broken, on_progress=kill)
    assert seen[-1].stage == stage
    torch.rand(13)  # another process has another random state
    resumed = tune(points, tmp_path / "broken", **broken, on_progress=seen.append)
    assert states_equal(resumed.model, unbroken.model)
    assert [(each.test_error, each.rho) for each in resumed.epochs] == [
        (each.test_error, each.rho) for each in unbroken.epochs
    ]
    assert resumed.left_clean == unbroken.left_clean
    if not fresh:
        assert len(calls) == 1, "the perturbed set outlives the kill"
    calls.clear()
    done = tune(points, tmp_path / "broken", **broken, on_progress=pytest.fail)
    assert states_equal(done.model, unbroken.model)
    assert repr(done.epochs) == repr(resumed.epochs), "in words: what is not known is NaN, which equals nothing"
    assert not calls


def test_a_checkpoint_of_another_fine_tuning_is_refused(points, tmp_path):
    file = tmp_path / "state.pt"
    tune(points, tmp_path, epochs=1, checkpoint=file)
    with pytest.raises(InputError, match=r"magnify: 1\.0 in the file, 2\.0 now"):
        tune(points, tmp_path, epochs=1, checkpoint=file, magnify=2.0)
    file.write_bytes(b"half a file")
    with pytest.raises(RunError, match="cannot be read as a checkpoint"):
        tune(points, tmp_path, epochs=1, checkpoint=file)


def test_progress_reports_each_stage(points, tmp_path):
    seen = []
    tuned = tune(points, tmp_path, recipe=replace(PLAIN, batch_size=32), epochs=2, on_progress=seen.append)
    stages = list(dict.fromkeys((each.epoch, each.stage) for each in seen))
    expected = [(0, "judging"), (1, "perturbing"), (1, "training"), (1, "judging"), (2, "training"), (2, "judging")]
    assert stages == expected
    assert [each.result for each in seen if each.result] == list(tuned.epochs)
    assert [(each.done, each.total) for each in seen if each.stage == "training" and each.epoch == 1] == [
        (1, 3), (2, 3), (3, 3),
    ]  # fmt: skip


@pytest.mark.parametrize("suffix", ["svg", "pdf", "png"])
def test_the_curves_are_drawn(tmp_path, suffix):
    rows = [Epoch(i, 0.1 / (i + 1), {"deepfool": 0.1 + i, "fgsm": math.inf if i else 0.5}) for i in range(3)]
    path = draw_epochs({"tuned": rows, "clean": rows[:2]}, tmp_path / f"curves.{suffix}")
    assert path.stat().st_size > 1000
    if suffix == "svg":
        text = path.read_text()
        for words in ("tuned, by deepfool", "clean, by fgsm", "test error (%)", "extra epochs"):
            assert words in text


# Any model.


class Odd(nn.Module):
    """A single logit, in a dict, in double precision."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 1).double()

    def forward(self, x):
        return {"logits": self.body(x)}


def test_a_single_logit_in_a_dict_in_double_precision(tmp_path):
    x, _ = nets.points(60)
    y = (x[:, 0] > x[:, 1]).long()
    tuned = finetune(
        Odd(), (x, y), test=(x, y), epochs=20, learning_rate=2.0, batch_size=20, cache=tmp_path, perturb="clean"
    )
    assert tuned.model.body.weight.dtype == torch.float64
    assert tuned.epochs[-1].test_error < min(0.2, tuned.epochs[0].test_error)
    assert finetune(tuned.model, (x, y), test=(x, y), epochs=1, cache=tmp_path).left_clean == 0


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"epochs": -1}, InputError, "epochs must be"),
        ({"mix": 1.5}, InputError, "mix must be a share"),
        ({"judges": "deepfool"}, InputError, "judges must be a list"),
        ({"judges": ("deepfol",)}, InputError, "did you mean deepfool"),
        ({"judges": ("fgsm",), "p": 1}, InputError, "FGSM judges by"),
        ({"perturb": "deepfol"}, InputError, "did you mean deepfool"),
        ({"max_itre": 3}, InputError, "did you mean max_iter"),
        ({"model": nets.Flat()}, ModelError, "nothing to train"),
        ({"test": (torch.rand(4, 6), None)}, DataError, "test data have samples without a label"),
    ],
)
def test_invalid_arguments_raise_before_anything_is_measured(points, tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        tune(points, tmp_path, **options)
    assert not list(tmp_path.rglob("records.jsonl"))


# Real digits, from the sample in the package.


def test_real_digits_get_harder_to_fool_and_the_best_attack_agrees(tmp_path):
    digits = load("mnist-sample")
    images, labels = digits.images(), digits.labels
    options = {"test": (images[700:], labels[700:]), "judges": ("deepfool", "smallest"), "judged": 40, "epochs": 2}
    gains = {}
    for perturb in ("deepfool", "clean"):
        tuned = finetune("fc500-mnist", (images[:700], labels[:700]), perturb=perturb, cache=tmp_path, **options)
        first, last = tuned.epochs[0], tuned.epochs[-1]
        gains[perturb] = {judge: last.rho[judge] / first.rho[judge] - 1 for judge in last.rho}
        assert last.test_error - first.test_error < 0.03
    for judge in ("deepfool", "smallest"):
        assert gains["deepfool"][judge] > 0.1
        assert abs(gains["clean"][judge]) < 0.03


# Several processes.


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [1, 2, 7, 128])
def test_the_parts_cover_the_batch(size, count):
    values = torch.rand(count, dtype=torch.float64)
    team = [Team() for _ in range(size)]
    for rank, member in enumerate(team):
        member.rank, member.size = rank, size
    parts = [member.part(count) for member in team]
    assert sum((values[mine].mean() * weight for mine, weight in parts), torch.tensor(0.0)) / size == pytest.approx(
        values.mean().item()
    )
    taken = [index for mine, weight in parts if weight for index in range(count)[mine]]
    assert taken == list(range(count))


def test_without_accelerate_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(MissingExtraError, match=r"deepfool\[accelerate\]"):
        Accelerated()


@pytest.mark.slow
def test_two_processes_end_where_one_does(tmp_path):
    """91 samples in batches of 15: parts of 7 and 8, and a last batch of a single sample."""
    tuning.main(tmp_path / "one")
    # `--cpu` would start the processes through MPI; this way torch's own launcher does.
    command = [
        sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2",
        "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0",
        str(Path(tuning.__file__)), str(tmp_path / "two"),
    ]  # fmt: skip
    path = os.pathsep.join([str(Path(tuning.__file__).parents[1]), str(Path(finetuning.__file__).parents[1])])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    one, two = (
        [torch.load(file, weights_only=True) for file in sorted((tmp_path / name).glob("rank*.pt"))]
        for name in ("one", "two")
    )
    first, second = two
    assert (one[0]["size"], first["size"], second["size"]) == (1, 2, 2)
    assert (first["main"], second["main"]) == (True, False)
    for name, weight in one[0]["model"].items():
        assert torch.allclose(first["model"][name], weight, atol=1e-6)
        assert torch.equal(first["model"][name], second["model"][name])
    assert first["rho"] == second["rho"] == pytest.approx(one[0]["rho"], rel=1e-4)
    assert (first["reports"], second["reports"]) == (one[0]["reports"], 0), "only the main process reports"
    assert len(list((tmp_path / "two" / "cache" / "perturbed").glob("*/manifest.json"))) == 1
