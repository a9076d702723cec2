"""A model as a graph of affine maps, sums, ReLUs and tanhs, or a refusal that names what it cannot be made of.

The model is run once under torch's tracer, which records the operations that really take place, whatever modules,
functions and methods they come from. Each is lowered by the entry of `operations.LOWERED` with its name. Control flow
that depends on the values cannot be recorded and is refused. What came out is compared with the model on random points.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from deepfool.certificates.building import Builder
from deepfool.certificates.graph import Graph, Node
from deepfool.certificates.operations import LOWERED, UnsupportedError
from deepfool.certificates.operators import Dense, Reshape
from deepfool.classifier import Classifier
from deepfool.classifier.classifier import find_scores
from deepfool.errors import ModelError

BATCH = 2
"""Samples in the traced batch: with one, a batch dimension could be squeezed away unseen."""
POINTS = 8
"""Random points at which the graph is compared with the model."""
CLOSE = 1e-3
"""How far the two may differ there, as a share of the largest score: float32 rounding is a hundred times smaller."""

MONOTONE = {"aten._softmax", "aten._log_softmax", "aten.sigmoid", "aten.tanh", "aten.log_sigmoid_forward"}
"""As the very last operation these change no decision: it is read from what they were given."""

SUPPORTED = (
    "dense and convolutional layers, average and max-pooling, batch normalisation in eval mode, ReLU and leaky ReLU, "
    "sigmoid, tanh, clamping, sums, and constants added or multiplied"
)


def lower(f: Classifier, x: Tensor, accept: Callable[[Graph], object] = lambda graph: None) -> Graph:
    """The scores of a classifier, (n, classes) for x shaped like this, as a graph in float64 on flat features.

    `f` must be frozen. A last softmax, sigmoid or tanh is left out. A single score f becomes the pair (0, f - cut).
    `accept` may refuse the graph with an error before it is run.

    >>> f = Classifier(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    >>> x = torch.rand(2, 3)
    >>> torch.allclose(lower(f, x)(x.double()).float(), f(x), atol=1e-5)
    True
    """
    if x.dtype not in (torch.float32, torch.float64):
        raise ModelError(
            f"certificates are for float32 and float64, got {x.dtype}.", hint="model.float() and x.float()."
        )
    if f.probabilities is None:
        with torch.no_grad():
            f(x[:1])  # finds out how its outputs are read
    builder = Builder(tuple(x.shape[1:]))
    lowering = _Lowering(f, builder)
    scores = _read_single(f, builder, lowering.run(_trace(f, x)))
    if len(scores.shape) != 1 or scores is builder.input:
        raise ModelError(f"the model must return scores (n, classes) for a certificate, got {scores.shape} a sample.")
    graph = builder.graph(scores)
    accept(graph)
    _compare(f, graph, x, lowering.squashed)
    return graph


def _trace(f: Classifier, x: Tensor) -> fx.GraphModule:
    from torch.fx.experimental.proxy_tensor import make_fx

    example = x[:1].expand(BATCH, *x.shape[1:]).clone()
    try:
        with torch.no_grad():
            return make_fx(lambda each: find_scores(f.model(each)))(example)
    except Exception as error:
        if "data-dependent" in str(error):
            raise ModelError(
                "no certificate for this model: what it computes depends on its values (an `if` on a tensor, .item()).",
                hint="write it with torch.where, clamp or relu.",
            ) from error
        raise ModelError(
            f"the model could not be traced for a certificate: {type(error).__name__}: {str(error)[:300]}",
            hint="it has to run on a batch of two in eval mode, with torch operations only.",
        ) from error


class _Lowering:
    """One walk over the recorded operations. Values are nodes where they depend on the input, else tensors."""

    def __init__(self, f: Classifier, builder: Builder) -> None:
        self.f, self.builder = f, builder
        self.values: dict[fx.Node, Any] = {}
        self.squashed = False
        """Whether a last operation was left out, so that the scores are others than the model's."""

    def run(self, traced: fx.GraphModule) -> Node:
        for step in traced.graph.nodes:
            if step.op == "placeholder":
                self.values[step] = self.builder.input
            elif step.op == "get_attr":
                value = operator.attrgetter(str(step.target))(traced)
                self.values[step] = value.detach().cpu() if isinstance(value, Tensor) else value
            elif step.op == "output":
                return self._finish(step.args[0])
            else:
                self.values[step] = self._lower(step)
        raise ModelError("the model returned nothing that could be traced.")

    def _lower(self, step: fx.Node) -> Any:
        args: Any = fx.node.map_arg(step.args, lambda each: self.values[each])
        kwargs: Any = fx.node.map_arg(step.kwargs, lambda each: self.values[each])
        name = _name(step)
        if not _has_node((args, kwargs)):
            if name == "getitem":
                return args[0][args[1]]
            kwargs = {k: torch.device("cpu") if k == "device" else v for k, v in kwargs.items()}
            return step.target(*args, **kwargs)  # type: ignore[operator]
        if name == "getitem":  # operations with several results: only the first is lowered
            return args[0] if args[1] == 0 else Unused(str(step.args[0]))
        if name in MONOTONE and _leads_to_the_scores(step):
            return self._before(name, args)
        if name not in LOWERED:
            raise self._refuse(name)
        try:
            return LOWERED[name](self.builder, step, *args, **kwargs)
        except UnsupportedError as error:
            raise self._refuse(name, str(error)) from error

    def _before(self, name: str, args: Any) -> Node:
        node: Node = args[0]
        if name in ("aten._softmax", "aten._log_softmax") and args[1] not in (1, -1):
            raise self._refuse(name, "not over the classes")
        if node.shape in ((), (1,)) and not (name == "aten.sigmoid" and self.f.probabilities is True):
            raise self._refuse(name, "of a single score that is not read as a probability")
        self.squashed = True
        return node

    def _finish(self, result: Any) -> Node:
        node = self.values.get(result)
        if not isinstance(node, Node):
            raise ModelError("no certificate for this model: its scores do not depend on the input.")
        return node

    def _refuse(self, name: str, detail: str = "") -> ModelError:
        operation = name.removeprefix("aten.").strip("_")
        where = _find_layers(self.f.model, operation)
        detail = f" ({detail})" if detail else ""
        return ModelError(
            f"no certificate for this model: {operation}{where}{detail} cannot be bounded.",
            hint=f"certify takes {SUPPORTED}. Replace it, or certify the part of the model before it.",
        )


class Unused:
    """A result of an operation that nothing may read, such as the places of a max-pooling."""

    def __init__(self, name: str) -> None:
        self.name = name


def _has_node(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_node, value.values()))
    return any(map(_has_node, value)) if isinstance(value, tuple | list) else isinstance(value, Node | Unused)


def _name(step: fx.Node) -> str:
    if step.target is operator.getitem:
        return "getitem"
    packet = getattr(step.target, "overloadpacket", step.target)
    return str(packet)


def _leads_to_the_scores(step: fx.Node) -> bool:
    """Whether nothing but another shape comes between this and the scores."""
    users = list(step.users)
    if len(users) != 1:
        return False
    last = users[0]
    return last.op == "output" or (
        _name(last) in ("aten.view", "aten.squeeze", "aten.clone", "aten._to_copy", "aten.detach", "getitem")
        and _leads_to_the_scores(last)
    )


def _find_layers(model: Any, operation: str) -> str:
    """The modules that an operation probably comes from, as words."""
    if not isinstance(model, nn.Module):
        return ""
    wanted = operation.replace("_", "").lower()
    names = [
        f"{name!r}"
        for name, module in model.named_modules()
        if name and type(module).__name__.lower() == wanted
    ]  # fmt: skip
    if not names:
        return ""
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return f" (layer {shown})" if len(names) == 1 else f" (layers {shown})"


def _read_single(f: Classifier, builder: Builder, scores: Node) -> Node:
    """Scores (), (1,) as a pair of which the larger decides, as `Classifier` has it."""
    if scores.shape not in ((), (1,)):
        return scores
    one = scores if scores.shape == (1,) else builder.affine(scores, Reshape(scores.shape, (1,)))
    weight = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    return builder.affine(one, Dense(weight, torch.tensor([0.0, -f.cut], dtype=torch.float64)))


@torch.no_grad()
def _compare(f: Classifier, graph: Graph, x: Tensor, squashed: bool) -> None:
    """The graph against the model: at the first inputs, and at random points around them."""
    generator = torch.Generator().manual_seed(0)
    some = x[torch.arange(POINTS) % len(x)].cpu()
    noise = torch.randn(some.shape, generator=generator, dtype=torch.float64)
    spread = float(some.double().std(correction=0)) or 1.0
    points = torch.cat([some, (some + spread * noise).to(x.dtype)]).to(x)
    theirs = f(points).double().cpu()
    ours = graph(points.double().cpu().flatten(1))
    if theirs.shape == ours.shape and squashed:
        same = theirs.argmax(1) == ours.argmax(1)  # the graph ends before the softmax
        top = theirs.topk(2, 1).values
        agree = bool((same | (top[:, 0] - top[:, 1] < CLOSE)).all())
    else:
        close = CLOSE * theirs.abs().max().clamp_min(1e-12)
        agree = theirs.shape == ours.shape and bool((theirs - ours).abs().max() <= close)
    if not agree:
        raise ModelError(
            "no certificate for this model: run again, it does not compute what was recorded of it.",
            hint="models that draw random numbers, mix the samples of a batch or keep a state cannot be certified.",
        )
