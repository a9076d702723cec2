"""Check a run again from its stored perturbations: norms and labels, in other precisions and batch sizes, rounded."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepfool.attacks.shared.aims import Aim, Other, find_goal
from deepfool.attacks.shared.alternatives import judge
from deepfool.attacks.shared.arguments import count_channels
from deepfool.classifier import Classifier
from deepfool.classifier.classifier import OUTPUTS
from deepfool.datasets import Data, load
from deepfool.errors import DeepFoolError, RunError
from deepfool.models.sources import Source, resolve
from deepfool.norms import norm, norm_of_whole
from deepfool.runs.execution import choose_device
from deepfool.runs.records import Run, refuse_code
from deepfool.runs.rows import Row
from deepfool.runs.weighing import weigh
from deepfool.runs.worker import DTYPES

TOLERANCE = 1e-5
"""Largest relative difference allowed between a norm and the one in its row."""


@dataclass
class Trial:
    """One way to evaluate x + r again."""

    name: str
    what: str
    tried: int = 0
    changed: int = 0
    """The label still differs from the one at x: the perturbation works."""
    same: int = 0
    """The label is the one in the row."""
    lost: list[int] = field(default_factory=list)
    """The first samples whose perturbation does not work."""
    skipped: str = ""
    """Why the trial was not possible."""


@dataclass
class Verification:
    """The outcome, for the rows marked FOOLED."""

    rows: int = 0
    fooled: int = 0
    wrong_norms: list[int] = field(default_factory=list)
    wrong_labels: list[int] = field(default_factory=list)
    """Samples whose label at x is not the one in the row."""
    trials: list[Trial] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether norms and labels match the rows, in the precision of the run."""
        own = self.trials[0]
        return not self.wrong_norms and not self.wrong_labels and own.changed == own.tried == self.fooled

    def as_dict(self) -> dict[str, Any]:
        return {
            "holds": self.holds, "rows": self.rows, "fooled": self.fooled, "wrong_norms": self.wrong_norms,
            "wrong_labels": self.wrong_labels, "trials": [vars(trial) for trial in self.trials],
        }  # fmt: skip


def verify(
    run: Run,
    model: Any = None,
    data: Any = None,
    *,
    device: str = "cpu",
    batch_size: int = 37,
    may_run_code: bool = False,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Verification:
    """Recompute the norms and labels of a run that stored its perturbations.

    `model` and `data` are needed only if the run was made from objects; they must have the hashes in the manifest.
    `batch_size` is for the trial in another batch size. If the manifest names code as the model (`py:`), it is run
    only with `may_run_code`.

    >>> import tempfile
    >>> from deepfool import evaluate
    >>> model, data = torch.nn.Linear(4, 3), (torch.rand(8, 4), torch.zeros(8, dtype=torch.long))
    >>> with tempfile.TemporaryDirectory() as here:
    ...     verify(evaluate(model, data, out=here, save_perturbations=True), model, data).holds
    True
    """
    source, samples = find_subjects(run, model, data, may_run_code=may_run_code)
    device = choose_device(device)
    own = DTYPES[run.identity["dtype"]]
    knobs = run.identity["attack"]["knobs"]
    outputs = knobs.get("outputs")
    aim = find_goal(knobs)
    reading = {
        "threshold": knobs.get("threshold"), "outputs": outputs if outputs in OUTPUTS else "auto", "reads": aim.reads,
    }  # fmt: skip
    trials = _make_trials(source, device, own, reading, aim, batch_size)
    found = Verification(trials=[trial for trial, _ in trials])
    for rows, r in run.perturbations():
        found.rows += len(rows)
        keep = [i for i, row in enumerate(rows) if row["status"] == "FOOLED"]
        fooled = [rows[i] for i in keep]
        if fooled:
            x = samples.batch([row["index"] for row in fooled])
            r_kept = torch.from_numpy(r[keep]).to(device)
            _verify_batch(found, trials, fooled, x.to(device), r_kept, own, run)
        on_progress(found.rows, run.expected)
    return found


def find_subjects(run: Run, model: Any, data: Any, *, may_run_code: bool = False) -> tuple[Source, Data]:
    """The model and the data of a run, as named in the manifest or as given by the caller.

    If the manifest names code as the model, it is refused without `may_run_code`; a model from the caller is trusted.
    """
    about, where = run.manifest["model"], run.manifest["data"]
    if model is None and not may_run_code:
        refuse_code(run)
    if data is None and where["spec"] is None:
        raise RunError(f"{run.folder} was made from data in memory.", hint="give the data too (--data).")
    spec = where["spec"] if data is None else data
    samples = load(spec, split=where["split"], size=where["size"]) if isinstance(spec, str) else load(spec)
    try:
        source = resolve(about["spec"], arch=about["arch"]) if model is None else resolve(copy.deepcopy(model))
    except DeepFoolError as error:
        if model is not None:
            raise
        raise RunError(
            f"the model of {run.folder} cannot be built from {about['spec']!r}: {error}",
            hint="if it was a module, give the model too (--model).",
        ) from error
    for name, now, then in (
        ("model", source.fingerprint, run.identity["model"]["sha256"]),
        ("data", samples.fingerprint(), run.identity["data"]["sha256"]),
    ):
        if now != then:
            raise RunError(
                f"the {name} is not the one of the run: expected {then[:16]}, got {now[:16]}.",
                hint="give the one that was measured: --model, --data.",
            )
    return source, samples


_Look = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(x, r, labels at x) -> labels at the perturbed points, or the alternatives of the goal there."""


def _make_trials(
    source: Source, device: str, own: torch.dtype, reading: Mapping[str, Any], aim: Aim, batch_size: int
) -> list[tuple[Trial, _Look | None]]:
    """The trials, the first one in the precision of the run; a trial that the model does not allow says why."""
    name = str(own).removeprefix("torch.")
    f = _build(source, device, own, reading)
    trials: list[tuple[Trial, _Look | None]] = [
        (Trial(name, f"x + r in {name}, as it was measured"), _looking(f, aim, own))
    ]
    for dtype in (torch.float32, torch.float64):
        if dtype == own:
            continue
        name = str(dtype).removeprefix("torch.")
        trial = Trial(name, f"x + r in {name}")
        look = None
        try:
            look = _looking(_build(source, device, dtype, reading), aim, dtype)
        except (RuntimeError, NotImplementedError, TypeError) as error:
            trial.skipped = str(error).splitlines()[0]
        trials.append((trial, look))
    trials.append((Trial("batch", f"x + r in batches of at most {batch_size}"), _looking(f, aim, own, batch_size)))
    trials.append(
        (Trial("8-bit", "x + r clipped to [0, 1] and rounded to 8 bits"), _looking(f, aim, own, rounding=True))
    )
    return trials


def _build(source: Source, device: str, dtype: torch.dtype, reading: Mapping[str, Any]) -> Classifier:
    return Classifier(copy.deepcopy(source.module).to(device=device, dtype=dtype), **reading)


def _looking(
    f: Classifier, aim: Aim, dtype: torch.dtype, batch_size: int | None = None, rounding: bool = False
) -> _Look:
    def look(x: Tensor, r: Tensor, label: Tensor) -> Tensor:
        y = (x.to(r.dtype) + r).to(dtype)
        if rounding:
            y = (y.clamp(0, 1) * 255).round() / 255
        with f.frozen(), torch.no_grad():
            z = torch.cat([f(part) for part in _cut(y, batch_size)])[: len(y)]
            return z.argmax(1) if isinstance(aim, Other) else judge(aim, f(x.to(dtype)), z, label)

    return look


def _cut(y: Tensor, batch_size: int | None) -> Sequence[Tensor]:
    """A batch in parts of another size than its own."""
    if batch_size is None:
        return [y]
    if len(y) == 1:
        return [torch.cat([y, y])]
    return torch.split(y, min(batch_size, len(y) // 2))


def _verify_batch(
    found: Verification, trials: Sequence[tuple[Trial, _Look | None]], rows: Sequence[Row], x: Tensor, r: Tensor,
    own: torch.dtype, run: Run,
) -> None:  # fmt: skip
    index = [row["index"] for row in rows]
    label = torch.tensor([row["label"] for row in rows], device=x.device)
    adv_label = torch.tensor([row["adv_label"] for row in rows], device=x.device)
    found.fooled += len(rows)
    x = x.to(own)
    found.wrong_norms += _compare_norms(rows, x, r, run)
    clean = trials[0][1]
    if clean is not None:
        off = (clean(x, torch.zeros_like(r), label) != label).tolist()
        found.wrong_labels += [i for i, wrong in zip(index, off, strict=True) if wrong]
    for trial, look in trials:
        if look is None:
            continue
        if trial.name == "8-bit" and (float(x.min()) < 0 or float(x.max()) > 1):
            trial.skipped = "the inputs do not lie in [0, 1], so they are not images"
            continue
        try:
            now = look(x, r, label)
        except DeepFoolError as error:
            trial.skipped = str(error).splitlines()[0]
            continue
        trial.tried += len(rows)
        trial.changed += int((now != label).sum())
        trial.same += int((now == adv_label).sum())
        lost = (now == label).tolist()
        trial.lost = (trial.lost + [i for i, gone in zip(index, lost, strict=True) if gone])[:20]


def _compare_norms(rows: Sequence[Row], x: Tensor, r: Tensor, run: Run) -> list[int]:
    """The samples whose norms in the rows differ from those of the stored r, or of x."""
    wrong: set[int] = set()
    channels = count_channels(run.unit or "feature", run.p, x)
    for side, values, measure in (("r", r, norm), ("x", x, norm_of_whole)):
        flat = weigh(values.flatten(1).double(), run.identity["attack"]["knobs"])
        for name, size in (("l1", 1.0), ("l2", 2.0), ("linf", math.inf), ("p", run.p)):
            now = measure(flat, size, channels).cpu().numpy()
            then = np.array([row[f"{side}_{name}"] for row in rows], np.float64)
            off = ~np.isclose(now, then, rtol=TOLERANCE, atol=1e-12)
            wrong.update(rows[i]["index"] for i in np.flatnonzero(off).tolist())
    return sorted(wrong)
