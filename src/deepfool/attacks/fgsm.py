"""FGSM: Goodfellow, Shlens, Szegedy, "Explaining and harnessing adversarial examples" (ICLR 2015); and the smallest
eps at which it fools a wanted share of the data, by which the DeepFool paper compares with it.

x + eps * sign(grad J(x, y)), J the cross-entropy: one gradient, one step. The signs do not depend on eps, so that the
search over eps takes one backward pass per sample in all, and then forward passes only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from deepfool.attacks.shared.adversarial import Adversarial, Status
from deepfool.attacks.shared.answers import NO_DIRECTION
from deepfool.attacks.shared.arguments import Bounds, Labels, as_tensor, check_inputs, check_labels, check_threshold
from deepfool.attacks.shared.task import Task, Unlabelled, Unpack, attack, prepare, run
from deepfool.classifier import Classifier, Model
from deepfool.classifier.jacobian import cross_entropy
from deepfool.errors import DataError, InputError
from deepfool.norms import norm
from deepfool.values import check_count, check_number, check_share


@attack
def fgsm(
    model: Model | Classifier,
    x: Tensor,
    labels: Labels | None = None,
    *,
    eps: float,
    tighten: bool = False,
    **shared: Unpack[Unlabelled],
) -> Adversarial:
    """One step of length eps along the sign of the gradient of the loss, in the linf norm.

    Args:
        labels: the class y of the loss: the true labels (samples that the model gets wrong are then returned
            untouched, MISCLASSIFIED), or the predicted ones if not given.
        eps: how far every feature moves (those with no slope stay), in the units of x.

    The other arguments are those of `deepfool`. With a target the step goes down the loss of that class.

    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.eye(2))
    >>> x = torch.tensor([[3.0, 1.0]])
    >>> fgsm(model, x, eps=1.5).x, fgsm(model, x, eps=0.5)
    (tensor([[1.5000, 2.5000]]), Adversarial(1 sample: 1 exhausted))
    """
    eps = check_number(eps, "eps", 0, math.inf)

    def body(task: Task) -> None:
        asked, best, rows = task.asked, task.best, task.rows
        _, g = task.model.gradient(rows, asked.x_0[rows], asked.goal.loss_direction)
        best.iterations[rows] += 1
        sloped = (g != 0).any(1)
        best.give_up(rows[~sloped], Status.STUCK, NO_DIRECTION)
        rows, r = rows[sloped], asked.clip(rows[sloped], eps * g[sloped].sign())
        if len(rows):
            best.report(rows, r, task.model.look(rows, asked.x_0[rows] + r))
            best.give_up(rows, Status.EXHAUSTED, f"one step of {eps:g} did not change the label; raise eps")

    return run(body, model, x, p=math.inf, tighten=tighten, labels=labels, **shared)


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
    """FGSM for a training set: every sample takes the step up the loss of its true label.

    `fgsm` leaves a sample alone if it is misclassified already; here it moves like the others.

    >>> model = torch.nn.Linear(2, 2, bias=False)
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
        evidence=0 * ones, converged=torch.zeros_like(fooled),
        reason=tuple("" if each else f"one step of {eps:g} did not change the label" for each in fooled.tolist()),
        p=math.inf,
    )  # fmt: skip


BISECTIONS = 200
"""Of an eps, at most; only a share that is reached at every eps above zero takes that many."""


@dataclass(frozen=True)
class SmallestEps:
    """The smallest eps at which FGSM fools a wanted share of the data, or that there is none."""

    eps: float
    """Infinite where the share was never reached."""
    reached: bool
    wanted: float
    """The share of misclassified samples that was asked for."""
    share: float
    """The share at eps; where it was never reached, the largest that was seen."""
    norm_l2: float
    norm_linf: float
    """The mean norms of the perturbations at eps, over all samples; infinite where the share was never reached."""
    rho_l2: float
    rho_linf: float
    """The means of ||r|| / ||x||, the paper's rho_adv, likewise."""
    curve: tuple[tuple[float, float], ...]
    """(eps, share misclassified) wherever it was looked, by growing eps; the first entry is the error at eps = 0."""
    samples: int
    forwards: int
    """Forward passes per sample."""
    backwards: int
    """Backward rows per sample."""

    def __str__(self) -> str:
        if self.reached:
            return (
                f"FGSM misclassifies {self.share:.1%} of {self.samples} samples at eps = {self.eps:.4g} "
                f"(wanted: {self.wanted:.1%}); rho_adv {self.rho_l2:.3g} in l2, {self.rho_linf:.3g} in linf"
            )
        best = max(self.curve, key=lambda point: point[1])
        return (
            f"FGSM never misclassifies {self.wanted:.1%} of these {self.samples} samples: of all eps up to "
            f"{self.curve[-1][0]:.4g}, {best[0]:.4g} does most, with {self.share:.1%}. There is no smallest eps to "
            "report; ask for a smaller share."
        )


def smallest_eps(
    model: Model | Classifier,
    data: Iterable[tuple[Tensor, Labels]] | tuple[Tensor, Labels],
    *,
    share: float = 0.9,
    bounds: Bounds | None = None,
    mask: Tensor | None = None,
    highest: float | None = None,
    grid: int = 25,
    precision: float = 1e-3,
    batch_size: int = 500,
    threshold: float | None = None,
    outputs: str = "auto",
) -> SmallestEps:
    """The smallest eps at which FGSM leaves this share of the data misclassified (with respect to the true labels).

    More eps does not always misclassify more, so "smallest" needs a definition: the shares are looked at on a
    geometric grid of eps, from below; the first grid point that reaches the wanted share and the one before it (which
    does not) are bisected, keeping one end on either side. A share that is reached only between two grid points is
    not seen: refine the grid for that.

    Args:
        data: (x, true labels), or any iterable of such batches; it is gone through once, and kept with its signs.
        share: the share to misclassify, samples that are wrong to begin with included.
        highest: the largest eps of the grid; else the width of the bounds (more changes nothing), or without bounds
            the spread of the values in the data. The smallest is 1e-4 of it.
        grid: how many eps to look at before bisecting.
        precision: how close to find eps, relative to it.
        batch_size: how many samples go through the model at once, where `data` is one pair.

    `bounds`, `mask` (one for all samples) and `threshold` are those of `deepfool`.

    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.eye(2))
    >>> data = torch.tensor([[3.0, 1.0], [0.0, 1.0]]), torch.tensor([0, 1])
    >>> print(smallest_eps(model, data, share=0.5))
    FGSM misclassifies 50.0% of 2 samples at eps = 0.5003 (wanted: 50.0%); rho_adv 0.466 in l2, 0.334 in linf
    """
    share = check_share(share, "share")
    grid = check_count(grid, "grid", least=2)
    precision = check_number(precision, "precision", 0, 1)
    batch_size = check_count(batch_size, "batch_size")
    highest = None if highest is None else check_number(highest, "highest", 0, math.inf)
    threshold = check_threshold(threshold)
    f = Classifier.of(model, threshold, outputs)
    with f.frozen():
        batches = [_Signed.of(f, x, y, bounds, mask) for x, y in _batches(data, batch_size)]
        if not batches:
            raise DataError("data holds no samples: there is no share of them to misclassify.")
        top = _highest(highest, bounds, batches)
        seen: dict[float, float] = {}

        def reaches(eps: float) -> bool:
            seen[eps] = sum(int(b.wrong(f, eps).sum()) for b in batches) / sum(len(b.y) for b in batches)
            return seen[eps] >= share

        eps = _search(reaches, [0.0] + [top * 10 ** (4 * (i / (grid - 1) - 1)) for i in range(grid)], precision)
        sizes = _sizes(batches, eps)
    samples = sum(len(b.y) for b in batches)
    return SmallestEps(
        eps=eps, reached=math.isfinite(eps), wanted=float(share), share=seen.get(eps, max(seen.values())), **sizes,
        curve=tuple(sorted(seen.items())), samples=samples, forwards=2 + len(seen), backwards=1,
    )  # fmt: skip


def _search(reaches: Any, grid: list[float], precision: float) -> float:
    """The first grid point that reaches, bisected with the one before it; infinite where none does."""
    first = next((i for i, eps in enumerate(grid) if reaches(eps)), None)
    if first is None:
        return math.inf
    low, high = grid[max(first - 1, 0)], grid[first]
    for _ in range(BISECTIONS):
        if high - low <= precision * high:
            break
        middle = (low + high) / 2
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return high


@dataclass(frozen=True)
class _Signed:
    """A batch with the signs of its gradients, one byte each."""

    x: Tensor
    y: Tensor
    signs: Tensor
    lower: Tensor | None
    upper: Tensor | None

    @staticmethod
    def of(f: Classifier, x: Tensor, y: Labels, bounds: Bounds | None, mask: Tensor | None) -> _Signed:
        check_inputs(x)
        with prepare(f, x, p=math.inf, bounds=bounds, mask=mask) as task:
            asked = task.asked
            true = check_labels(y, "labels", len(x), asked.scores)
            _, g = task.model.gradient(asked.everyone, asked.x_0, lambda rows, z: cross_entropy(z, true[rows])[2])
            lower, upper = bounds if bounds is not None else (None, None)
            corner = [None if v is None else torch.as_tensor(v, dtype=x.dtype, device=x.device) for v in (lower, upper)]
            return _Signed(x.detach(), true, g.sign().to(torch.int8).view(x.shape), *corner)

    def perturbed(self, eps: float) -> Tensor:
        moved = self.x + eps * self.signs.to(self.x.dtype)
        return moved if self.lower is None else moved.clamp(self.lower, self.upper)

    def wrong(self, f: Classifier, eps: float) -> Tensor:
        with torch.no_grad():
            return f(self.perturbed(eps)).argmax(1) != self.y


def _batches(data: Any, batch_size: int) -> Iterable[tuple[Tensor, Labels]]:
    expected = "data must be (x, labels), or an iterable of such pairs, with x a torch.Tensor"
    if isinstance(data, tuple | list) and len(data) == 2 and isinstance(data[0], Tensor):
        x = check_inputs(data[0])
        y = as_tensor(data[1], "labels", f"whole numbers, one per sample, ({len(x)},)", x.device)
        if y.ndim != 1 or len(x) != len(y):
            got = f"{len(y)} labels" if y.ndim == 1 else f"labels of shape {tuple(y.shape)}"
            raise InputError(f"data must hold a label per sample, got {len(x)} samples and {got}.")
        data = ((x[i : i + batch_size], y[i : i + batch_size]) for i in range(0, len(x), batch_size))
    if not isinstance(data, Iterable) or isinstance(data, str | bytes | Tensor):
        raise InputError(f"{expected}, got {type(data).__name__}.")
    for batch in data:
        if not isinstance(batch, tuple | list) or len(batch) != 2 or not isinstance(batch[0], Tensor):
            raise InputError(f"{expected}, got a {type(batch).__name__} in it.")
        if len(check_inputs(batch[0])):
            yield batch[0], batch[1]


def _highest(given: float | None, bounds: Bounds | None, batches: list[_Signed]) -> float:
    if given is not None:
        return given
    if bounds is not None:
        width = max(float((torch.as_tensor(b.upper) - torch.as_tensor(b.lower)).max()) for b in batches)
    else:
        width = float(max(b.x.max() for b in batches) - min(b.x.min() for b in batches))
    return width if 0 < width < math.inf else 1.0


def _sizes(batches: list[_Signed], eps: float) -> dict[str, float]:
    """The mean norms of the perturbations at eps, absolute and relative to those of x."""
    if math.isinf(eps):
        return dict.fromkeys(("norm_l2", "norm_linf", "rho_l2", "rho_linf"), math.inf)
    sizes = {}
    for name, p in (("l2", 2.0), ("linf", math.inf)):
        r = torch.cat([norm((b.perturbed(eps) - b.x).float().flatten(1), p).double() for b in batches])
        x = torch.cat([norm(b.x.float().flatten(1), p).double() for b in batches])
        sizes["norm_" + name] = r.mean().item()
        sizes["rho_" + name] = (r / x).mean().item()
    return sizes
