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

from deepfool.attacks.deepfool import Walk, iterate
from deepfool.attacks.shared.adversarial import Adversarial, Status
from deepfool.attacks.shared.boundaries import step_to_boundary
from deepfool.attacks.shared.task import Shared, Task, Unpack, attack, run
from deepfool.classifier import Classifier, Model
from deepfool.values import check_count, check_optional_count, check_overshoot


@attack
def superdeepfool(
    model: Model | Classifier,
    x: Tensor,
    *,
    overshoot: float = 0.02,
    max_iter: int = 50,
    turns: int = 10,
    candidates: int | None = None,
    tighten: bool = True,
    **shared: Unpack[Shared],
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
    max_iter, turns = check_count(max_iter, "max_iter"), check_count(turns, "turns")
    overshoot = check_overshoot(overshoot)
    candidates = check_optional_count(candidates, "candidates")

    def body(task: Task) -> None:
        _search(task, overshoot, max_iter, turns, candidates)

    return run(body, model, x, p=2, tighten=tighten, **shared)


def _search(task: Task, overshoot: float, max_iter: int, turns: int, candidates: int | None) -> None:
    asked, model, best = task.asked, task.model, task.best
    r = torch.zeros_like(asked.x_0)  # x = x_0 + r
    rows = task.rows
    for _ in range(turns):
        walk = Walk(task, candidates, overshoot, start=r)
        iterate(walk, rows, max_iter)
        rows = rows[walk.fooled[rows]]
        if len(rows) == 0:
            return
        x_0, r_tilde = asked.x_0[rows], walk.at(rows, 1 + overshoot)
        _, w = model.gradient(rows, x_0 + r_tilde)
        r[rows] = r[rows] + _project(task, rows, r[rows], asked.clip(rows, r_tilde), w)
        # The projected point counts, even if DeepFool's own was smaller: the search back starts from it.
        fooled = best.report(rows, r[rows], model.look(rows, x_0 + r[rows]), replace=True)
        rows = rows[~fooled]
    best.give_up(rows, Status.EXHAUSTED, f"the label did not change within {turns} turns; raise turns or max_iter")


def _project(task: Task, rows: Tensor, r: Tensor, r_tilde: Tensor, w: Tensor) -> Tensor:
    """The part of x~ - x_0 along w, as a step from x_0 + r that fits in the box."""
    asked = task.asked
    x = asked.clamp(rows, asked.x_0[rows] + r)
    whole, possible = step_to_boundary(x, (w * r_tilde).sum(1), w, *asked.box(rows), asked.p)
    if bool(possible.all()):
        return whole
    rest, _ = step_to_boundary(x, (w * (r_tilde - r)).sum(1), w, *asked.box(rows), asked.p)
    return torch.where(possible[:, None], whole, rest)
