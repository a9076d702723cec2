"""The gradient form: mini-batch ascent on the clipped margin, projected on the ball.

Shafahi, Najibi, Xu, Dickerson, Davis and Goldstein, "Universal adversarial training" (AAAI 2020) find v by stochastic
gradient ascent on the loss of mini-batches, with the loss of each image clipped, so that images that are fooled by far
cannot outweigh all others:

    maximise  mean_i min(m_i(v), beta)  over  ||v||_p <= xi.

Here m_i is the margin of image i (the best rival's score over the decision's), in units of the median margin of the
images without v: the same beta then serves models whose scores differ in scale. The step follows an average of past
gradients, in the steepest direction of the norm: its sign for linf, itself for l2, its largest entries for l1. It is a
share of xi that falls to zero along a cosine.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from deepfool.universals.images import Images

BETA = 3.0
"""Where margins are clipped, in median margins."""
FIRST_STEP = 0.5
"""Of xi. Both were chosen on lenet-cifar10 alone, in linf and l2 with 1,000 images; `python -m benchmarks.universal
--choices` compares them with others."""
MEMORY = 0.9
"""How much of the average of past gradients stays at each step."""


def step(images: Images, v: Tensor, rows: Tensor, average: Tensor, progress: float) -> tuple[Tensor, Tensor]:
    """v and the average gradient after these images; `progress` goes from 0 to 1 over the whole search.

    >>> from deepfool.classifier import Classifier
    >>> from deepfool.datasets import load
    >>> from deepfool.universals.ball import Ball
    >>> f = Classifier(lambda x: torch.cat([0.5 - x, x - 0.5], 1))
    >>> images = Images(f, load((torch.tensor([[0.6], [0.9]]), [1, 1])), [0, 1], Ball(2, 0.4), outputs_on="cpu")
    >>> step(images, torch.zeros(1), torch.tensor([0, 1]), torch.zeros(1), 0.0)[0]
    tensor([-0.2000])
    """
    gradient = _gradient(images, v, rows)
    size = gradient.abs().mean() if images.ball.p == math.inf else torch.linalg.vector_norm(gradient)
    if bool(size > 0):  # every batch counts alike, however steep the model is there
        average = MEMORY * average + (1 - MEMORY) * gradient / size
    share = FIRST_STEP * (1 + math.cos(math.pi * progress)) / 2
    return images.ball.project(v + share * images.ball.xi * _direct(average, images.ball.p)), average


def _gradient(images: Images, v: Tensor, rows: Tensor) -> Tensor:
    at = v.detach().requires_grad_()
    total = v.new_zeros(v.shape)
    for some in torch.split(rows, images.at_once):
        m = images.margins(some, images.ball.move(images.batch(some), at)) / max(images.typical_margin, 1e-12)
        (part,) = torch.autograd.grad(m.clamp_max(BETA).sum(), at)
        total += torch.nan_to_num(part, nan=0.0, posinf=0.0, neginf=0.0).to(total)
    if images.ball.mask is not None:
        total = total * images.ball.mask
    return total / len(rows)


L1_SHARE = 0.01
"""In l1 a step moves this share of the features, those with the largest gradients."""


def _direct(w: Tensor, p: float) -> Tensor:
    """The unit step along w: steepest in linf and l2; in l1 a step over a few features, not one."""
    if p == math.inf:
        return w.sign()
    if p == 2:
        return w / float(torch.linalg.vector_norm(w).clamp_min(torch.finfo(w.dtype).tiny))
    most = max(1, round(L1_SHARE * w.numel()))
    least = w.abs().flatten().topk(most).values[-1]
    chosen = torch.where((w.abs() >= least) & (w != 0), w.sign(), torch.zeros_like(w))
    return chosen / chosen.abs().sum().clamp_min(1)
