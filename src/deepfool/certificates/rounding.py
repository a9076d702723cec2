"""How far the scores of the model may be from those of the network in exact arithmetic.

The claim is about the model that runs, in float32 as a rule. Its scores are compared with those of the graph, in
float64, at the inputs, at the perturbed points that are known, and at random points of the balls. Margins must exceed
SAFETY times the largest difference that was seen, and SHARE of the scores in any case.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepfool.attacks.shared.question import Question
from deepfool.certificates.ball import Ball
from deepfool.certificates.graph import Graph
from deepfool.classifier import Classifier

SAFETY = 10.0
SHARE = {torch.float64: 1e-12, torch.float32: 1e-6}
"""Of the largest score. The networks of the zoo differ by 1 to 5e-7 of it in float32."""
POINTS = 4
"""Random points in each ball."""


@torch.no_grad()
def find_slack(f: Classifier, graph: Graph, asked: Question, ball: Ball, radius: Tensor, points: Tensor) -> Tensor:
    """(n,): what a margin must exceed. `points` (n, d) are known ones; radii that are not finite count as 1."""
    generator = torch.Generator().manual_seed(0)
    r = torch.where(radius.isfinite(), radius, 1.0)
    low, high = ball.interval(r)
    n, rows = len(r), asked.everyone.cpu()
    seen, largest = torch.zeros(n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
    shares = torch.rand(POINTS, *low.shape, generator=generator, dtype=low.dtype)
    for y in (ball.x, points, *(low + (high - low) * shares)):
        given = asked.inputs(asked.everyone, y.to(asked.x_0))
        theirs, ours = f(given).double().cpu(), graph(given.double().cpu().flatten(1))
        own = asked.label.cpu()[rows, None]
        scale = ours.abs().amax(1)
        error = ((theirs - theirs.gather(1, own)) - (ours - ours.gather(1, own))).abs().amax(1)
        # Beyond this the model ends in a squashing function that the graph leaves out: its scores are others.
        usual = error <= 1e-3 * scale.clamp_min(1e-12)
        seen = torch.maximum(seen, torch.where(usual, error, torch.zeros_like(error)))
        largest = torch.maximum(largest, scale)
    return torch.maximum(SAFETY * seen, SHARE[asked.like.dtype] * largest)
