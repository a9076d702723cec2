"""finetune(): a few more epochs on perturbed images, and their effect on test error and robustness.

The paper's protocol (section 4.2, figures 6 to 9, table 3): the training set is perturbed once, with the model as it
is. Then come 5 epochs at half the learning rate on those images alone, with their true labels. The baselines are 5
epochs on clean images, and 5 on images perturbed by the fast gradient sign method. Where the paper is silent:

- Half of which rate? Of the mean rate over the last 5 epochs of training. The networks here were trained on a cosine
  schedule that ends at 0, so the last rate itself says nothing. Half the peak rate gains hardly more robustness and
  costs more test error (docs/finetuning.md has the figures). The rate is constant over the extra epochs.
- A sample that the attack could not fool stays clean, and is counted (`FineTuned.left_clean`).
- FGSM's eps misclassifies 90 % of the training images, as in the paper's comparison of attacks. Every image takes the
  step, whether or not it is fooled.

Two variants that later work found better are available: new perturbations before each epoch (`fresh`), and clean
images mixed in (`mix`). A gain is only as good as its judge: a model fine-tuned on DeepFool's examples may have
learned to mislead DeepFool. `judges=("deepfool", "smallest")` shows whether it did.

    perturbing.py ──▶ the loop here ──▶ judging.py     (both measure through measuring.py)
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from deepfool import cache as folders
from deepfool.attacks.shared.arguments import Bounds, check_threshold
from deepfool.attacks.shared.registry import Attack
from deepfool.datasets import load
from deepfool.datasets.loading import has_splits
from deepfool.errors import InputError, ModelError
from deepfool.models.sources import resolve
from deepfool.models.zoo import ZOO
from deepfool.norms import check_p
from deepfool.runs import manifests
from deepfool.runs.execution import choose_device
from deepfool.runs.labels import check_true_labels
from deepfool.training.checkpoints import read_checkpoint, save_checkpoint
from deepfool.training.jobs import Job, Samples
from deepfool.training.judging import check_judges, judge, read_scores
from deepfool.training.objectives import Plain
from deepfool.training.perturbing import Images, choose_knobs
from deepfool.training.processes import find_team
from deepfool.training.recipes import RECIPES
from deepfool.training.results import Epoch, FineTuned, OnProgress
from deepfool.training.sgd import Recipe, draw_batches, last_rate, make_optimizer, prepare, run_epoch
from deepfool.values import (
    check_callable,
    check_count,
    check_flag,
    check_number,
    check_optional_count,
    check_path,
    check_share,
)

LEARNING_RATE = 0.01
"""What `lr_scale` is relative to when it is unknown how the model was trained."""


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
    """Train a copy of a model for a few more epochs on perturbed images, and judge it before and after each epoch.

    Under `accelerate launch` all processes call this and share each batch. The main one perturbs, judges and writes;
    all return the same result.

    Args:
        model: a spec or a module, as for `evaluate`; any classifier with weights to train. It is not modified.
        data, test: anything that `deepfool.datasets.load` takes. Of a data set with splits, `split` (default: train)
            and `test_split` are used.
        perturb: "clean", "fgsm", or any other attack: its name, `module:function`, or a function.
        epochs: how many extra epochs.
        lr_scale: the learning rate of all extra epochs is this times `learning_rate`.
        magnify: the paper's alpha: the images are x + alpha * r.
        recipe: batch size, momentum, weight decay and augmentation; its schedule, crops, bfloat16, batch
            normalisation and objective are ignored. Default: for a network of the zoo the recipe it was trained with,
            otherwise plain SGD with momentum 0.9.
        learning_rate: what `lr_scale` is relative to. Default: the recipe's mean over its last 5 epochs, or 0.01.
        fresh: perturb again before each epoch, with the current model.
        mix: the share of images that are left clean, drawn again for each epoch.
        judges: "fgsm" (the paper's rho_adv by FGSM), or attacks by name, such as "deepfool" and "smallest".
        judged: judge on the first this many test samples; the test error is always over all of them.
        seed: for the order of the samples, dropout, and attacks that use random numbers.
        p: the norm of the perturbations and of rho_adv. FGSM always steps in the linf norm.
        bounds: (lowest, highest) input value, for attacks and judges; None means no bounds, as in the paper.
        arch, size, engine, workers, ray_address: as in `evaluate`.
        limit: use only the first this many training samples.
        batch_size: samples per step, over all processes. Default: the recipe's.
        device: where to train and attack; "auto" takes a GPU if there is one.
        cache: the folder of perturbed sets and judgements, stored under the hash of everything they depend on.
            Default: the cache folder of this package. A finished set is reused, an interrupted one is resumed.
        checkpoint: a file that is written after every epoch; if it exists already, training resumes from it.
        on_progress: called with a `Progress` after each batch.
        **knobs: knobs of the attack `perturb`, such as `max_iter`.

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
    check_judges(judges, p)
    team = find_team()
    device = team.device(choose_device(device))
    source = resolve(copy.deepcopy(model) if isinstance(model, nn.Module) else model, arch=arch)
    recipe = choose_recipe(model, arch, recipe, learning_rate, lr_scale, epochs, batch_size)
    split = split or ("train" if has_splits(data) else "test")
    train_data, test_data = load(data, split=split, size=size), load(test, split=test_split, size=size)
    for samples in (train_data, test_data):
        check_true_labels(source, samples, np.arange(len(samples)))
    job = Job(
        team=team, source=source, perturb=perturb, recipe=recipe, magnify=magnify, mix=mix, fresh=fresh,
        judges=tuple(judges), judged=min(judged, len(test_data)), seed=seed, p=check_p(p), bounds=bounds,
        train=Samples(train_data, data, split, size, limit),
        test=Samples(test_data, test, test_split, size, None),
        place=folders.home() / "finetuning" if cache is None else Path(cache), on_progress=on_progress,
        how={"arch": arch, "engine": engine, "workers": workers, "ray_address": ray_address, "device": device},
        original=model if isinstance(model, str) else source.module, home=_device_of(model), knobs=knobs, device=device,
    )  # fmt: skip
    return _tune(job, None if checkpoint is None else Path(checkpoint))


def choose_recipe(
    model: Any, arch: Any, recipe: Recipe | None, learning_rate: float | None, lr_scale: float, epochs: int,
    batch_size: int | None,
) -> Recipe:  # fmt: skip
    """The recipe of the extra epochs: a constant rate, whole images, full precision.

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
    # bfloat16 would round away much of a perturbation of 0.01, and crops would cut it up. Clipping is for networks
    # whose batch normalisation was folded away: nothing else bounds their gradients any more.
    return replace(
        recipe, epochs=epochs, learning_rate=rate * lr_scale, crops=(), bfloat16=False, warmup=0.0, batchnorm=False,
        objective=Plain(), clip=min(recipe.clip, 1.0) if recipe.batchnorm else recipe.clip,
        batch_size=recipe.batch_size if batch_size is None else check_count(batch_size, "batch_size"),
    )  # fmt: skip


def _device_of(model: Any) -> torch.device:
    weights = model.parameters() if isinstance(model, nn.Module) else iter(())
    return next((weight.device for weight in weights), torch.device("cpu"))


def _tune(job: Job, checkpoint: Path | None) -> FineTuned:
    team, recipe = job.team, job.recipe
    labels, test_labels = job.train.labels("training"), job.test.labels("test")
    model = copy.deepcopy(job.source.module).to(job.device)
    _check_trainable(model)
    prepare(model, recipe)
    optimizer = make_optimizer(model, recipe)
    settings = team.by_main(job.settings)
    state = _restore(checkpoint, model, optimizer, settings)
    past = [Epoch(**each) for each in state["epochs"]]
    images = Images(job, model, team.by_main(lambda: choose_knobs(job)), state["left_clean"])

    def measure(epoch: int) -> Epoch:
        found = team.by_main(lambda: judge(job, model, epoch, test_labels))
        job.report("judging", epoch, job.judged, job.judged, result=found)
        return found

    if not past:
        past.append(measure(0))
    joined, stepping = team.join(model, optimizer)
    score = read_scores(joined, **job.reading)
    batches = math.ceil(len(labels) / recipe.batch_size)
    device = next(model.parameters()).device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        for epoch in range(len(past) - 1, recipe.epochs):
            # Two random streams: the order of the samples is the same in all processes, dropout is not.
            order = torch.Generator().manual_seed(job.seed * 1_000_003 + epoch)
            x = images.draw(epoch, order)
            torch.manual_seed((job.seed * 1_000_003 + epoch) * 1_009 + team.rank)
            for batch, loss in run_epoch(
                joined, stepping, draw_batches(x, labels, recipe, epoch, order), recipe,
                rate=lambda _: recipe.learning_rate, place=f"extra epoch {epoch + 1}", scores=score, team=team,
            ):  # fmt: skip
                job.report("training", epoch + 1, batch + 1, batches, loss=loss)
            past.append(measure(epoch + 1))
            if checkpoint is not None and team.is_main:
                save_checkpoint(
                    checkpoint, model, optimizer, epoch=epoch + 1, settings=settings, left_clean=images.left_clean,
                    epochs=[asdict(each) for each in past],
                )  # fmt: skip
            images.forget()
    return FineTuned(
        model=model.to(job.home).eval(), epochs=tuple(past), perturbed=images.first, left_clean=images.left_clean,
        learning_rate=recipe.learning_rate, samples=len(labels), settings=settings,
    )  # fmt: skip


def _check_trainable(model: nn.Module) -> None:
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    if not weights:
        raise ModelError(
            f"{type(model).__name__} has no weights that require a gradient, so there is nothing to train.",
            hint="give a torch model whose parameters have requires_grad.",
        )


def _restore(
    checkpoint: Path | None, model: nn.Module, optimizer: torch.optim.Optimizer, settings: Mapping[str, Any]
) -> dict[str, Any]:
    if checkpoint is None or not checkpoint.exists():
        return {"epochs": [], "left_clean": 0}
    state = read_checkpoint(checkpoint, "epoch", "settings", "epochs", "left_clean", "model", "optimizer")
    if lines := manifests.differences(state["settings"], settings):
        listed = "\n".join(f"  {line.replace('in the folder', 'in the file')}" for line in lines)
        raise InputError(
            f"{checkpoint} was written by a fine-tuning with other settings:\n{listed}\n",
            hint="give another checkpoint path, or remove the file to start again",
        )
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state
