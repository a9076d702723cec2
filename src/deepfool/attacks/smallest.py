"""`smallest`: the smallest perturbation that a budget of passes can find, for p = 1, 2 and inf.

This project's own scheme. Linearise the margin at the current point y, then move to the point nearest to x_0 (in the
norm that is measured) that lies beyond the linearised boundary, inside the box and inside a trust region around y. The
trust region is a cube, so that box and cube together are a box again, and the exact projection of `norms.project`
serves for every norm. The cube shrinks geometrically; a round costs one forward pass and one backward row.

    DeepFool   its first steps: an answer, and a start
    stage 1    the nearest classes, each from its own linearised boundary, a few rounds
    stage 2    the class that came out best, from its best point, the rounds that the budget has left
    stage 3    (large budgets) restarts from the best point with a random half of the perturbation reset
    DeepFool   to its end where that may still be nearer: the result is not larger than DeepFool's
    fallback   what gradients could not fool is searched for by decisions alone, and flagged
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from deepfool.attacks.deepfool import Walk
from deepfool.attacks.shared.adversarial import Adversarial, Evidence, Status
from deepfool.attacks.shared.arguments import check_count, check_optional_count
from deepfool.attacks.shared.boundaries import step_to_boundary
from deepfool.attacks.shared.decisions import search_by_decisions
from deepfool.attacks.shared.pruning import WIDE, Slopes, nearest_open
from deepfool.attacks.shared.task import Shared, Task, Unpack, attack, run
from deepfool.classifier import Classifier, Model
from deepfool.classifier.jacobian import Tangent, difference
from deepfool.norms import dual, norm, project

OVERSHOOT = 0.02
"""Of the DeepFool run, and how far beyond its linearised boundary each class of stage 1 starts."""

KEPT = {2: 0.8, math.inf: 0.8, 1: 1.0}
"""The share of the budget that DeepFool must leave to the stages that follow: where it is slow to arrive, in l1 above
all, its answer is poor and they do better with the passes."""

MASKED = (
    "found by decisions alone: the gradients are zero or mislead here (gradient masking?), so this perturbation may be "
    "far from the smallest"
)


@dataclass(frozen=True)
class Plan:
    """How a budget is spent."""

    classes: int
    """Tried in stage 1."""
    first: int
    """Rounds for each of them."""
    middle: float
    """The trust region at the end of stage 1, relative to its start."""
    second: int
    """Most rounds in stage 2."""
    kick: int
    """Rounds of a restart; 0 for none."""
    leap: float = 0.05
    """In l1, how far a single feature may move at once before anything has fooled, as a share of the bounds' width."""
    aim: float = 0.1
    """How far beyond its linearised boundary a phase aims at first, relative to the distance from x_0 to it."""
    end: float = 0.02
    """The trust region at the end of stage 2, relative to the perturbation. In l1 features come and go to the end."""

    @property
    def linearised(self) -> int:
        """Classes whose gradients are taken at x_0: more than stage 1 tries, for which are nearest is but estimated."""
        return max(4, 2 * self.classes)

    @staticmethod
    def of(budget: int, p: float = 2) -> Plan:
        """The plan for a budget of passes.

        >>> Plan.of(100).classes, Plan.of(1000).kick
        (3, 24)
        """
        fine = {2: 0.005, math.inf: 0.01, 1: 0.02}[p]
        if budget < 40:
            return Plan(classes=1, first=4, middle=0.5, second=1000, kick=0, leap=0.15)
        if budget < 75:  # too few rounds for small steps
            first = 5 if p == 1 else 4
            return Plan(classes=2, first=first, middle=0.5, second=1000, kick=0, leap=0.15, end=max(fine, 0.01))
        wide = 0.1 if p == 1 else 0.3
        if budget < 300:
            return Plan(classes=3, first=8, middle=0.3, second=1000, kick=0, aim=wide, end=fine)
        return Plan(classes=9, first=10, middle=0.2, second=20, kick=24, aim=wide, end=fine)


@attack
def smallest(
    model: Model | Classifier,
    x: Tensor,
    *,
    p: float = 2,
    budget: int = 100,
    candidates: int | None = None,
    seed: int = 0,
    **shared: Unpack[Shared],
) -> Adversarial:
    """The smallest perturbation that `budget` passes (forwards plus backward rows, per sample) can find.

    Args:
        model, x, bounds, labels, target, mask, threshold: as for `deepfool`.
        p: 1, 2 or inf.
        budget: passes per sample; 50 is quick, 100 the default, 1000 for reference values. What was really used is in
            the result's `forwards` and `backwards`: it can be a few more where DeepFool might still have ended nearer,
            or where nothing has fooled yet.
        candidates: how many classes to linearise at x_0, those that look nearest by their scores and by how steep the
            last hidden layer says they are; None means what the budget calls for (6 for 100 passes), or 10 where no
            hidden layer can be asked.
        seed: of the random restarts that large budgets allow.

    Rows that only a search without gradients could fool say so in `reason`.

    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    >>> smallest(model, torch.tensor([[3.0, 1.0]])).norm
    tensor([1.414...])
    """
    budget, seed = check_count(budget, "budget", least=10), check_count(seed, "seed", least=0)
    candidates = check_optional_count(candidates, "candidates")

    def body(task: Task) -> None:
        _Search(task, budget, candidates, seed).run()

    return run(body, model, x, p=p, norms=(1, 2, math.inf), classes=True, **shared)


class _Search:
    """The best point found so far for each sample, and the stages that improve it."""

    def __init__(self, task: Task, budget: int, candidates: int | None, seed: int) -> None:
        self.task, self.asked, self.model, self.best = task, task.asked, task.model, task.best
        self.budget, self.plan = budget, Plan.of(budget, task.asked.p)
        self.candidates = candidates
        self.complete = candidates is None and task.asked.classes <= 11
        """Whether DeepFool has all classes to choose from, and the result is not larger than its own."""
        # Until a sample is fooled its steps are Newton's, to the nearest boundary. Those of l1 are taken in l2: in l1
        # the nearest point moves a few features as far as they go, far outside of what the linear picture knows.
        self.newton = max(2.0, task.asked.p)
        self.rows = task.rows
        self.slopes = Slopes(task)
        self.random = torch.Generator(device="cpu").manual_seed(seed)

    def run(self) -> None:
        rows = self.rows
        classes, starts, sizes = self._linearise_inputs()
        aim = self._try_classes(classes, starts, sizes)
        self._end_deepfool(rows[~self.best.found(rows)])
        unfooled = rows[~self.best.found(rows)]
        if len(unfooled):  # a longer Newton run to the nearest class before giving gradients up
            at = _places(unfooled, rows)
            nearest = sizes[at].argmin(1)
            y = starts[at, nearest]
            self._improve(unfooled, y, 30, 1.0, self.plan.middle, target=classes[at, nearest])
        self._refine(aim)
        if self.plan.kick:
            self._restart()
        self._end_deepfool(rows)
        lost = rows[~self.best.found(rows)]
        if len(lost):
            self._search_without_gradients(lost)

    def found(self) -> Tensor:
        """The samples with an answer so far."""
        return self.rows[self.best.found(self.rows)]

    def point(self, rows: Tensor) -> Tensor:
        """Their best points so far."""
        return self.asked.clamp(rows, self.asked.x_0[rows] + self.best.r[rows])

    def left(self, rows: Tensor) -> Tensor:
        """Passes that these samples may still use."""
        return self.budget - self.model.spent(rows)

    def _linearise_inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Class gradients at x_0: for each class the nearest point beyond its linearised boundary, and how far it is.

        Also runs DeepFool, whose first step this already is.
        """
        rows = self.rows
        tangent = self.model.linearise_inputs(rows)
        label, z = self.asked.label[rows, None], tangent.scores
        classes = self._choose_classes(rows, tangent)
        starts, steps, sizes = self._linearise(rows, classes, tangent)
        seen = torch.zeros_like(z, dtype=torch.bool).scatter_(1, classes, True).scatter_(1, label, True)
        gap = (z.gather(1, label) - z).to(sizes.dtype)
        if not self.complete or not self.asked.goal.any_class:
            self._begin_deepfool(steps, classes, sizes)
            return classes, starts, sizes
        for _ in range(self.asked.classes):  # what DeepFool would look at too, all that are open in a round
            open_ = (gap < self.slopes.limit(rows) * sizes.amin(1, keepdim=True)) & ~seen
            at = open_.any(1).nonzero()[:, 0]
            if len(at) == 0:
                break
            width = int(open_[at].sum(1).max())
            chosen = nearest_open(open_[at], gap[at], label[at], width)
            found = self._linearise(rows[at], chosen, self.model.linearise(rows[at], self.asked.x_0[rows[at]]))
            # Rows that only fill up the batch are not the sample's own: its budget must not depend on its neighbours.
            self.model.backwards[rows[at]] -= (chosen == label[at]).sum(1)
            seen[at] = seen[at].scatter(1, chosen, True)
            # For the others these columns hold nothing: their own label, out of reach.
            classes = torch.cat([classes, label.expand(-1, width).index_copy(0, at, chosen)], 1)
            starts, steps = (
                torch.cat([old, old[:, :1].expand(-1, width, -1).index_copy(0, at, new)], 1)
                for old, new in ((starts, found[0]), (steps, found[1]))
            )
            sizes = torch.cat(
                [sizes, torch.full_like(sizes[:, :1], math.inf).expand(-1, width).index_copy(0, at, found[2])], 1
            )
        self._begin_deepfool(steps, classes, sizes)
        return classes, starts, sizes

    def _linearise(self, rows: Tensor, classes: Tensor, tangent: Tangent) -> tuple[Tensor, Tensor, Tensor]:
        """For classes (k, m) of these samples: a point beyond each linearised boundary (k, m, d), the smallest step to
        it (k, m, d), and how long that is (k, m)."""
        z, x, label = tangent.scores, self.asked.x_0[rows], self.asked.label[rows]
        gap = (z.gather(1, label[:, None]) - z.gather(1, classes)).clamp_min(0).to(x.dtype)
        gap = torch.maximum(gap, 2 * self.model.rounding.tolerance[rows, None])
        lower, upper = self._walls(rows)
        leap = self._leap(rows)[:, None]
        near = torch.maximum(lower, x - leap), torch.minimum(upper, x + leap)
        starts, steps, sizes = [], [], []
        for columns, w in tangent.difference_rows(classes, label):
            self.model.count(rows, backwards=w.shape[1])
            for j, k in enumerate(range(classes.shape[1])[columns]):
                w_k = w[:, j].to(x.dtype)
                if k == 0:
                    self.model.rounding.learn(rows, x, w_k)
                w_k = self._usable(rows, w_k)
                self.slopes.learn(rows, classes[:, k : k + 1], norm(w_k, dual(self.asked.p))[:, None])
                height = (w_k * x).sum(1)
                y, _ = project(x, w_k, height + (1 + OVERSHOOT) * gap[:, k], *near, self.newton)
                step_k, possible = step_to_boundary(x, gap[:, k], w_k, *self.asked.box(rows), self.asked.p)
                far = possible & (w_k != 0).any(1)
                size = norm(step_k, self.asked.p)
                # Out of reach in the linear picture is not out of reach: such classes come last.
                size = torch.where(far, size, size + 1e3 * (1 + size))
                sizes.append(torch.where(classes[:, k] == label, math.inf, size))
                starts.append(y)
                steps.append(step_k)
        return torch.stack(starts, 1), torch.stack(steps, 1), torch.stack(sizes, 1)

    def _choose_classes(self, rows: Tensor, tangent: Tangent) -> Tensor:
        """(k, m): the classes that look nearest by score and by how steep the last hidden layer says they are."""
        z = tangent.scores
        if not self.asked.goal.any_class:
            return self.asked.goal.classes(rows, z)
        # In l1 DeepFool takes all classes, and is not to be nearer.
        foreseen = self.asked.x_0.shape[1] >= WIDE and (self.asked.p > 1 or not self.complete)
        foreseen = foreseen and self.slopes.ask_hidden_layer(rows, tangent)
        most = self.candidates or (self.plan.linearised if foreseen else 10)
        if self.asked.classes <= most + 1:
            return self.asked.goal.classes(rows, z)
        label = self.asked.label[rows, None]
        far = torch.nan_to_num((z.gather(1, label) - z), nan=math.inf) / self.slopes.expected[rows].to(z.dtype)
        return far.scatter(1, label, math.inf).topk(most, dim=1, largest=False).indices

    def _begin_deepfool(self, steps: Tensor, classes: Tensor, sizes: Tensor) -> None:
        """DeepFool's first step, and its next ones while they leave the other stages their share."""
        rows = self.rows
        order = sizes.argsort(1)
        nearest = torch.zeros(len(self.asked.x_0), min(3, classes.shape[1]), dtype=torch.long, device=rows.device)
        nearest[rows] = classes.gather(1, order[:, : nearest.shape[1]])
        # Of very many classes, later steps look at the three that were nearest at x_0.
        self.deepfool = Walk(
            self.task, "auto" if self.complete else nearest, OVERSHOOT, slopes=self.slopes
        )  # fmt: skip
        first = steps[torch.arange(len(rows), device=rows.device), order[:, 0]]
        kept = KEPT[self.asked.p] * self.budget if self.budget >= 40 else 0  # with less, DeepFool is the best there is
        self.walking = self._walk(self.deepfool.advance(rows, first), lambda rows: self.left(rows) > kept)

    def _end_deepfool(self, rows: Tensor) -> None:
        """Where DeepFool was left early and is still nearer to x_0 than the best point, it might have ended there."""

        def is_nearer(rows: Tensor) -> Tensor:
            return norm(self.deepfool.r[rows], self.asked.p) < self.best.size[rows]

        open_ = self.walking[torch.isin(self.walking, rows)]
        left = self._walk(open_, is_nearer)
        self.walking = torch.cat([self.walking[~torch.isin(self.walking, rows)], left])

    def _walk(self, rows: Tensor, go_on: Callable[[Tensor], Tensor]) -> Tensor:
        """DeepFool's steps, for as long as `go_on` says; returns the samples that it left on their way."""
        left = [rows[:0]]
        for _ in range(50):
            wanted = go_on(rows)
            left.append(rows[~wanted])
            rows = rows[wanted]
            if len(rows) == 0:
                break
            rows = self.deepfool.step(rows)
        return torch.cat(left)

    def _try_classes(self, classes: Tensor, starts: Tensor, sizes: Tensor) -> Tensor:
        """Stage 1: a phase for each of the nearest classes of each sample, all of them in one batch."""
        rows, plan = self.rows, self.plan
        order = sizes.argsort(1)
        ranked = sizes.gather(1, order)
        cost = 2 * plan.first + 1
        afford = ((self.left(rows) - 9) // cost).clamp(0, plan.classes)
        rank = torch.arange(classes.shape[1], device=rows.device)
        tried = (ranked <= 2.5 * ranked[:, :1]) & (rank < afford[:, None])
        sample, place = tried.nonzero(as_tuple=True)
        aim = torch.full_like(self.best.size, self.plan.aim)
        if len(sample) == 0:
            return aim
        column = order[sample, place]
        target, y = classes[sample, column], starts[sample, column]
        who = rows[sample]
        if self.asked.p != 1:  # from DeepFool's point where it has one; in l1 that has features at their bounds
            known = (self.best.adv_label[who] == target) & self.best.found(who)
            y = torch.where(known[:, None], self.point(who), y)
        aims = self._improve(who, y, plan.first, 1.0, plan.middle, target=target)
        aim[who] = aims  # one of the tried classes' aims: they differ little
        return aim

    def _refine(self, aim: Tensor) -> None:
        """Stage 2: continue from the best point with what is left of the budget."""
        rows = self.found()
        rounds = ((self.left(rows) - 1) // 2).clamp(0, self.plan.second)
        rows, rounds = rows[rounds > 0], rounds[rounds > 0]
        if len(rows):
            self._improve(rows, self.point(rows), rounds, self.plan.middle, self.plan.end, aim=aim[rows])

    def _restart(self) -> None:
        """Stage 3: reset a random half of the best perturbation and descend again, while the budget lasts."""
        rounds = self.plan.kick
        for _ in range(self.budget):  # each takes passes
            rows = self.found()
            rows = rows[self.left(rows) >= 2 * rounds + 1]
            if len(rows) == 0:
                return
            r = self.best.r[rows]
            kept = torch.rand(r.shape, generator=self.random).to(r.device) >= 0.5
            self._improve(rows, self.asked.x_0[rows] + r * kept, rounds, 0.5, self.plan.end)

    def _improve(
        self,
        rows: Tensor,
        y: Tensor,
        rounds: int | Tensor,
        wide: float,
        narrow: float,
        *,
        target: Tensor | None = None,
        aim: Tensor | None = None,
    ) -> Tensor:
        """One phase: trust-region rounds from y for each entry of `rows` (a sample may appear several times).

        Improves the best points; returns how far beyond the boundary each entry ended up aiming.
        """
        p = self.asked.p
        rounds = torch.full_like(rows, rounds) if isinstance(rounds, int) else rounds
        aim = torch.full_like(y[:, 0], self.plan.aim) if aim is None else aim.clone()
        phase_size = torch.full_like(y[:, 0], math.inf)  # the smallest of this phase: what its trust region goes by
        done, streak, mean_w = torch.zeros_like(aim), torch.zeros_like(aim), torch.zeros_like(y)
        for turn in range(int(rounds.max())):
            a = (rounds > turn).nonzero()[:, 0]
            who, y_a = rows[a], y[a]
            x = self.asked.x_0[who]
            self.best.iterations.index_add_(0, who, torch.ones_like(who))
            z, d, w = self._margin(who, y_a, None if target is None else target[a])
            fooled, size = self.best.report(who, y_a - x, z), norm(y_a - x, p)
            phase_size[a] = torch.where(fooled, torch.minimum(size, phase_size[a]), phase_size[a])
            ever = phase_size[a].isfinite()
            streak[a] = torch.where(fooled, streak[a] + 1, torch.zeros_like(size))
            # Three successes in a row: the boundary is as flat as it was taken to be, and the aim far too wide.
            closer = torch.where(streak[a] >= 3, 0.35, 0.7)
            aim[a] = torch.where(ever, (aim[a] * torch.where(fooled, closer, 1.5)).clamp(2e-5, 1), aim[a])
            scale = w.abs().sum(1).clamp_min(torch.finfo(w.dtype).tiny * 1e4)
            w, d = w / scale[:, None], d / scale
            w_mean = torch.where((done[a] > 0)[:, None], 0.3 * mean_w[a] + 0.7 * w, w)
            mean_w[a] = w_mean
            w = torch.where(ever[:, None], w_mean, w)
            height = (w * y_a).sum(1) - d
            # Never exactly at the boundary: not fooled yet, a little further each round; then as far as `aim` says.
            beyond = torch.where(ever, aim[a] * (height - (w * x).sum(1)).clamp_min(0), 0.05 * (turn + 1) * d.abs())
            radius = self._radius(
                y_a, x, phase_size[a], wide * (narrow / wide) ** (done[a] / (rounds[a] - 1).clamp_min(1))
            )
            radius = torch.where(ever, radius, self._leap(who))[:, None]
            lower, upper = self._walls(who)
            room = torch.maximum(lower, y_a - radius), torch.minimum(upper, y_a + radius)
            moved, _ = project(torch.where(ever[:, None], x, y_a), w, height + beyond, *room, p)
            if self.newton != p and not bool(ever.all()):
                newton, _ = project(y_a, w, height + beyond, *room, self.newton)
                moved = torch.where(ever[:, None], moved, newton)
            y[a] = self.asked.clamp(who, torch.where(moved.isfinite(), moved, y_a))
            done[a] += ever.to(done.dtype)
        self.best.report(rows, y - self.asked.x_0[rows], self.model.look(rows, y))
        return aim

    def _margin(self, rows: Tensor, y: Tensor, target: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Scores at y, and value and gradient of the margin to linearise.

        That of the best rival once fooled, before that of the class aimed at; to reach a target, of the target over
        its best rival.
        """

        def choose(z: Tensor) -> tuple[Tensor, Tensor]:
            """The class to raise and the class to lower."""
            if target is None:
                return self.asked.goal.pair(rows, z)
            return self.asked.goal.pair_towards(rows, z, target, self.best.is_fooled(rows, z))

        z, w = self.model.gradient(rows, y, lambda _, z: difference(z, *choose(z)))
        gain, loss = choose(z)
        d = (z.gather(1, gain[:, None]) - z.gather(1, loss[:, None]))[:, 0]
        return z, torch.nan_to_num(d).to(y.dtype), w

    def _usable(self, rows: Tensor, w: Tensor) -> Tensor:
        """A gradient with its broken entries and the features that must stay set to zero."""
        w = torch.nan_to_num(w, 0.0, 0.0, 0.0)
        return w if self.asked.mask is None else w * self.asked.mask[rows]

    def _walls(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        if self.asked.lower is None or self.asked.upper is None:
            wall = torch.full_like(self.asked.x_0[rows], math.inf)
            return -wall, wall
        return self.asked.lower[rows], self.asked.upper[rows]

    def _radius(self, y: Tensor, x: Tensor, size: Tensor, share: Tensor) -> Tensor:
        """Half the side of the cube: a share of the perturbation in linf, of its largest entry in l1, and in l2,
        where no entry moves nearly as far as all of them together, a smaller one of that."""
        if self.asked.p == math.inf:
            return share * size
        largest = (y - x).abs().amax(1)
        return (0.3 if self.asked.p == 2 else 1) * share * largest

    def _leap(self, rows: Tensor) -> Tensor:
        """How far a feature may move at once while nothing has fooled yet."""
        if self.asked.p != 1 or self.asked.lower is None or self.asked.upper is None:
            return torch.full_like(self.asked.x_0[rows, 0], math.inf)
        return self.plan.leap * (self.asked.upper[rows] - self.asked.lower[rows]).amax(1)

    def _search_without_gradients(self, rows: Tensor) -> None:
        y, found, z = search_by_decisions(self.task, rows, self.budget, self.random)
        r = y - self.asked.x_0[rows]
        self.best.report(
            rows[found], r[found], z[found], fooled=found[found], caution=MASKED, evidence=Evidence.DECISIONS
        )
        self.best.give_up(
            rows[~found], Status.STUCK, "neither gradients nor decisions led to another label; raise the budget"
        )


def _places(rows: Tensor, among: Tensor) -> Tensor:
    """The position of each of `rows` in the sorted index `among`."""
    return torch.searchsorted(among, rows)
