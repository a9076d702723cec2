"""What is known of the bends of a graph on the balls of some samples."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from deepfool.certificates.ball import Ball
from deepfool.certificates.graph import Graph
from deepfool.certificates.precision import Noise
from deepfool.certificates.relaxation import Bounds, Lines


@dataclass
class Layers:
    """Bounds of the bends' inputs and the lines that follow from them, by id."""

    bounds: dict[int, Bounds]
    lines: dict[int, Lines]
    centre: dict[int, Tensor]
    """The values of all nodes at the samples: (n, *shape), or (1, *shape) if they are all about one."""
    noise: Noise | None
    """What rows in float32 lose; None: rows are in float64."""

    @staticmethod
    def begin(graph: Graph, ball: Ball) -> Layers:
        """Nothing but the values at the samples: all that an affine network needs."""
        return Layers({}, {}, graph.run(ball.x), None)

    def of(self, index: Tensor) -> Layers:
        n = len(next(iter(self.bounds.values())).low)
        return Layers(
            {k: v.of(index) for k, v in self.bounds.items()},
            {k: v.of(index) for k, v in self.lines.items()},
            {k: v[index] if len(v) == n else v for k, v in self.centre.items()},
            None if self.noise is None else self.noise.of(index, n),
        )

    def at(self, lines: dict[int, Lines]) -> Layers:
        """The same with other lines."""
        return Layers(self.bounds, lines, self.centre, self.noise)

    @property
    def empty(self) -> Tensor:
        """(n,): bounds that contradict each other; no point of the ball has the signs that are said to be known."""
        found = None
        for bounds in self.bounds.values():
            crossed = (bounds.low > bounds.high).flatten(1).any(1)
            found = crossed if found is None else found | crossed
        assert found is not None
        return found
