"""The training images of each epoch: the perturbed set, mixed with clean images on request."""

from __future__ import annotations

import copy
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from deepfool.attacks.fgsm import smallest_eps
from deepfool.attacks.shared.adversarial import Status
from deepfool.attacks.shared.registry import complete_knobs, find_attack
from deepfool.errors import RunError
from deepfool.models.fingerprints import fingerprint
from deepfool.runs.records import Run
from deepfool.training.jobs import Job
from deepfool.training.measuring import Measurement

SHARE = 0.9
"""The share of images that the paper has FGSM misclassify."""

EPS_SAMPLES = 1000
"""How many training images FGSM's eps is searched on."""


class Images:
    """The training images of each epoch."""

    def __init__(self, job: Job, model: nn.Module, knobs: Mapping[str, Any], left_clean: int) -> None:
        self.job, self.model, self.knobs, self.left_clean = job, model, knobs, left_clean
        self.first = None if job.perturb == "clean" else self._plan(job.source.fingerprint).folder
        self._clean: Tensor | None = None
        self._perturbed: Tensor | None = None
        self._fresh: Path | None = None

    def draw(self, epoch: int, order: torch.Generator) -> Tensor:
        """The images of an epoch: perturbed, except for a share of `mix`."""
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

    def forget(self) -> None:
        """Delete a set that was made for one epoch: no other epoch can use it."""
        if self._fresh is not None and self.job.team.is_main:
            shutil.rmtree(self._fresh, ignore_errors=True)
        self._fresh = None

    def _plan(self, weights: str) -> Measurement:
        job = self.job
        by_sign = job.perturb == "fgsm"
        return Measurement(
            job, weights, job.train, "deepfool.attacks.fgsm:step_by_sign" if by_sign else job.perturb,
            p=math.inf if by_sign else job.p, knobs=self.knobs, limit=job.train.limit, perturbations=True,
            # Only with `skip_misclassified` does `evaluate` pass labels to an attack; this attack skips nothing.
            labels=by_sign,
        )  # fmt: skip

    def _perturb(self, clean: Tensor, epoch: int) -> Tensor:
        job = self.job
        original = epoch == 0 or not job.fresh
        plan = self._plan(job.source.fingerprint if original else fingerprint(self.model, job.source.spec))
        self._fresh = None if original else plan.folder
        # After a resume `self.model` no longer has the first weights, which the first set is made with.
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


def choose_knobs(job: Job) -> dict[str, Any]:
    """The knobs of the attack; FGSM's eps is searched, with the model as it is before the first epoch."""
    if job.perturb == "clean":
        return {}
    knobs = {**job.knobs, **({} if job.bounds is None else {"bounds": job.bounds})}
    if job.perturb != "fgsm":
        complete_knobs(find_attack(job.perturb), knobs)  # raises on a wrong knob before anything is measured
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
