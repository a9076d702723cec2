"""Can this model be certified, and what would it take? Asked before anything is attacked or proved."""

from __future__ import annotations

import math

from torch import Tensor

from deepfool.attacks.shared.aims import Aim, read_goal
from deepfool.attacks.shared.alternatives import open_aim
from deepfool.attacks.shared.arguments import check_inputs
from deepfool.certificates.costs import Cost, check_cost, estimate
from deepfool.certificates.graph import Graph
from deepfool.certificates.lowering import lower
from deepfool.certificates.precision import choose
from deepfool.certificates.readings import check_provable, split_by_reading
from deepfool.classifier import Classifier, Model
from deepfool.errors import InputError
from deepfool.norms import check_p

NORMS = (1.0, 2.0, math.inf)


def check_norm(p: float) -> float:
    """A norm that there are certificates for, or an error.

    >>> check_norm(3)
    Traceback (most recent call last):
    ...
    deepfool.errors.InputError: certify works in the norms p = 1, 2 and inf, got 3. ...
    """
    p = check_p(p)
    if p not in NORMS:
        raise InputError(f"certify works in the norms p = 1, 2 and inf, got {p:g}.", hint="measure in one of them.")
    return p


def certifiable(
    model: Model | Classifier, x: Tensor, *, p: float, seconds: float = 1.0, goal: str | Aim | None = None
) -> Cost:
    """What a certificate takes, estimated; or the error that `certify` would raise.

    Args:
        model: what is to be certified.
        x: (n, ...), inputs of the shape that counts; one is enough.
        p: the norm.
        seconds: how long `certify` would be given for each sample. A model is refused if a single pass over it takes
            many times longer, or more memory than there is.
        goal: what counts as a changed decision, as for `certify`.

    Returns:
        `seconds` and `bytes` of one pass for one sample, and `units`, the number of ReLUs.

    >>> from torch import nn, rand
    >>> certifiable(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)), rand(1, 3), p=2).units
    8
    >>> certifiable(nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 2)), rand(1, 3), p=2)
    Traceback (most recent call last):
    ...
    deepfool.errors.ModelError: no certificate for this model: gelu (layer '1') cannot be bounded. ...
    """
    check_norm(p)
    check_inputs(x)
    aim, _ = read_goal(goal, None)
    check_provable(aim)
    f = Classifier.of(model, reads=aim.reads)
    with f.frozen():
        z = f(x[:1]).detach()
        begun = open_aim(aim, z)
        if begun.read is not None:
            [(_, f)] = split_by_reading(f, z, begun)
        return estimate(lower(f, x[:1], lambda graph: settle(graph, seconds)))


def settle(graph: Graph, seconds: float) -> None:
    """What rows are computed in; an error for a network that would take too long or too much memory."""
    graph.rows = choose(graph)
    check_cost(estimate(graph), seconds)
