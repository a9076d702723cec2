"""Rows in float32, and what each of them may have lost to rounding.

A row c over the outputs of y = W h + b becomes c W over its inputs. Computed in float32 that is c W + e, where |e| is
at most gamma |c| |W|, entry by entry, with gamma = n u / (1 - n u) for sums of n products in any order (Higham 2002,
"Accuracy and stability of numerical algorithms", section 3.1). All values are counted from those at the sample, so the
row is off by e . (h - h_0), which is at most gamma |c| . (|W| H) if no h moves by more than H on the ball. |W| H is
computed once for each ball, in float64; each row then pays one weighted sum of |c| at each node.

This holds if sums are sums: not for Winograd's or Fourier's convolutions, nor for bfloat16 inside. The settings of
torch that allow those are read, and each layer is tried out, before float32 is chosen.
"""

from __future__ import annotations

import math
import os

import torch
from torch import Tensor

from deepfool.certificates.graph import Affine, Bend, Graph, Node
from deepfool.certificates.operators import Convolution, Dense
from deepfool.certificates.relaxation import Lines
from deepfool.certificates.rows import Rows

U = 2.0**-24
"""What float32 rounds by, relatively."""
MIXING = Dense, Convolution
"""The layers that rows pay for one by one: most is lost in their long sums."""
TINY = 2.0**-125
"""More than a product or a sum loses, absolutely, where it is too small for float32."""
BENT = 8
"""Roundings of an entry at a bend, in units of U times what its input moves by: at most 5 are made."""


def gamma(n: int) -> float:
    """What sums of n products are off by, relatively; infinite where nothing can be said.

    >>> gamma(1) > 2**-24, gamma(10**9)
    (True, inf)
    """
    return n * U / (1 - n * U) if n * U < 0.1 else math.inf


class Noise:
    """What rows may lose at each node, on the balls of n samples.

    A row pays where it begins, and on either side of each convolution or dense layer on its way. What is lost at nodes
    in between, which is little, is carried forward to the nodes that read them.
    """

    def __init__(self, graph: Graph) -> None:
        self.fans = graph.fans
        mixing = [node for node in graph.nodes if isinstance(node, Affine) and isinstance(node.operator, MIXING)]
        self.pays = {graph.nodes[0].id, *(each.id for node in mixing for each in (node, *node.inputs))}
        self.maps: dict[int, Tensor] = {}
        """(n, *shape): for each unit of |c|."""
        self.share: dict[int, Tensor] = {}
        """(n, channels or features): the largest of them, in float32."""
        self.least: Tensor | float = 0.0
        """(n,): what is lost by numbers that are too small."""

    def enter(self, node: Node, moves: list[Tensor], own: Tensor, lines: Lines | None) -> None:
        """A node. How far its entries (n, *shape) are from the sample's, at most: those of its inputs, and its own.

        The lines are those of a bend: rows come through it where they have a slope.
        """
        terms, lost = self._by_its_rows(node, moves)
        if self.fans[node.id] == 2:  # rows that meet here are added: one rounding of the sum
            terms, lost = terms + 1, _plus(lost, gamma(1) * own)
        for before in node.inputs:
            if before.id in self.maps and before.id not in self.pays:
                map_ = self.maps[before.id]
                map_ = node.operator.spread(map_) if isinstance(node, Affine) else map_
                lost = _plus(lost, map_ if lines is None else map_ * ((lines.chord != 0) | (lines.start != 0)))
        if lost is not None:
            self.maps[node.id] = lost
            # Rows are off by some gammas of themselves when they come to the next node: a thousandth covers that.
            self.share[node.id] = 1.001 * (lost if lost.ndim == 2 else lost.flatten(2).amax(2)).float()
            moved = sum(move.flatten(1).sum(1) for move in (*moves, own))
            self.least = self.least + TINY * (terms + BENT + node.size) * (1 + moved)

    def _by_its_rows(self, node: Node, moves: list[Tensor]) -> tuple[int, Tensor | None]:
        """Roundings on the way back from the node, and what they lose, (n, *shape)."""
        # Where more than two rows meet, each counts one more rounding for each of the others.
        meets = [fan - 1 if fan > 2 else 0 for fan in (self.fans[each.id] for each in node.inputs)]
        if isinstance(node, Affine):
            terms = node.operator.terms + meets[0]
            return terms, gamma(terms + 1) * node.operator.spread(moves[0]) if terms else None
        if isinstance(node, Bend):
            return BENT + meets[0], gamma(BENT + meets[0]) * moves[0]
        lost = None
        for n, move in zip(meets, moves, strict=True):
            lost = _plus(lost, gamma(n) * move) if n else lost
        return max(meets, default=0), lost

    def of(self, index: Tensor, n: int) -> Noise:
        """That of some of n samples."""
        part = Noise.__new__(Noise)
        part.fans, part.pays, part.maps = self.fans, self.pays, {}
        part.share = {k: v[index] if len(v) == n else v for k, v in self.share.items()}
        least = torch.as_tensor(self.least)
        part.least = least[index] if least.ndim and len(least) == n else least
        return part

    @torch.no_grad()
    def lost(self, node: Node, c: Tensor, who: Tensor | None) -> Tensor | float:
        """(rows,): what rows c lose on their way from this node to those before it."""
        if node.id not in self.share:
            return 0.0
        share, size = self.share[node.id], c.abs().flatten(1)
        share = share.repeat_interleave(size.shape[1] // share.shape[1], 1)
        total = size @ share[0] if len(share) == 1 else (size * _shared(share, who)).sum(1)
        return total.double() * (1 + 2 * gamma(size.shape[1] + 4))

    @torch.no_grad()
    def lost_in_sum(self, parts: Tensor) -> Tensor:
        """(rows,): what a sum of all entries of each row loses, and what its entries were rounded by."""
        return 2 * gamma(parts[0].numel() + 4) * parts.abs().flatten(1).sum(1).double()

    def lost_at_last(self, who: Tensor | None) -> Tensor | float:
        """(rows,): what is lost by numbers that are too small."""
        return self.least if isinstance(self.least, float) else _shared(self.least, who)

    def lost_by_picking(self, node: Node, index: Tensor, who: Tensor) -> Tensor:
        """(rows,): the same for rows that begin as row `index` of a matrix, rounded."""
        share = self.share[node.id]
        return share[0 if len(share) == 1 else who, index].double()


def _plus(a: Tensor | None, b: Tensor) -> Tensor:
    return b if a is None else a + b


def _shared(values: Tensor, who: Tensor | None) -> Tensor:
    return values if len(values) == 1 or who is None else values[who]


@torch.no_grad()
def choose(graph: Graph) -> torch.dtype:
    """The type that rows over this graph are computed in: float32 where that pays and can be trusted."""
    operators = [node.operator for node in graph.nodes if isinstance(node, Affine)]
    # Dense layers are computed in float64 in any case: rows over them gain nothing.
    if not (graph.bends and any(isinstance(each, Convolution) for each in operators) and _settings_allow()):
        return torch.float64
    return torch.float32 if all(_keeps_its_word(each) for each in operators) else torch.float64


def _settings_allow() -> bool:
    """Whether float32 means float32: nothing may compute it in bfloat16 or TF32."""
    lowered = ("bf16", "tf32", "bfloat16", "any")
    modes = [os.environ.get(f"{name}_DEFAULT_FPMATH_MODE", "") for name in ("ONEDNN", "DNNL")]
    cpu = getattr(torch.backends, "mkldnn", None)
    for part in (torch.backends, cpu, getattr(cpu, "conv", None), getattr(cpu, "matmul", None)):
        modes.append(str(getattr(part, "fp32_precision", "")))
    try:
        highest = torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # set by the newer way, and not the same for all
        highest = False
    return highest and not torch.is_autocast_enabled("cpu") and not any(mode.lower() in lowered for mode in modes)


def _keeps_its_word(operator: object) -> bool:
    """Whether a layer, on rows with a single entry, is off by no more than a product and its factor are rounded by."""
    if not isinstance(operator, Convolution):
        return True
    generator = torch.Generator().manual_seed(0)
    size = math.prod(operator.shape)
    values = torch.zeros(8, size)
    place = torch.randint(size, (8, 1), generator=generator)
    values.scatter_(1, place, torch.rand(8, 1, generator=generator) + 1)
    rows = Rows(values.view(-1, *operator.shape), operator.shape)
    found, true = operator.transpose(rows).values, operator.transpose(rows.like(rows.values.double())).values
    return bool(((found - true).abs() <= 2.1 * U * true.abs() + TINY).all())
