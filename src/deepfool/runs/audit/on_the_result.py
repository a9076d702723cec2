"""Checks of the result: would more passes or a stronger attack find less, and what does the number mean?"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from deepfool.attacks.shared.registry import name_attack
from deepfool.display.pixels import is_image
from deepfool.outcomes import Evidence
from deepfool.runs.audit.checklist import Check, Verdict
from deepfool.runs.audit.subject import NORMS, STRONGEST, Subject
from deepfool.runs.rows import Floats, Row, says_convergence

FALL = {1.0: 0.06, 2.0: 0.04, math.inf: 0.03}
"""How much smaller, by the norm p, ten times the passes may make the perturbations (geometric mean). Measured from 100
to 1000 passes on 8 samples (docs/benchmarks/audits.md). Networks of the zoo on which no row is more than 1.2 times too
large: up to 0.027 in l2 and 0.030 in linf, and 0.031 on conv-mnist-linf, which is cautioned for nothing. Five networks
on which attacks are hard: 0.046 to 0.18 in l2, 0.034 to 0.12 in linf. Earlier, on 8 and 16 samples: a residual network
with GELU up to 0.009 in l2 and linf, an attention network 0.029 in l2; in l1 up to 0.04 where it is easy, and from 0.18
on where it is hard."""

MEAN, WORST = 1.1, 1.2
"""How many times the smallest known norm those of the run may be: on average, and for any sample."""
FAR = 1.5
"""With more than that on average, the numbers of the run are not to be used."""

UNSETTLED = 0.25
"""The share of rows that may have been cut off before they converged. Of 16 samples, `smallest` leaves up to 2 on the
networks of the zoo, and 5 to 13 where attacks are hard."""

HALF_A_LEVEL = 0.5 / 255
"""What changes a pixel by less is undone by rounding to 8 bits."""
GROWTH, LONGEST = 1.02, 150
"""A perturbation is stretched by 2 % at a time until it survives rounding, up to 20 times its length."""


def check_budget(subject: Subject) -> list[Check]:
    """How much smaller do the norms get with ten times the passes?"""
    if subject.job.p not in NORMS:
        return [_cannot("tenfold budget", subject)]
    weak, strong = _norms(subject.weak), _norms(subject.strong)
    fall = _fall(weak, strong)
    if fall is None:
        return [Check("tenfold budget", Verdict.CAUTION, f"{STRONGEST} fooled none of the samples.", None)]
    late = int((~np.isfinite(weak) & np.isfinite(strong)).sum())
    sentence = f"With ten times the passes, {STRONGEST} finds perturbations that are {_percent(fall)} smaller"
    if late:
        sentence += f", and finds one for {late} more of {len(weak)} samples"
    good = fall <= FALL[subject.job.p] and not late
    sentence += "." if good else ": the search is hard here, and what 100 passes find is not the smallest."
    return [Check("tenfold budget", Verdict.PASS if good else Verdict.CAUTION, sentence, round(fall, 6))]


def check_strongest(subject: Subject) -> list[Check]:
    """The rows of the run against the smallest perturbation known."""
    name, attack = "strongest attack", name_attack(subject.job.attack)
    if subject.job.p not in NORMS:
        return [_cannot(name, subject)]
    own = _norms(subject.rows)
    known = np.minimum(own, np.minimum(_norms(subject.weak), _norms(subject.strong)))
    found = np.isfinite(own)
    missed = int((~found & np.isfinite(known)).sum())
    lost = f"{attack} found nothing for {missed} of {len(own)} samples, {STRONGEST} did." if missed else ""
    if not found.any():
        if lost:
            return [Check(name, Verdict.FAIL, lost, None)]
        return [Check(name, Verdict.CAUTION, f"Neither {attack} nor {STRONGEST} fooled any of the samples.", None)]
    ratios = _ratio(own[found], known[found])
    mean, worst = float(ratios.mean()), float(ratios.max())
    sentence = f"The norms of {attack} are on average {mean:.2f} times the smallest known, at most {worst:.2f} times."
    verdict = Verdict.PASS
    if mean > FAR:
        verdict = Verdict.FAIL
    elif mean > MEAN or worst > WORST or missed:
        verdict = Verdict.CAUTION
    if verdict is not Verdict.PASS:
        sentence += " Measure with " + ("a larger budget." if attack == STRONGEST else f"--attack {STRONGEST}.")
    return [Check(name, verdict, f"{lost} {sentence}".strip(), round(mean, 6))]


def check_evidence(subject: Subject) -> list[Check]:
    """What the rows were found by."""
    records = subject.records
    counts = {each: int((records.fooled & (records.evidence == each)).sum()) for each in Evidence}
    known, others = sum(counts.values()), sum(counts.values()) - counts[Evidence.GRADIENTS]
    if not known:
        return [Check("found by", Verdict.CAUTION, "The rows do not say what they were found by.", None)]
    if not others:
        return [Check("found by", Verdict.PASS, f"All {known} perturbations were found by gradients.", 0.0)]
    kinds = ", ".join(f"{n} by {_BY[each]}" for each, n in counts.items() if n and each is not Evidence.GRADIENTS)
    sentence = f"{others} of {known} perturbations were not found by the model's own gradients ({kinds})."
    return [Check("found by", Verdict.CAUTION, sentence, others / known)]


_BY = {Evidence.REPAIRED: "repaired gradients", Evidence.SCORES: "scores alone", Evidence.DECISIONS: "decisions alone"}


def check_convergence(subject: Subject) -> list[Check]:
    """Rows that were still getting smaller when the passes ran out.

    No caution where the samples were searched again with ten times the passes, and that has hardly lowered their norms:
    what is still to come is known then, and small.
    """
    records, attack = subject.records, name_attack(subject.job.attack)
    name, fooled = "converged", int((records.fooled & (records.converged >= 0)).sum())
    if not says_convergence(attack, records):
        sentence = f"{attack} ends with its first answer; how far that is from the smallest, the strongest attack says."
        return [Check(name, Verdict.PASS, sentence, None)]
    open_ = int((records.fooled & (records.converged == 0)).sum())
    if open_ <= UNSETTLED * fooled:
        sentence = f"{fooled - open_} of {fooled} perturbations had stopped getting smaller when the search ended."
        return [Check(name, Verdict.PASS, sentence, open_ / max(1, fooled))]
    sentence = f"{open_} of {fooled} perturbations were still getting smaller at the end of the search"
    if subject.job.p in NORMS:
        own, strong = _norms(subject.rows), _norms(subject.strong)
        fall = _fall(own, np.minimum(own, strong))
        if fall is not None and fall <= FALL[subject.job.p] and np.isfinite(strong).all():
            more = f"; those searched with ten times the passes are {_percent(fall)} smaller then."
            return [Check(name, Verdict.PASS, sentence + more, open_ / fooled)]
    return [Check(name, Verdict.CAUTION, sentence + ": raise the budget.", open_ / fooled)]


def check_bounds(subject: Subject) -> list[Check]:
    """Do the inputs lie in the bounds; without bounds, do the perturbed images leave the range of pixels?"""
    x = subject.x.double()
    if subject.bounds is not None:
        low, high = (torch.as_tensor(each, dtype=x.dtype, device=x.device) for each in subject.bounds)
        out = float(torch.maximum(low - x, x - high).amax().clamp_min(0))
        if out > 0:
            return [Check("bounds", Verdict.FAIL, f"The inputs leave the bounds, by up to {out:.3g}.", out)]
        return [Check("bounds", Verdict.PASS, "The inputs lie in the bounds, and so do the perturbed ones.", 0.0)]
    found = subject.fooled()
    if found is None or not _are_pixels(x):
        return [Check("bounds", Verdict.PASS, "No bounds were given: inputs may take any value.", None)]
    y = found[0].double() + found[1].double()
    away = torch.maximum(-y, y - 1).clamp_min(0).flatten(1).amax(1)
    out, n = float(away.max()), int((away > 0).sum())
    sentence = "No bounds were given, and no perturbed image leaves [0, 1]."
    if n:
        # No caution: without bounds, as in the paper, distances are smaller than with them, never larger.
        sentence = (
            f"No bounds were given, as in the paper: {n} of {len(y)} perturbed images leave [0, 1], by up to "
            f"{out:.2g}. Inside bounds the distances are larger."
        )
    return [Check("bounds", Verdict.PASS, sentence, round(out, 9))]


def check_8_bits(subject: Subject) -> list[Check]:
    """Do the perturbations survive rounding to 8 bits? Of images only."""
    found = subject.fooled()
    if found is None or not _are_pixels(subject.x):
        return []
    x, r, label = found
    largest = r.flatten(1).abs().amax(1)
    below = int((largest < HALF_A_LEVEL).sum())
    scales = [_survives_at(subject, x[i : i + 1], r[i : i + 1], int(label[i])) for i in range(len(x))]
    as_is, last = sum(scale == 1 for scale in scales), max(scales)
    told = f"{as_is} of {len(x)} perturbations still fool when the image is clipped to [0, 1] and rounded to 8 bits"
    if as_is < len(x):
        told += (
            f"; stretched by {_percent(last - 1)}, all do" if math.isfinite(last) else "; some are lost at any length"
        )
    if 2 * below > len(x):  # most of them: single samples lie next to a boundary in any network
        sentence = f"{told}. {below} change no pixel by half a level: the distances are below what 8 bits resolve."
        return [Check("8-bit rounding", Verdict.CAUTION, sentence, as_is / len(x))]
    return [Check("8-bit rounding", Verdict.PASS, f"{told}.", as_is / len(x))]


def _survives_at(subject: Subject, x: Tensor, r: Tensor, label: int) -> float:
    """How far the perturbation of a sample has to be stretched to survive rounding; infinite if it never does."""
    f = subject.f
    scales = torch.tensor([GROWTH**i for i in range(LONGEST)], dtype=torch.float64)
    with f.frozen(), torch.no_grad():
        for some in torch.split(scales, 16):
            y = x.double() + some.to(x.device).view(-1, *[1] * (x.ndim - 1)) * r.double()
            fooled = f(((y.clamp(0, 1) * 255).round() / 255).to(x.dtype)).argmax(1).cpu() != label
            if bool(fooled.any()):
                return float(some[fooled][0])
    return math.inf


def _norms(rows: Sequence[Row]) -> Floats:
    """The norms of rows, infinite where nothing was found."""
    return np.array([math.inf if row["r_p"] is None else row["r_p"] for row in rows], np.float64)


def _fall(before: Floats, after: Floats) -> float | None:
    """How much smaller norms became, as a geometric mean over those that are known; None if none is."""
    both = np.isfinite(before) & np.isfinite(after)
    return 1 - math.exp(float(np.log(_ratio(after[both], before[both])).mean())) if both.any() else None


def _ratio(a: Floats, b: Floats) -> Floats:
    """a / b, where 0 / 0 is 1: a sample that lies on a boundary."""
    tiny = np.finfo(np.float64).tiny
    return np.asarray(np.maximum(a, tiny) / np.maximum(b, tiny))


def _are_pixels(x: Tensor) -> bool:
    return is_image(tuple(x.shape[1:])) and bool(((x >= 0) & (x <= 1)).all())


def _percent(share: float) -> str:
    """A share as a percentage, in two digits.

    >>> _percent(0.0123), _percent(-0.0001), _percent(0.5)
    ('1.2 %', 'less than 0.1 %', '50 %')
    """
    return f"{100 * share:.2g} %" if share >= 0.001 else "less than 0.1 %"


def _cannot(name: str, subject: Subject) -> Check:
    sentence = f"Not checked: this is known of l1, l2 and linf only, and this run measures l{subject.job.p:g}."
    return Check(name, Verdict.CAUTION, sentence, None)


CHECKS = (check_budget, check_strongest, check_evidence, check_convergence, check_bounds, check_8_bits)
