"""`universal`: one perturbation that changes the decision on most images, found on some and judged on others."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepfool import __version__, cache
from deepfool.attacks.shared.arguments import Bounds, check_inputs, check_threshold
from deepfool.classifier import Classifier
from deepfool.datasets import Data, load
from deepfool.errors import InputError, RunError
from deepfool.metrics.estimates import Estimate, share
from deepfool.models.sources import Source, resolve
from deepfool.norms import check_p
from deepfool.runs import manifests
from deepfool.runs.execution import choose_device
from deepfool.runs.labels import match_labels, name_classes
from deepfool.universals.ball import Ball, make_ball, mean_norm, read_xi
from deepfool.universals.images import Images
from deepfool.universals.measures import find_reached, rate_of
from deepfool.universals.results import OnProgress, Point, Progress, Transfer, Universal
from deepfool.universals.searching import Plan, State, make_plan, search
from deepfool.universals.selecting import USUAL, Selection, select
from deepfool.values import as_whole, check_callable, check_count, check_path

MANIFEST, SEARCHES = "manifest.json", "searches"
EXAMPLES = 6


def universal(
    model: Any,
    data: Any,
    *,
    xi: float | str,
    p: float = math.inf,
    method: str = "gradient",
    test: Any = None,
    used: int | None = None,
    held_out: int = USUAL,
    bounds: Bounds | None = None,
    mask: Tensor | None = None,
    target: int | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    wanted: float | None = None,
    seed: int = 0,
    curve: Sequence[float | str] = (),
    counts: Sequence[int] = (),
    transfer: Sequence[Any] | Mapping[str, Any] = (),
    split: str | None = None,
    test_split: str = "test",
    size: int | None = None,
    arch: Any = None,
    threshold: float | None = None,
    outputs: str = "auto",
    device: str = "auto",
    out: str | Path | None = None,
    on_progress: OnProgress = lambda _: None,
) -> Universal:
    """One perturbation v, ||v||_p <= xi, that changes the model's decision on as many images as possible.

    v is found on some images and judged on others. Box, mask and target work as in the attacks.

    Args:
        model: a spec or a module, as for `evaluate`.
        data: what to find v on: anything that `deepfool.datasets.load` takes.
        xi: the radius: a number, a fraction such as "10/255", or a share of the mean norm of the images used, "4%".
        p: the norm: 1, 2 or inf.
        method: "gradient", ascent on the clipped margin of mini-batches; or "deepfool", the algorithm of 2017.
        test: what to judge v on. Default: images of `data` that were not used. Images that were used are left out.
        used: how many images to find v on. Default: 1,000, but at most half of `data` if `test` is not given.
        held_out: judge v on at most so many images.
        bounds: (lowest, highest) value: x + v is cut there. None means no bounds, as in the paper.
        mask: which features may change, in the shape of one image.
        target: a class that the decisions should change to. Images that are decided so already do not count.
        epochs, batch_size: how often to go through the images used, and how many to take at once. Default: 200 steps of
            the gradient form; 5 epochs of the algorithm of 2017.
        wanted: end the search once this share of the images used is fooled. Default: go through all epochs; the
            algorithm of 2017 ends once all of them are fooled.
        seed: which images are used, and in which order.
        curve: other radii to search at, for the curve of the rate against xi.
        counts: other numbers of images to search with: the first of those used.
        transfer: other models to judge v on: specs or modules, or a dictionary of named ones.
        split, test_split, size, arch, threshold, outputs: as in `evaluate`. Of data with splits, `split` is "test"
            unless another is given.
        device: "auto" takes a GPU if there is one.
        out: a folder for checkpoints and results. The same call with the same folder resumes.
        on_progress: called with a `Progress` after each batch.

    >>> x = torch.rand(60, 4, generator=torch.Generator().manual_seed(0))
    >>> model = torch.nn.Linear(4, 2)
    >>> _ = model.weight.data.copy_(torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 0]])), model.bias.data.zero_()
    >>> universal(model, (x, None), p=2, xi=1.0)  # every x has a first feature below 1
    Universal(l2 norm 1.00, gradient: fools 100 % of 30 images not used)
    """
    check_callable(on_progress, "on_progress")
    check_threshold(threshold)
    seed, device = check_count(seed, "seed", least=0), choose_device(device)
    if target is not None and as_whole(target) is None:
        raise InputError(f"target must be a class number, got {target!r:.80}.")
    source = resolve(model, arch=arch, device=device)
    samples = match_labels(source, load(data, split=split or "test", size=size))
    others = None if test is None else match_labels(source, load(test, split=test_split, size=size))
    chosen = select(samples, others, used=used, held_out=held_out, seed=seed)
    like = check_inputs(chosen.data.batch(chosen.used[:1]), "the images").to(device)
    radius = _resolve_xi(xi, chosen, p)
    ball = make_ball(p, radius, like, bounds, mask)
    subject = _Subject(
        Classifier.of(source.module, threshold, outputs), chosen, ball, as_whole(target), device, on_progress
    )
    how = {"method": method, "epochs": epochs, "batch_size": batch_size, "wanted": wanted, "seed": seed}
    plan = make_plan(len(chosen.used), **how)  # type: ignore[arg-type]
    settings = manifests.describe_value({
        "deepfool": __version__, "model": source.fingerprint, "data": chosen.data.fingerprint(),
        "used": manifests.format_indices(chosen.used), "test": chosen.test.fingerprint(),
        "held_out": manifests.format_indices(chosen.held_out), "p": ball.p, "xi": radius, "bounds": bounds,
        "mask": mask, "target": subject.target, "threshold": threshold, "outputs": outputs, **how,
        "epochs": plan.epochs, "batch_size": plan.batch_size,
    })  # fmt: skip
    place = None if out is None else _open(check_path(out, "out"), settings)
    main = subject.find(plan, place, ball, len(chosen.used))
    radii = sorted({_resolve_xi(each, chosen, p) for each in curve} - {radius})
    along = [(radius, main)]
    for each in radii:
        along.append((each, subject.find(plan, place, replace(ball, xi=each), len(chosen.used))))
    fewer = [(count, make_plan(count, **how)) for count in _check_counts(counts, len(chosen.used))]  # type: ignore[arg-type]
    by_count = [(count, subject.find(each, place, ball, count)) for count, each in fewer]
    found = _judge(subject, plan.method, main, along if radii else [], by_count, transfer)
    found = replace(found, settings=settings, about=_describe(source, chosen, data, device))
    if place is not None:
        found.save(place)
    return found


@dataclass(frozen=True)
class _Subject:
    """Model, images and ball: all that a search needs."""

    f: Classifier
    chosen: Selection
    ball: Ball
    target: int | None
    device: str
    on_progress: OnProgress

    def images(self, data: Data, indices: list[int], ball: Ball, f: Classifier | None = None) -> Images:
        f = f or self.f
        with f.frozen():
            return Images(f, data, indices, ball, outputs_on=self.device, target=self.target)

    def find(self, plan: Plan, place: Path | None, ball: Ball, count: int) -> State:
        name = f"xi={ball.xi:.6g}, {count} images"
        file = None if place is None else place / SEARCHES / f"{name.replace(', ', '-').replace(' ', '-')}.pt"
        images = self.images(self.chosen.data, self.chosen.used[:count], ball)

        def report(done: int, total: int, rate: float) -> None:
            self.on_progress(Progress(f"finding v, {name}", done, total, rate))

        return search(images, plan, file, report)


def _judge(
    subject: _Subject, method: str, main: State, along: Sequence[tuple[float, State]],
    by_count: Sequence[tuple[int, State]], transfer: Sequence[Any] | Mapping[str, Any],
) -> Universal:  # fmt: skip
    """Everything that is measured on the images held out."""
    chosen, ball = subject.chosen, subject.ball
    named = _name_models(transfer)
    total = 1 + len(along) + len(by_count) + len(named)
    done = 0

    def tell() -> None:
        nonlocal done
        done += 1
        subject.on_progress(Progress("judging on images not used", done, total))

    held = subject.images(chosen.test, chosen.held_out, ball)
    with held.f.frozen():
        rate, with_v = rate_of(held, main.best), held.decide(main.best)
        tell()
        points = []
        for xi, state in along:
            points.append((Point(xi, len(chosen.used), rate_of(held, state.best), _used(state)), state.best))
            tell()
        counted = []
        for count, state in by_count:
            counted.append(Point(ball.xi, count, rate_of(held, state.best), _used(state)))
            tell()
        reached = find_reached(points, lambda v: rate_of(held, v).value) if points else ()
    moved = []
    for name, other in named.items():
        f = Classifier(resolve(other, device=subject.device).module)
        images = subject.images(chosen.test, chosen.held_out, ball, f)
        with f.frozen():
            moved.append(Transfer(name, rate_of(images, main.best)))
        tell()
    rows = torch.arange(min(EXAMPLES, len(held)))
    return Universal(
        v=main.best.cpu(), p=ball.p, xi=ball.xi, norm=ball.norm(main.best), method=method, rate=rate,
        used_rate=_used(main), accuracy=_accuracy(held, with_v), label=held.label.cpu(), label_with_v=with_v,
        rates=tuple(main.rates), seconds=main.seconds, curve=tuple(point for point, _ in sorted(points, key=_by_xi)),
        reached=reached, counts=tuple(counted), transfer=tuple(moved), examples=held.batch(rows).cpu(),
        example_rows=tuple(rows.tolist()),
    )  # fmt: skip


def _by_xi(each: tuple[Point, Tensor]) -> float:
    return each[0].xi


def _used(state: State) -> Estimate:
    """The rate on the images used, from the search itself: it looked at all of them with this v."""
    return share(round(state.best_rate * state.counted), state.counted)


def _accuracy(held: Images, with_v: Tensor) -> tuple[Estimate, Estimate] | None:
    true = held.true_labels
    if bool((true < 0).any()):
        return None
    return tuple(share(int((each.cpu() == true).sum()), len(true)) for each in (held.label, with_v))  # type: ignore[return-value]


def _resolve_xi(xi: Any, chosen: Selection, p: float) -> float:
    number, relative = read_xi(xi)
    if not relative:
        return number
    norms = [
        mean_norm(chosen.data.batch(chosen.used[k : k + 50]), check_p(p)) * len(chosen.used[k : k + 50])
        for k in range(0, len(chosen.used), 50)
    ]
    return number * sum(norms) / len(chosen.used)


def _check_counts(counts: Sequence[int], most: int) -> list[int]:
    found = sorted({check_count(each, "counts") for each in counts})
    if found and found[-1] > most:
        raise InputError(f"counts must not exceed the {most} images used, got {found[-1]}.", hint="raise used.")
    return found


def _name_models(models: Sequence[Any] | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(models, Mapping):
        return dict(models)
    if isinstance(models, str):
        raise InputError(f"transfer must be a list of models, got the text {models!r:.80}.")
    return {each if isinstance(each, str) else f"{type(each).__name__} {k + 1}": each for k, each in enumerate(models)}


def _open(folder: Path, settings: Mapping[str, Any]) -> Path:
    """The folder, if it is new or holds this very search."""
    file = folder / MANIFEST
    if file.exists():
        try:
            there = json.loads(file.read_text("utf-8"))["settings"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{file} cannot be read ({type(error).__name__}).", hint="choose another folder.") from error
        here = json.loads(json.dumps(settings))
        if lines := manifests.differences(there, here):
            listed = "\n".join(f"  {line}" for line in lines)
            raise RunError(f"{folder} holds another search:\n{listed}\n", hint="choose another folder (out).")
        return folder
    if folder.exists() and (not folder.is_dir() or any(not each.name.startswith(".") for each in folder.iterdir())):
        raise RunError(
            f"{folder} is not empty and holds no search for a universal perturbation.", hint="choose another."
        )
    text = json.dumps({"settings": settings, "session": manifests.describe_session()}, indent=1, allow_nan=False)
    cache.write(file, text.encode())
    return folder


def _describe(source: Source, chosen: Selection, data: Any, device: str) -> dict[str, Any]:
    session = manifests.describe_session(device=device)
    return {
        "model": source.spec, "data": chosen.data.name, "test": chosen.test.name,
        "spec": data if isinstance(data, str) else None, "classes": list(name_classes(source) or chosen.data.classes),
        "used": len(chosen.used), "held_out": len(chosen.held_out), "twins": chosen.twins, "session": session,
    }  # fmt: skip
