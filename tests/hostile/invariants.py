"""What must hold for every row of every result, whatever the model. Each check returns what it found to be wrong.

What is allowed is said where it is allowed. Two notions come up again and again:

- float32 and float64 may disagree on a label where the float64 margin is within ULPS units in the last place (of
  float32) of the largest score: there the model itself does not know;
- a search whose answer changes by more than the tolerance when the input is moved by one unit in the last place is
  chaotic at that row: rounding alone decides where it ends, and so may the size of the batch, through the order of
  its sums. `is_chaotic` finds out by doing just that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from deepfool import Adversarial, Status
from tests.hostile.cases import Setup

ULPS = 8
"""About what the sums of these small models may be off by in float32."""
NORM_TOLERANCE = 1e-6
SAME_TOLERANCE = 1e-3
"""A row attacked alone and in its batch."""
PRUNING_TOLERANCE = 1e-3
"""What candidates="auto" may cost over "all"."""
MOST_ALONE = 3
"""Rows that are attacked once more by themselves: each costs as much as the whole batch."""
JITTERS = 6


@dataclass
class Trial:
    """A case that was run: what went in, what came out, and what the model was before."""

    setup: Setup
    result: Adversarial
    before: Snapshot


Check = Callable[[Trial], Iterator[str]]


# --- 1: every FOOLED row is fooled ---


def check_fooled(trial: Trial) -> Iterator[str]:
    """Alone, among six others, and in float64."""
    setup, result = trial.setup, trial.result
    sure = result.fooled.nonzero()[:, 0].tolist()
    if setup.case.kind.alone:
        for i in sure:
            yield from _disagreement(trial, i, setup.reader.outputs(result.x[i : i + 1])[0], "alone")
    others = torch.cat([result.x, setup.x])
    others = others[others.flatten(1).isfinite().all(1)]
    for i in sure:
        place = i % 7
        batch = others[(torch.arange(7) + i) % len(others)].clone() if len(others) else result.x[[i] * 7].clone()
        batch[place] = result.x[i]
        yield from _disagreement(trial, i, setup.reader.outputs(batch)[place], "in a batch of 7")
    if setup.case.dtype == torch.float32:  # float16 has too few digits to be held to float64
        for i in sure:
            z = setup.reader.outputs(torch.stack([result.x[i]] * 2).double())[0]
            yield from _disagreement(trial, i, z, "in float64", slack=ULPS * _ulp(z))


def _disagreement(trial: Trial, i: int, z: Tensor, where: str, slack: float = 0.0) -> Iterator[str]:
    label, adv_label = int(trial.result.label[i]), int(trial.result.adv_label[i])
    if not bool(z.isfinite().all()):
        yield f"row {i} is marked FOOLED and has scores {z.tolist()} {where}"
        return
    wanted = None if trial.setup.target is None else int(trial.setup.target[i])
    margin = _margin(z, label, wanted)
    got = int(z.argmax())
    missed = got == label if wanted is None else got != wanted
    if missed and -margin >= slack:
        yield f"row {i} is marked FOOLED, and {where} it is not: margin {margin:.3g}, largest score {z.abs().max():.6g}"
    elif not missed and got != adv_label and float(z[got] - z[adv_label]) > max(slack, ULPS * _ulp(z)):
        yield f"row {i} has adv_label {adv_label}, and {where} the label is {got}"


def _margin(z: Tensor, label: int, wanted: int | None) -> float:
    """By how much the wanted change of label is reached."""
    other = z.clone()
    other[label if wanted is None else wanted] = -math.inf
    return float(other.max() - z[label]) if wanted is None else float(z[wanted] - other.max())


def _ulp(z: Tensor) -> float:
    """A unit in the last place of the largest score, in the precision that the model runs in."""
    kind = torch.float32 if z.dtype == torch.float64 else z.dtype
    return max(torch.finfo(kind).eps * float(z.abs().max()), torch.finfo(kind).smallest_normal * torch.finfo(kind).eps)


# --- 2, 3, 4: the numbers agree with each other ---


def check_box(trial: Trial) -> Iterator[str]:
    """lower <= x_adv <= upper, to the bit."""
    setup, result = trial.setup, trial.result
    if setup.lower is None or setup.upper is None:
        return
    out = ~((result.x >= setup.lower) & (result.x <= setup.upper))  # NaN is out
    for i in _rows(out):
        beyond = torch.maximum(setup.lower - result.x, result.x - setup.upper)
        beyond = beyond[i] if beyond.ndim == result.x.ndim else beyond
        yield f"row {i} ({_status(result, i)}) leaves the box by {float(beyond.max()):.3g}"


def check_mask(trial: Trial) -> Iterator[str]:
    """Features that must not change have not, to the bit."""
    setup, result = trial.setup, trial.result
    if setup.mask is None:
        return
    kept = ~setup.mask.expand(result.x.shape)
    for i in _rows(kept & (result.x != setup.x)):
        yield f"row {i} ({_status(result, i)}) changes a masked feature"
    for i in _rows(kept & (result.r != 0)):
        yield f"row {i} ({_status(result, i)}) has a perturbation on a masked feature"


def check_numbers(trial: Trial) -> Iterator[str]:
    """r is x_adv - x, the norm is that of r, and failures have no norm."""
    setup, result = trial.setup, trial.result
    working = torch.promote_types(setup.x.dtype, torch.float32)
    if result.x.dtype != setup.x.dtype or result.r.dtype != working:
        yield f"x is {result.x.dtype} and r is {result.r.dtype} for inputs of {setup.x.dtype}"
    for i in _rows(~result.x.isfinite() | ~result.r.isfinite()):
        yield f"row {i} ({_status(result, i)}) has NaN or infinity in its point"
    difference = result.x.to(working) - setup.x.to(working)
    for i in _rows((result.r != difference) & difference.isfinite()):
        off = (result.r[i] - difference[i]).abs().max()
        yield f"row {i} ({_status(result, i)}): r is not x_adv - x, off by {float(off):.3g}"
    for i in range(len(result)):
        yield from _check_norm(result, i)


def _check_norm(result: Adversarial, i: int) -> Iterator[str]:
    status, given = Status(int(result.status[i])), float(result.norm[i])
    if status in (Status.STUCK, Status.EXHAUSTED):
        if given != math.inf:
            yield f"row {i} ({status.name}) has norm {given:g}, not inf"
        return
    if status == Status.MISCLASSIFIED:
        if given != 0 or bool((result.r[i] != 0).any()):
            yield f"row {i} (MISCLASSIFIED) has norm {given:g}"
        return
    true = float(torch.linalg.vector_norm(result.r[i].double().flatten(), result.p))
    limits = torch.finfo(result.norm.dtype)
    # Below the normal numbers there are fewer digits; beyond the largest there is only infinity.
    allowed = NORM_TOLERANCE * true + 8 * limits.smallest_normal * limits.eps
    if not (abs(given - true) <= allowed or (given == math.inf and true > limits.max)):
        yield f"row {i} has norm {given:.9g}, and r has {true:.9g}"


# --- 5: nothing is touched ---


class Snapshot:
    """Everything that an attack must leave as it was."""

    def __init__(self, setup: Setup) -> None:
        self.facts = dict(_facts(setup))

    def changes(self, setup: Setup) -> Iterator[str]:
        now = dict(_facts(setup))
        for name in self.facts.keys() | now.keys():
            if not _same(self.facts.get(name), now.get(name)):
                yield f"{name} was changed"


def _facts(setup: Setup) -> Iterator[tuple[str, Any]]:
    yield "torch's random stream", torch.get_rng_state().clone()
    yield "whether gradients are enabled", torch.is_grad_enabled()
    yield "x", setup.x.clone()
    for name, value in setup.arguments.items():
        for i, part in enumerate(value if isinstance(value, tuple) else (value,)):
            yield f"argument {name}[{i}]", part.clone() if isinstance(part, Tensor) else part
    if not isinstance(setup.model, nn.Module):
        return
    for name, parameter in setup.model.named_parameters():
        yield f"{name}", parameter.detach().clone()
        yield f"{name}.requires_grad", parameter.requires_grad
        yield f"{name}.grad", None if parameter.grad is None else parameter.grad.clone()
    for name, buffer in setup.model.named_buffers():
        yield f"buffer {name}", buffer.clone()
    for name, module in setup.model.named_modules():
        yield f"training of {name or 'the model'}", module.training
        yield f"hooks of {name or 'the model'}", (len(module._forward_hooks), len(module._forward_pre_hooks))


def _same(a: Any, b: Any) -> bool:
    return torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a is b or bool(a == b)


def check_untouched(trial: Trial) -> Iterator[str]:
    """Weights, buffers, flags, gradients, hooks, random stream and arguments are as before."""
    yield from trial.before.changes(trial.setup)


# --- 6: neighbours do not matter ---


def check_neighbours(trial: Trial) -> Iterator[str]:
    """A row attacked alone ends as in its batch, for deepfool and smallest with their default knobs.

    Not for float16, whose rounding alone is as large as the tolerance; nor for rows that `smallest` found by decisions
    alone (it says so in their reason), a search that starts from the other samples of the batch by design.
    """
    setup, result = trial.setup, trial.result
    case = setup.case
    if case.attack not in ("deepfool", "smallest") or case.knobs or case.n == 1 or not case.kind.alone:
        return
    if case.dtype == torch.float16:
        return
    first = case.number % len(result)
    for i in [(first + j) % len(result) for j in range(min(MOST_ALONE, len(result)))]:
        rows = torch.tensor([i])
        alone = setup.run(rows)
        here = result.rows(rows)
        if "decisions" in here.reason[0] + alone.reason[0] or _agree(alone, here, SAME_TOLERANCE):
            continue
        if not is_chaotic(setup, rows, alone, SAME_TOLERANCE):
            yield f"row {i} is {_brief(here)} in its batch and {_brief(alone)} alone"


def _agree(a: Adversarial, b: Adversarial, tolerance: float) -> bool:
    """Whether two results of one row are the same, but for rounding."""
    one, other = float(a.norm[0]), float(b.norm[0])
    close = one == other or abs(one - other) <= tolerance * min(one, other)
    return int(a.status[0]) == int(b.status[0]) and close


def is_chaotic(setup: Setup, rows: Tensor, answer: Adversarial, tolerance: float, **changes: Any) -> bool:
    """Whether the answer for this one row changes when the input moves by a unit in the last place."""
    return any(not _agree(other, answer, tolerance) for other in _jittered(setup, rows, **changes))


def _jittered(setup: Setup, rows: Tensor, **changes: Any) -> Iterator[Adversarial]:
    generator = torch.Generator().manual_seed(setup.case.number)
    for _ in range(JITTERS):
        sign = torch.randint(-1, 2, setup.x.shape, generator=generator).to(setup.x.dtype)
        x = setup.x * (1 + sign * torch.finfo(setup.x.dtype).eps)
        if setup.lower is not None and setup.upper is not None:
            x = x.clamp(setup.lower, setup.upper)
        yield setup.run(rows, x, **changes)


# --- 7: it ends ---


def check_passes(trial: Trial) -> Iterator[str]:
    """Forward passes and gradient rows stay within what the knobs allow."""
    setup, result = trial.setup, trial.result
    most = most_passes(setup.case.attack, setup.case.knobs, setup.classes)
    for i, passes in enumerate((result.forwards + result.backwards).tolist()):
        if passes > most:
            yield f"row {i} took {passes} passes, {most} at most are allowed"
        if passes < 1 or int(result.forwards[i]) < 1:
            yield f"row {i} took {passes} passes: it was never looked at"


def most_passes(attack: str, knobs: dict[str, Any], c: int) -> int:
    """The most forward passes and gradient rows that a sample may take, c being the number of classes.

    Every attack looks at x once, and a ray search takes 30 looks at most. The rest is read off the attacks' loops.
    """
    others = c - 1
    # A step of DeepFool that takes all classes: linearise, a row for each, look.
    plain = 2 + others
    # A step that leaves classes out takes rows in rounds. A round looks at one new class at least and takes eight rows
    # at most, after a forward pass of its own.
    pruned = 2 + others + 8 * (others + 1)
    around = 1 + (30 if knobs.get("tighten", attack in ("superdeepfool", "fab")) else 0)
    steps = knobs.get("steps", 100)
    if attack == "deepfool":  # and a last look where a step that was cut short is finished
        return around + knobs.get("max_iter", 50) * pruned + 1
    if attack == "smallest":
        # The budget of the stages, 50 steps of DeepFool to an answer and 50 more to be no farther than it, its first
        # step taken in rounds, a Newton run of 30 rounds, a search by decisions with a budget of its own and its start.
        budget = knobs.get("budget", 100)
        return around + 2 * budget + 101 * pruned + 61 + 13 + 12
    if attack == "superdeepfool":  # each turn: a run of DeepFool, a gradient, a look
        return around + knobs.get("turns", 10) * (knobs.get("max_iter", 50) * plain + 3)
    if attack in ("ddn", "fmn"):  # a gradient per step, and a last look
        return around + 2 * steps + 1
    if attack == "fab":
        turns = min(knobs.get("one_by_one", 1), others)
        return around + turns * steps * (3 if "one_by_one" in knobs else plain)
    if attack == "fgsm":  # a gradient, a look
        return around + 3
    # lbfgs: for each class and each penalty at most 21 evaluations an iteration (20 of the line search), and a look.
    per_penalty = 2 * (21 * knobs["max_iter"] + 2) + 1
    goals = min(knobs["candidates"], others)
    return around + goals * (2 + (knobs["brackets"] + knobs["bisections"]) * per_penalty)


# --- 8: the default leaves no nearer class out ---


def check_pruning(trial: Trial) -> Iterator[str]:
    """candidates="auto" of deepfool, its default, is no farther than "all" and fools where that fools.

    Not for float16: one unit in the last place is more than the tolerance there.
    """
    setup, auto = trial.setup, trial.result
    if setup.case.attack != "deepfool" or setup.case.dtype == torch.float16:
        return
    everything = setup.run(candidates="all")
    for i in everything.fooled.nonzero()[:, 0].tolist():
        limit = (1 + PRUNING_TOLERANCE) * float(everything.norm[i])
        if float(auto.norm[i]) <= limit:  # infinite where it is not fooled
            continue
        rows = torch.tensor([i])
        if setup.case.kind.alone:
            # Where "all" itself ends as far out after a jitter, that is the search, not the classes left out.
            farthest = max(float(each.norm[0]) for each in _jittered(setup, rows, candidates="all"))
            if float(auto.norm[i]) <= (1 + PRUNING_TOLERANCE) * farthest:
                continue
        yield f'row {i} is {_brief(auto.rows(rows))} by default and {_brief(everything.rows(rows))} with "all"'


# --- 9: failures say why ---


def check_reasons(trial: Trial) -> Iterator[str]:
    """What is not fooled says why; labels and statuses are those that exist."""
    setup, result = trial.setup, trial.result
    if len(result) != len(setup.x) or len(result.reason) != len(setup.x) or result.x.shape != setup.x.shape:
        yield f"{len(result)} rows came back for {len(setup.x)} inputs"
        return
    for i, reason in enumerate(result.reason):
        if not bool(result.fooled[i]) and not reason.strip():
            yield f"row {i} is {_status(result, i)} and does not say why"
    given = setup.arguments.get("labels")
    for i in (result.status == Status.MISCLASSIFIED).nonzero()[:, 0].tolist():
        if given is None or int(given[i]) == int(result.label[i]):
            yield f"row {i} is MISCLASSIFIED with its label right, or with no label given"


CHECKS: dict[str, Check] = {
    "fooled": check_fooled,
    "box": check_box,
    "mask": check_mask,
    "numbers": check_numbers,
    "untouched": check_untouched,
    "neighbours": check_neighbours,
    "passes": check_passes,
    "pruning": check_pruning,
    "reasons": check_reasons,
}
"""By name. `trial.py` adds "time" (it never came back) and "errors" (it raised)."""


def _rows(where: Tensor) -> list[int]:
    """The rows in which anything is true."""
    return where.flatten(1).any(1).nonzero()[:, 0].tolist()


def _status(result: Adversarial, i: int) -> str:
    return Status(int(result.status[i])).name


def _brief(result: Adversarial) -> str:
    return f"{_status(result, 0)} at {float(result.norm[0]):.6g}"
