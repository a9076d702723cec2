"""finetune(): a few more epochs on perturbed images, and what they do to error and robustness.

The paper's protocol (section 4.2, figures 6 to 9, table 3): the training set is perturbed once, with the model as it
is; then 5 epochs at half the learning rate on those images alone, with their true labels. Its baselines are 5 epochs
on clean images, and on those of the fast gradient sign method. Where the paper is silent:

- half of which rate: of the mean rate over the last 5 epochs of training. The networks here were trained along a cosine
  that ends at 0, so that the last rate itself is no measure; half the peak gains hardly more robustness and costs more
  test error (docs/finetuning.md has the figures). It stays the same through the extra epochs;
- a sample that the attack could not fool stays clean, and is counted (`FineTuned.left_clean`);
- FGSM's eps misclassifies 90 % of the training images, as in the paper's comparison of attacks; its step is taken on
  every image, whether or not it fools.

What later work found to hold better is there too: perturbations made anew each epoch (`fresh`), mixed with clean images
(`mix`). A gain is only as good as its judge: weights that were tuned on DeepFool's examples may have learned to mislead
DeepFool. `judges=("deepfool", "smallest")` shows that.
"""

from __future__ import annotations

import copy
import hashlib
import json
import marshal
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepfool import __version__, cache
from deepfool.attacks.fgsm import smallest_eps
from deepfool.attacks.shared.adversarial import Adversarial, Status
from deepfool.attacks.shared.arguments import (
    Bounds,
    check_callable,
    check_count,
    check_flag,
    check_number,
    check_optional_count,
    check_path,
    check_share,
    check_threshold,
)
from deepfool.attacks.shared.registry import ATTACKS, Attack, complete_knobs, find_attack, name_attack
from deepfool.classifier import Classifier, Model
from deepfool.datasets import Data, load
from deepfool.datasets.loading import has_splits
from deepfool.errors import DataError, InputError, ModelError, RunError
from deepfool.metrics import rho_adv
from deepfool.models.fingerprints import fingerprint
from deepfool.models.sources import Source, resolve
from deepfool.models.zoo import ZOO
from deepfool.norms import check_p, norm
from deepfool.runs import manifests
from deepfool.runs.evaluation import check_true_labels, evaluate
from deepfool.runs.execution import choose_device
from deepfool.runs.records import Run
from deepfool.training.processes import Team, find_team
from deepfool.training.recipes import RECIPES
from deepfool.training.sgd import (
    Recipe,
    draw_batches,
    last_rate,
    make_optimizer,
    prepare,
    read_checkpoint,
    run_epoch,
    save_state,
    test_error,
)

LEARNING_RATE = 0.01
"""What `lr_scale` is relative to when nothing is known of how a model was trained."""

SHARE = 0.9
"""The share of images that the paper has FGSM misclassify."""

EPS_SAMPLES = 1000
"""How many training images FGSM's eps is found on."""


@dataclass(frozen=True)
class Epoch:
    """The model after so many extra epochs; epoch 0 is before the first."""

    epoch: int
    test_error: float
    """The share of all test samples that are classified wrongly."""
    rho: dict[str, float]
    """Judge -> rho_adv on the judged test samples; infinite where FGSM never misclassifies 90 % of them."""
    censored: dict[str, int] = field(default_factory=dict)
    """Judge -> how many samples it could not fool; where there are any, rho is a lower bound."""
    runs: dict[str, str] = field(default_factory=dict)
    """Judge -> the run folder that rho was computed from; FGSM has none."""


@dataclass(frozen=True)
class FineTuned:
    """A fine-tuned copy of a model, and how it came about."""

    model: nn.Module
    """In eval mode; the caller's own model is left as it was."""
    epochs: tuple[Epoch, ...]
    """As many as were asked for, and one before them."""
    perturbed: Path | None
    """The run folder of the (first) perturbed set; None for clean epochs."""
    left_clean: int = 0
    """Training samples that were not fooled, and so stayed as they were; with `fresh`, in the last epoch."""
    learning_rate: float = 0.0
    """The rate that was used, `lr_scale` included."""
    samples: int = 0
    """Training samples."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Everything that the result depends on."""


@dataclass(frozen=True)
class Progress:
    """What is going on: `stage` is "perturbing", "training" or "judging", `done` of `total` are samples or batches."""

    stage: str
    epoch: int
    """The extra epoch, from 1; 0 for what comes before them."""
    epochs: int
    done: int
    total: int
    name: str = ""
    """The attack or judge."""
    loss: float = math.nan
    result: Epoch | None = None
    """At the end of an epoch: what was measured."""


OnProgress = Callable[[Progress], None]


def finetune(
    model: Any,
    data: Any,
    *,
    test: Any,
    perturb: str | Attack = "deepfool",
    epochs: int = 5,
    lr_scale: float = 0.5,
    magnify: float = 1.0,
    recipe: Recipe | None = None,
    learning_rate: float | None = None,
    fresh: bool = False,
    mix: float = 0.0,
    judges: Sequence[str] = ("deepfool",),
    judged: int = 1000,
    seed: int = 0,
    p: float = 2,
    bounds: Bounds | None = None,
    arch: Any = None,
    split: str | None = None,
    test_split: str = "test",
    size: int | None = None,
    limit: int | None = None,
    batch_size: int | None = None,
    device: str = "auto",
    cache: str | Path | None = None,
    engine: str = "local",
    workers: int | None = None,
    ray_address: str | None = None,
    checkpoint: str | Path | None = None,
    on_progress: OnProgress = lambda _: None,
    **knobs: Any,
) -> FineTuned:
    """Train a copy of a model for some more epochs on perturbed images, and judge it before and after each.

    Started by `accelerate launch`, all processes call this and share each batch; the main one perturbs, judges and
    writes, and all return the same.

    Args:
        model: a spec or a module, as `evaluate` takes it; it is left untouched. Any classifier with weights to train.
        data, test: what `deepfool.datasets.load` takes; of named data sets `split` (train, unless given) and
            `test_split`.
        perturb: "clean", "fgsm", or an attack: a name of the registry, `module:function`, or a function.
        epochs: extra epochs.
        lr_scale: the learning rate is this times `learning_rate`, throughout.
        magnify: alpha of the paper: the images are x + alpha * r.
        recipe: batch size, momentum, weight decay, augmentation; its schedule, crops, bfloat16 and batch
            normalisation are not followed.
            For a network of the zoo the recipe that it was trained with, else plain SGD with momentum 0.9.
        learning_rate: what `lr_scale` is relative to; else the recipe's mean over its last 5 epochs, else 0.01.
        fresh: perturb anew before each epoch, with the model as it is by then.
        mix: the share of the images that are left clean, drawn anew each epoch.
        judges: "fgsm" (the paper's rho_adv by FGSM), or attacks by name, such as "deepfool" and "smallest".
        judged: how many test samples to judge on, the first ones; the test error is that of all.
        seed: of the order of the samples, dropout, and attacks that draw.
        p: the norm, of the perturbations and of rho_adv. FGSM's own steps are of the linf norm whatever p is.
        bounds: (lowest, highest) of the inputs, for attacks and judges; None leaves them free, as the paper does.
        arch, size, engine, workers, ray_address: as in `evaluate`.
        limit: only the first so many training samples.
        batch_size: samples per step, over all processes; else the recipe's.
        device: where to train and attack; "auto" is a GPU if there is one.
        cache: where perturbed sets and judgements are kept, by the hash of all they depend on; else in the cache
            folder of this package. A set that is there is not made again; one that was cut off goes on.
        checkpoint: the state is written there after every epoch, and a file found there is taken up again.
        on_progress: called with a `Progress` after each batch.
        **knobs: of the attack `perturb`, such as `max_iter`.

    >>> import tempfile
    >>> x = torch.rand(64, 4, generator=torch.Generator().manual_seed(0))
    >>> net = nn.Linear(4, 2)
    >>> with tempfile.TemporaryDirectory() as here:
    ...     tuned = finetune(net, (x, (x[:, 0] > 0.5).long()), test=(x, (x[:, 0] > 0.5).long()), epochs=2, cache=here)
    ...     [each.epoch for each in tuned.epochs], tuned.learning_rate, tuned.left_clean
    ([0, 1, 2], 0.005, 0)
    """
    fresh = check_flag(fresh, "fresh")
    check_callable(on_progress, "on_progress")
    check_threshold(knobs.get("threshold"))
    if recipe is not None and not isinstance(recipe, Recipe):
        raise InputError(f"recipe must be a deepfool.training.sgd.Recipe, got {type(recipe).__name__}.")
    cache, checkpoint = (
        None if place is None else check_path(place, name)
        for place, name in ((cache, "cache"), (checkpoint, "checkpoint"))
    )
    epochs, seed = check_count(epochs, "epochs", least=0), check_count(seed, "seed", least=0)
    judged, limit = check_count(judged, "judged"), check_optional_count(limit, "limit")
    lr_scale, magnify = check_number(lr_scale, "lr_scale", 0, math.inf), check_number(magnify, "magnify", 0, math.inf)
    mix = check_share(mix, "mix", zero=True)
    _check_judges(judges, p)
    team = find_team()
    device = team.device(choose_device(device))
    source = resolve(copy.deepcopy(model) if isinstance(model, nn.Module) else model, arch=arch)
    recipe = choose_recipe(model, arch, recipe, learning_rate, lr_scale, epochs, batch_size)
    split = split or ("train" if has_splits(data) else "test")
    train_data, test_data = load(data, split=split, size=size), load(test, split=test_split, size=size)
    for samples in (train_data, test_data):
        check_true_labels(source, samples, np.arange(len(samples)))
    job = _Job(
        team=team, source=source, perturb=perturb, recipe=recipe, magnify=magnify, mix=mix, fresh=fresh,
        judges=tuple(judges), judged=min(judged, len(test_data)), seed=seed, p=check_p(p), bounds=bounds,
        train=_Samples(train_data, data, split, size, limit),
        test=_Samples(test_data, test, test_split, size, None),
        place=_home() if cache is None else Path(cache), on_progress=on_progress,
        how={"arch": arch, "engine": engine, "workers": workers, "ray_address": ray_address, "device": device},
        original=model if isinstance(model, str) else source.module, home=_device_of(model), knobs=knobs, device=device,
    )  # fmt: skip
    return _tune(job, None if checkpoint is None else Path(checkpoint))


def choose_recipe(
    model: Any, arch: Any, recipe: Recipe | None, learning_rate: float | None, lr_scale: float, epochs: int,
    batch_size: int | None,
) -> Recipe:  # fmt: skip
    """The recipe of the extra epochs: one rate throughout, whole images, full precision.

    >>> round(choose_recipe("lenet-mnist", None, None, None, 0.5, 5, None).learning_rate, 5)
    0.00545
    >>> choose_recipe(nn.Linear(1, 1), None, None, 0.2, 0.5, 5, 32).learning_rate
    0.1
    """
    if recipe is None:
        entry = next((ZOO[name] for name in (model, arch) if isinstance(name, str) and name in ZOO), None)
        recipe = RECIPES.get(entry.name) if entry is not None else None
    if learning_rate is not None:
        rate = check_number(learning_rate, "learning_rate", 0, math.inf)
    else:
        rate = LEARNING_RATE if recipe is None else last_rate(recipe)
    recipe = recipe or Recipe(epochs, rate)
    # bfloat16 would round away much of a perturbation of a hundredth; crops would cut it up. A network whose batch
    # normalisation was folded away has nothing left that bounds its gradients.
    return replace(
        recipe, epochs=epochs, learning_rate=rate * lr_scale, crops=(), bfloat16=False, warmup=0.0, batchnorm=False,
        clip=min(recipe.clip, 1.0) if recipe.batchnorm else recipe.clip,
        batch_size=recipe.batch_size if batch_size is None else check_count(batch_size, "batch_size"),
    )  # fmt: skip


def step_by_sign(
    model: Model | Classifier,
    x: Tensor,
    labels: Tensor,
    *,
    eps: float,
    bounds: Bounds | None = None,
    threshold: float | None = None,
    outputs: str = "auto",
) -> Adversarial:
    """FGSM's examples as a training set takes them: the step up the loss of the true label, on every sample.

    The attack `fgsm` lets alone what is misclassified already; here such a sample is moved like the others.

    >>> model = nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.eye(2))
    >>> step_by_sign(model, torch.tensor([[3.0, 1.0], [3.0, 1.0]]), torch.tensor([0, 1]), eps=0.5).r
    tensor([[-0.5000,  0.5000],
            [ 0.5000, -0.5000]])
    """
    f = Classifier.of(model, threshold, outputs)
    with f.frozen():
        x_0 = x.detach().requires_grad_()
        z = f(x_0)
        (g,) = torch.autograd.grad(F.cross_entropy(z, labels, reduction="sum"), x_0)
        moved = x.detach() + eps * g.sign()
        if bounds is not None:
            moved = moved.clamp(*(torch.as_tensor(bound, dtype=x.dtype, device=x.device) for bound in bounds))
        adv_label = f(moved).argmax(1).detach()
    label, r = z.argmax(1).detach(), moved - x.detach()
    fooled = adv_label != label
    ones = torch.ones_like(label)
    found = norm(r.flatten(1), math.inf)
    return Adversarial(
        x=moved, r=r, label=label, adv_label=adv_label, norm=torch.where(fooled, found, math.inf), iterations=ones,
        status=torch.where(fooled, int(Status.FOOLED), int(Status.EXHAUSTED)), forwards=2 * ones, backwards=ones,
        reason=tuple("" if each else f"one step of {eps:g} did not change the label" for each in fooled.tolist()),
        p=math.inf,
    )  # fmt: skip


def _home() -> Path:
    return cache.home() / "finetuning"


def _device_of(model: Any) -> torch.device:
    weights = model.parameters() if isinstance(model, nn.Module) else iter(())
    return next((weight.device for weight in weights), torch.device("cpu"))


def _check_judges(judges: Sequence[str], p: float) -> None:
    if isinstance(judges, str) or not isinstance(judges, Sequence):
        raise InputError(f"judges must be a list of names, got {judges!r:.80}.", hint='judges=("deepfool",)')
    for judge in judges:
        find_attack(judge)
        if judge == "fgsm" and check_p(p) not in (2, math.inf):
            raise InputError(f"FGSM judges by the l2 and linf norms, got p = {p:g}.")


@dataclass(frozen=True)
class _Samples:
    """Data, and how the caller named it."""

    data: Data
    given: Any
    split: str
    size: int | None
    limit: int | None

    @property
    def count(self) -> int:
        return min(len(self.data), self.limit or len(self.data))

    def named(self) -> dict[str, Any]:
        """For `evaluate`: by name where there is one, so that its manifest says where the data came from."""
        where = {"split": self.split, "size": self.size}
        return {"data": self.given, **where} if isinstance(self.given, str) else {"data": self.data}

    def labels(self, role: str) -> Tensor:
        labels = self.data.labels[: self.count]
        if bool((labels < 0).any()):
            raise DataError(f"the {role} data have samples without a label: {self.data!r}.")
        return labels


@dataclass(frozen=True)
class _Job:
    """What one call is about."""

    team: Team
    source: Source
    original: Any
    """The spec, or a module, of the model before it is tuned."""
    home: torch.device
    """Where the caller's model is."""
    perturb: str | Attack
    recipe: Recipe
    magnify: float
    mix: float
    fresh: bool
    judges: tuple[str, ...]
    judged: int
    seed: int
    p: float
    bounds: Bounds | None
    train: _Samples
    test: _Samples
    place: Path
    how: dict[str, Any]
    knobs: dict[str, Any]
    device: str
    on_progress: OnProgress

    @property
    def reading(self) -> dict[str, Any]:
        """How the model is read as a classifier: not the attack's alone, but for training and judges too."""
        return {name: self.knobs[name] for name in ("threshold", "outputs") if name in self.knobs}

    def settings(self) -> dict[str, Any]:
        """What the result depends on, as JSON has it."""
        attack = None if self.perturb == "clean" else _identify_attack(self.perturb, self.knobs)
        described: dict[str, Any] = manifests.describe_value({
            "deepfool": __version__, "model": self.source.fingerprint, "spec": self.source.spec,
            "data": self.train.data.fingerprint(), "samples": self.train.count, "test": self.test.data.fingerprint(),
            "perturb": attack, "recipe": asdict(self.recipe), "magnify": self.magnify, "mix": self.mix,
            "fresh": self.fresh, "judges": self.judges, "judged": self.judged, "seed": self.seed, "p": self.p,
            "bounds": self.bounds,
        })  # fmt: skip
        return described

    def tell(self, stage: str, epoch: int, done: int, total: int, **more: Any) -> None:
        if self.team.is_main:
            self.on_progress(Progress(stage, epoch, self.recipe.epochs, done, total, **more))


def _tune(job: _Job, checkpoint: Path | None) -> FineTuned:
    team, recipe = job.team, job.recipe
    labels, test_labels = job.train.labels("training"), job.test.labels("test")
    model = copy.deepcopy(job.source.module).to(job.device)
    _check_trainable(model)
    prepare(model, recipe)
    optimizer = make_optimizer(model, recipe)
    settings = team.by_main(job.settings)
    state = _restore(checkpoint, model, optimizer, settings)
    past = [Epoch(**each) for each in state["epochs"]]
    images = _Images(job, model, team.by_main(lambda: _complete_knobs(job)), state["left_clean"])

    def judge(epoch: int) -> Epoch:
        found = team.by_main(lambda: _judge(job, model, epoch, test_labels))
        job.tell("judging", epoch, job.judged, job.judged, result=found)
        return found

    if not past:
        past.append(judge(0))
    joined, stepping = team.join(model, optimizer)
    score = _read_scores(joined, **job.reading)
    batches = math.ceil(len(labels) / recipe.batch_size)
    device = next(model.parameters()).device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        for epoch in range(len(past) - 1, recipe.epochs):
            # Two streams: the order of the samples is the same in all processes, dropout is not.
            order = torch.Generator().manual_seed(job.seed * 1_000_003 + epoch)
            x = images.draw(epoch, order)
            torch.manual_seed((job.seed * 1_000_003 + epoch) * 1_009 + team.rank)
            for batch, loss in run_epoch(
                joined, stepping, draw_batches(x, labels, recipe, epoch, order), recipe,
                rate=lambda _: recipe.learning_rate, place=f"extra epoch {epoch + 1}", scores=score, team=team,
            ):  # fmt: skip
                job.tell("training", epoch + 1, batch + 1, batches, loss=loss)
            past.append(judge(epoch + 1))
            if checkpoint is not None and team.is_main:
                save_state(
                    checkpoint, model, optimizer, epoch=epoch + 1, settings=settings, left_clean=images.left_clean,
                    epochs=[asdict(each) for each in past],
                )  # fmt: skip
            images.forget(epoch)
    return FineTuned(
        model=model.to(job.home).eval(), epochs=tuple(past), perturbed=images.first, left_clean=images.left_clean,
        learning_rate=recipe.learning_rate, samples=len(labels), settings=settings,
    )  # fmt: skip


def _check_trainable(model: nn.Module) -> None:
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    if not weights:
        raise ModelError(
            f"{type(model).__name__} has no weights that ask for a gradient, so there is nothing to train.",
            hint="give a torch model whose parameters have requires_grad.",
        )


def _read_scores(model: nn.Module, **reading: Any) -> Callable[[Tensor], Tensor]:
    """The class scores of any model: single logits, outputs in a tuple or a dict, and so on."""
    f, dtype = Classifier(model, **reading), next(model.parameters()).dtype
    return lambda x: f(x.to(dtype))


def _restore(
    checkpoint: Path | None, model: nn.Module, optimizer: torch.optim.Optimizer, settings: Mapping[str, Any]
) -> dict[str, Any]:
    if checkpoint is None or not checkpoint.exists():
        return {"epochs": [], "left_clean": 0}
    state = read_checkpoint(checkpoint, "epoch", "settings", "epochs", "left_clean", "model", "optimizer")
    if lines := manifests.differences(state["settings"], settings):
        told = "\n".join(f"  {line.replace('in the folder', 'in the file')}" for line in lines)
        raise InputError(
            f"{checkpoint} was written by another fine-tuning:\n{told}\n",
            hint="give another checkpoint path, or remove the file to start afresh",
        )
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state


# Perturbed images.


class _Images:
    """The training images of each epoch."""

    def __init__(self, job: _Job, model: nn.Module, knobs: Mapping[str, Any], left_clean: int) -> None:
        self.job, self.model, self.knobs, self.left_clean = job, model, knobs, left_clean
        self.first = None if job.perturb == "clean" else self._plan(job.source.fingerprint).folder
        self._clean: Tensor | None = None
        self._perturbed: Tensor | None = None
        self._fresh: Path | None = None

    def draw(self, epoch: int, order: torch.Generator) -> Tensor:
        """The images of an epoch: perturbed, but for a share of `mix`."""
        if self._clean is None:
            self._clean = self.job.train.data.batch(range(self.job.train.count))
        if self.job.perturb == "clean":
            return self._clean
        if self._perturbed is None or self.job.fresh:
            self._perturbed = self._perturb(self._clean, epoch)
        if not self.job.mix:
            return self._perturbed
        count = len(self._clean)
        spared = torch.randperm(count, generator=order)[: round(self.job.mix * count)]
        return self._perturbed.index_copy(0, spared, self._clean[spared])

    def forget(self, epoch: int) -> None:
        """Sets that were made for one epoch are of no use to any other: they are not kept."""
        if self._fresh is not None and self.job.team.is_main:
            shutil.rmtree(self._fresh, ignore_errors=True)
        self._fresh = None

    def _plan(self, weights: str) -> _Measurement:
        job = self.job
        by_sign = job.perturb == "fgsm"
        return _Measurement(
            job, weights, job.train, "deepfool.training.finetuning:step_by_sign" if by_sign else job.perturb,
            p=math.inf if by_sign else job.p, knobs=self.knobs, limit=job.train.limit, perturbations=True,
            # The only way in which `evaluate` gives labels to an attack; this one skips nothing.
            labels=by_sign,
        )  # fmt: skip

    def _perturb(self, clean: Tensor, epoch: int) -> Tensor:
        job = self.job
        original = epoch == 0 or not job.fresh
        plan = self._plan(job.source.fingerprint if original else fingerprint(self.model, job.source.spec))
        self._fresh = None if original else plan.folder
        # A resumed run has left its first weights, but not the set that they were perturbed with.
        model = job.original if original else self.model
        job.team.by_main(lambda: plan.run(model, "perturbing", epoch + 1).folder)
        perturbed = clean.clone()
        self.left_clean = 0
        for rows, r in Run(plan.folder).perturbations():
            keep = [job.perturb == "fgsm" or row["status"] == Status.FOOLED.name for row in rows]
            self.left_clean += len(keep) - sum(keep)
            index = torch.tensor([row["index"] for row in rows])[keep]
            perturbed[index] += job.magnify * torch.from_numpy(r[np.array(keep)]).to(clean.dtype)
        if job.bounds is not None:
            perturbed = perturbed.clamp(*(torch.as_tensor(bound, dtype=clean.dtype) for bound in job.bounds))
        return perturbed


def _complete_knobs(job: _Job) -> dict[str, Any]:
    """The knobs of the attack; FGSM's eps is found, with the model as it is before the first epoch."""
    if job.perturb == "clean":
        return {}
    knobs = {**job.knobs, **({} if job.bounds is None else {"bounds": job.bounds})}
    if job.perturb != "fgsm":
        complete_knobs(find_attack(job.perturb), knobs)  # to hear of wrong ones before anything is measured
        return knobs
    if "eps" not in knobs:
        count = min(job.train.count, EPS_SAMPLES)
        data = job.train.data.batch(range(count)).to(job.device), job.train.data.labels[:count].to(job.device)
        model = copy.deepcopy(job.source.module).to(job.device).float()
        found = smallest_eps(model, data, share=SHARE, bounds=job.bounds, **job.reading)
        if not found.reached:
            raise RunError(str(found), hint="give eps=... yourself.")
        knobs["eps"] = found.eps
    return knobs


@dataclass(frozen=True)
class _Measurement:
    """A run of `evaluate` that is kept under the hash of what it depends on."""

    job: _Job
    weights: str
    """The fingerprint of the model."""
    samples: _Samples
    attack: str | Attack
    p: float
    knobs: Mapping[str, Any]
    limit: int | None
    perturbations: bool = False
    labels: bool = False

    @property
    def folder(self) -> Path:
        about = {
            "deepfool": __version__, "model": self.weights, "data": self.samples.data.fingerprint(),
            "attack": _identify_attack(self.attack, self.knobs), "p": self.p, "seed": self.job.seed,
            "samples": min(len(self.samples.data), self.limit or len(self.samples.data)),
        }  # fmt: skip
        key = hashlib.sha256(json.dumps(manifests.describe_value(about), sort_keys=True).encode()).hexdigest()[:16]
        return self.job.place / ("perturbed" if self.perturbations else "judged") / key

    def run(self, model: Any, stage: str, epoch: int) -> Run:
        """Measure what is not there yet."""
        folder, name = self.folder, name_attack(self.attack)
        cache.make_folder(folder.parent)
        # Whoever needs the same set at the same time waits, and finds it.
        with filelock.FileLock(folder.with_suffix(".lock")):
            with suppress(RunError):
                if (run := Run(folder)).complete:
                    return run
            stopped: list[bool] = []
            run = evaluate(
                model, attack=self.attack, out=folder, p=self.p, limit=self.limit, seed=self.job.seed,
                save_perturbations=self.perturbations, skip_misclassified=self.labels, **self.samples.named(),
                on_progress=lambda now: self.job.tell(stage, epoch, now.done, now.total, name=name),
                on_stop=lambda: stopped.append(True),
                **{**self.job.how, "arch": self.job.how["arch"] if isinstance(model, str) else None}, **self.knobs,
            )  # fmt: skip
        if stopped:  # a Ctrl-C during the last batch stops no run, but it was meant for the whole
            raise KeyboardInterrupt
        return run


def _identify_attack(attack: str | Attack, knobs: Mapping[str, Any]) -> dict[str, Any]:
    """Name, knobs and, for attacks that are not ours, the code: it may change while the version does not."""
    name = name_attack(attack)
    described = {"name": name, "knobs": manifests.describe_value(dict(knobs))}
    if name in ATTACKS or name.startswith("deepfool."):
        return described
    function: Any = find_attack(attack)
    code = getattr(function, "__code__", None)
    held = [repr(cell.cell_contents) for cell in getattr(function, "__closure__", None) or ()]
    content = marshal.dumps(code) if code is not None else repr(function).encode()
    return {**described, "code": hashlib.sha256(content + repr(held).encode()).hexdigest()}


# What an epoch is judged by.


def _judge(job: _Job, model: nn.Module, epoch: int, labels: Tensor) -> Epoch:
    score = _read_scores(model, **job.reading)
    error = test_error(model, job.test.data.images(), labels, scores=score)
    rho: dict[str, float] = {}
    censored: dict[str, int] = {}
    runs: dict[str, str] = {}
    weights = job.source.fingerprint if epoch == 0 else fingerprint(model, job.source.spec)
    knobs = {**({} if job.bounds is None else {"bounds": job.bounds}), **job.reading}
    for name in job.judges:
        if name == "fgsm":
            rho[name] = _rho_by_sign(job, model, labels)
            continue
        plan = _Measurement(job, weights, job.test, name, p=job.p, knobs=knobs, limit=job.judged)
        run = plan.run(job.original if epoch == 0 else model, "judging", epoch)
        records = run.records()
        rho[name] = rho_adv(records, "p").value
        censored[name] = int(records.censored.sum())
        runs[name] = str(run.folder)
    return Epoch(epoch, error, rho, censored, runs)


def _rho_by_sign(job: _Job, model: nn.Module, labels: Tensor) -> float:
    """The mean of ||r|| / ||x|| at the eps at which FGSM misclassifies 90 % of the samples."""
    weight = next(model.parameters())
    x = job.test.data.batch(range(job.judged)).to(weight.device, weight.dtype)
    labels = labels[: job.judged].to(weight.device)
    found = smallest_eps(model, (x, labels), share=SHARE, bounds=job.bounds, **job.reading)
    return found.rho_linf if math.isinf(job.p) else found.rho_l2
