"""Nodes put together: the vocabulary that operations of torch are lowered with."""

from __future__ import annotations

import torch
from torch import Tensor

from deepfool.certificates.graph import Affine, Graph, Input, Node, Relu, Sum, Tanh
from deepfool.certificates.operators import Edges, Operator, Scale, Taps
from deepfool.certificates.rows import Shape


class Builder:
    """A graph that grows. Every method returns the new node."""

    def __init__(self, shape: Shape) -> None:
        self.nodes: list[Node] = []
        self.input = self._put(Input(0, shape))

    def graph(self, scores: Node) -> Graph:
        """What leads to the scores, numbered anew."""
        needed, stack = set(), [scores]
        while stack:
            node = stack.pop()
            if node.id not in needed:
                needed.add(node.id)
                stack.extend(node.inputs)
        if scores is not self.nodes[-1]:  # what comes after the scores is not asked for
            self.nodes = self.nodes[: scores.id + 1]
        return Graph([node for node in self.nodes if node.id in needed or isinstance(node, Input)])

    def affine(self, node: Node, operator: Operator) -> Node:
        return self._put(Affine(len(self.nodes), operator.shape, (node,), operator=operator))

    def scale(self, node: Node, factor: Tensor | float, bias: Tensor | None = None) -> Node:
        factor = torch.as_tensor(factor, dtype=torch.float64)
        return self.affine(node, Scale(factor, bias, node.shape))

    def sum(self, nodes: tuple[Node, ...], signs: tuple[int, ...]) -> Node:
        return self._put(Sum(len(self.nodes), nodes[0].shape, nodes, signs=signs))

    def relu(self, node: Node, slope: float = 0.0) -> Node:
        return self._put(Relu(len(self.nodes), node.shape, (node,), slope=slope))

    def tanh(self, node: Node) -> Node:
        return self._put(Tanh(len(self.nodes), node.shape, (node,)))

    def sigmoid(self, node: Node) -> Node:
        """(1 + tanh(z / 2)) / 2."""
        return self.scale(self.tanh(self.scale(node, 0.5)), 0.5, torch.full((), 0.5, dtype=torch.float64))

    def clamp(self, node: Node, low: float | None, high: float | None) -> Node:
        """clamp(z) = low + relu(z - low) - relu(z - high), and the same with one end only."""
        one = torch.ones((), dtype=torch.float64)
        parts: list[Node] = []
        if low is not None:
            parts.append(self.relu(self.scale(node, one, one * -low)))
        if high is not None:
            parts.append(self.relu(self.scale(node, one, one * -high)))
        if low is not None:
            clamped = parts[0] if high is None else self.sum((parts[0], parts[1]), (1, -1))
            return clamped if low == 0 else self.scale(clamped, one, one * low)
        return self.sum((node, parts[0]), (1, -1))

    def maximum(self, a: Node, b: Node) -> Node:
        """max(a, b) = b + relu(a - b)."""
        return self.sum((b, self.relu(self.sum((a, b), (1, -1)))), (1, 1))

    def max_pool(self, node: Node, kernel: Shape, stride: Shape, padding: Shape, dilation: Shape, out: Shape) -> Node:
        """The largest of each window: along one axis after the other, two at a time.

        Where a window reaches over the border the entry at the border is taken once more: it is in the window.
        """
        for axis in (1, 2):
            i = axis - 1
            k, step, pad, apart, count = kernel[i], stride[i], padding[i], dilation[i], out[i]
            if k == 1 and step == 1:
                continue
            span = apart * (k - 1) + 1
            beyond = (count - 1) * step + span - pad - node.shape[axis]
            if pad > 0 or beyond > 0:
                node = self.affine(node, Edges(node.shape, axis, pad, max(beyond, 0)))
            node = self._max_along(node, axis, step, count, [apart * j for j in range(k)], span)
        return node

    def _max_along(self, node: Node, axis: int, step: int, out: int, offsets: list[int], span: int) -> Node:
        def tap(taps: dict[int, float]) -> Node:
            return self.affine(node, Taps(node.shape, axis, step, out, taps, span))

        # Differences of entries of one map are taken at once: their bounds are then those of a single affine map.
        found = []
        for a, b in zip(offsets[::2], offsets[1::2], strict=False):
            found.append(self.sum((tap({b: 1.0}), self.relu(tap({a: 1.0, b: -1.0}))), (1, 1)))
        if len(offsets) % 2:
            found.append(tap({offsets[-1]: 1.0}))
        while len(found) > 1:
            found = [*found[2:], self.maximum(found[0], found[1])]
        return found[0]

    def sum_pool(self, node: Node, kernel: Shape, stride: Shape, out: Shape) -> Node:
        """The sum of each window that lies inside the map."""
        for axis in (1, 2):
            k, step, count = kernel[axis - 1], stride[axis - 1], out[axis - 1]
            if not (k == 1 and step == 1):
                taps = dict.fromkeys(range(k), 1.0)
                node = self.affine(node, Taps(node.shape, axis, step, count, taps, k))
        return node

    def _put(self, node: Node) -> Node:
        self.nodes.append(node)
        return node
