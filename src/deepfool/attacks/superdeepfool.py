"""SuperDeepFool: Abdolahpourrostam, Abroshan, Moosavi-Dezfooli, "SuperDeepFool: a new fast and accurate minimal
adversarial attack" (NeurIPS 2024), the variant SDF(inf, 1), l2.

DeepFool ends at a point x~ beyond the boundary, but not where the boundary is nearest: at the nearest point, x~ - x_0
is parallel to the gradient w there. So, in turns: run DeepFool, take w at x~, and keep of x~ - x_0 only its part
along w, until that fools too. There are two readings of the second half:

- the listing puts x = x_0 + proj(x~ - x_0), which keeps landing just short of the boundary and takes many turns;
- the authors' program adds the projection to the current point, x <- x + proj(x~ - x_0), and ends with a search back
  along the ray. The turns end quickly, and the result is smaller. **This is the reading offered here**, the search
  being `tighten=True`.

Inside bounds the projection becomes the smallest step in the box that gains w . (x~ - x_0); where the box has no room
for that, the one that leads to the plane through x~.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepfool.attacks.deepfool import run_deepfool
from deepfool.attacks.shared.adversarial import Adversarial, Status
from deepfool.attacks.shared.arguments import (
    Bounds,
    Labels,
    check_count,
    check_flag,
    check_inputs,
    check_optional_count,
    check_overshoot,
    check_threshold,
)
from deepfool.attacks.shared.problem import Problem, pose
from deepfool.attacks.tighten import shorten
from deepfool.classifier import Classifier, Model


def superdeepfool(
    model: Model | Classifier,
    x: Tensor,
    *,
    overshoot: float = 0.02,
    max_iter: int = 50,
    turns: int = 10,
    candidates: int | None = None,
    bounds: Bounds | None = None,
    labels: Labels | None = None,
    target: int | Labels | None = None,
    mask: Tensor | None = None,
    tighten: bool = True,
    threshold: float | None = None,
    outputs: str = "auto",
) -> Adversarial:
    """A smaller l2 perturbation than DeepFool's, for a few more gradients.

    Args:
        turns: how often to run DeepFool and project; a sample leaves as soon as a projected point fools. One that
            never gets there keeps the smallest of DeepFool's own points.

    The other arguments are those of `deepfool`; `max_iter` holds for each run of it.

    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.eye(2))
    >>> superdeepfool(model, torch.tensor([[3.0, 1.0]])).r
    tensor([[-1.0000, 1.0000]])
    """
    check_inputs(x)
    max_iter = check_count(max_iter, "max_iter")
    turns = check_count(turns, "turns")
    overshoot = check_overshoot(overshoot)
    candidates = check_optional_count(candidates, "candidates")
    tighten = check_flag(tighten, "tighten")
    threshold = check_threshold(threshold)
    if len(x) == 0:
        return Adversarial.empty(x, 2)
    with pose(
        model, x, p=2, bounds=bounds, labels=labels, target=target, mask=mask, threshold=threshold, outputs=outputs
    ) as problem:
        _run(problem, overshoot, max_iter, turns, candidates)
        if tighten:
            shorten(problem)
        return problem.result()


def _run(problem: Problem, overshoot: float, max_iter: int, turns: int, candidates: int | None) -> None:
    r = torch.zeros_like(problem.x_0)  # x = x_0 + r
    rows = problem.running
    for _ in range(turns):
        rows, r_tilde = run_deepfool(problem, rows, r, overshoot, max_iter, candidates)
        if len(rows) == 0:
            return
        x_0 = problem.x_0[rows]
        _, w = problem.look_and_climb(rows, x_0 + r_tilde, problem.by_margin)
        r[rows] = r[rows] + _project(problem, rows, r[rows], problem.clip(rows, r_tilde), w)
        z = problem.look(rows, x_0 + r[rows])
        fooled = problem.is_fooled(rows, z)
        # The projected point counts, even if DeepFool's own was smaller: the search back starts from it.
        problem.finish(rows[fooled], r[rows[fooled]], z[fooled].argmax(1))
        rows = rows[~fooled]
    problem.end(rows, Status.EXHAUSTED, f"the label did not change within {turns} turns; raise turns or max_iter")


def _project(problem: Problem, rows: Tensor, r: Tensor, r_tilde: Tensor, w: Tensor) -> Tensor:
    """The part of x~ - x_0 along w, as a step from x_0 + r that fits in the box."""
    x = problem.clamp(rows, problem.x_0[rows] + r)
    whole, possible = problem.step_to_plane(rows, x, (w * r_tilde).sum(1), w)
    if bool(possible.all()):
        return whole
    rest, _ = problem.step_to_plane(rows, x, (w * (r_tilde - r)).sum(1), w)
    return torch.where(possible[:, None], whole, rest)
