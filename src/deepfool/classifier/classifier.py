"""INPUT: any model seen as class scores.

A `Classifier` calls a model and reads what comes back as an (n, c) tensor of scores whose largest entry is the
decision. While attacks run, the model is frozen: in eval mode, with no gradient asked of its weights, and given back
exactly as it was found. Threads that attack the same module take turns.
"""

from __future__ import annotations

import copy
import math
import numbers
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from deepfool.classifier.last_hidden_layer import HiddenLayer
from deepfool.errors import InputError, ModelError, is_out_of_memory

Model = Callable[[Tensor], Any]

OUTPUTS = ("auto", "logits", "probabilities")
"""What a model can be said to return; "auto" finds out."""

READS = ("classes", "labels", "values")
"""What an output can be: the score of a class, of which the largest wins; the score of a label that is on or off by
itself; a value, as of a regression model."""

_LOCKS: weakref.WeakKeyDictionary[nn.Module, threading.RLock] = weakref.WeakKeyDictionary()
_LOCKS_GUARD = threading.Lock()

DEFAULT_MEMORY_BUDGET = 512 * 2**20
"""Bytes that one chunk of gradient rows may take, besides the forward pass itself."""


class ProbabilityWarning(UserWarning):
    """The model returns probabilities; their logarithm is attacked, which is exact until they saturate."""


class Classifier:
    """A model read as scores.

    `threshold` is where a single-output model decides (class 1 above it, class 0 at or below it); its scores become
    (0, f - threshold), which makes Algorithm 1 a case of Algorithm 2. `outputs` says what the model returns: "logits",
    "probabilities" (their logarithm is attacked), or "auto", which finds out in a way that does not depend on which
    samples are in the batch.

    >>> f = Classifier(nn.Linear(3, 1))
    >>> f(torch.zeros(2, 3)).shape
    torch.Size([2, 2])
    """

    def __init__(
        self,
        model: Model,
        *,
        threshold: float | None = None,
        outputs: str = "auto",
        reads: str = "classes",
        memory_budget: int = DEFAULT_MEMORY_BUDGET,
    ) -> None:
        if not callable(model):
            raise InputError(
                f"model must be a torch.nn.Module or a function of a batch, got {type(model).__name__}.",
                hint="deepfool.models.as_module reads scikit-learn estimators and JAX functions.",
            )
        self.model = model
        self.threshold = check_threshold(threshold)
        self.probabilities = _check_outputs(outputs)
        """Whether the outputs are probabilities; None until the model was looked at."""
        self.said_probabilities = self.probabilities
        """The same, as far as somebody said so."""
        self.reads = _check_reads(reads)
        """What an output is, one of READS. Labels and values are returned as (n, c), c >= 1: the scores of labels less
        the threshold, values as they are."""
        self.memory_budget = _check_budget(memory_budget)
        self.batched_rows = True
        """Whether several gradient rows can be taken in one backward pass; found out at the first try."""
        self.row_bytes: int | None = None
        """What one gradient row of one sample takes, estimated from the first forward pass."""
        self.row_work = 0
        """What one gradient row of one sample multiplies, counted in the first forward pass that looked for layers."""
        self.hidden_layer: HiddenLayer | None = None
        """The last hidden layer, if there is one that every path from the input to the scores passes through."""
        self.hidden_layer_sought = False

    @staticmethod
    def of(
        model: Model | Classifier, threshold: float | None = None, outputs: str = "auto", reads: str = "classes"
    ) -> Classifier:
        """A Classifier around the model, or the model itself if it is one; what is given here goes first.

        >>> f = Classifier(nn.Linear(3, 1), threshold=0.2)
        >>> Classifier.of(f) is f, Classifier.of(f, threshold=0.3).threshold
        (True, 0.3)
        """
        if not isinstance(model, Classifier):
            return Classifier(model, threshold=threshold, outputs=outputs, reads=reads)
        probabilities = _check_outputs(outputs)
        if threshold is None and probabilities is None and reads == model.reads:
            return model
        changed = copy.copy(model)
        if reads != model.reads:
            changed.reads, changed.probabilities = _check_reads(reads), model.said_probabilities
        changed.threshold = model.threshold if threshold is None else check_threshold(threshold)
        changed.probabilities = model.probabilities if probabilities is None else probabilities
        return changed

    def __call__(self, x: Tensor) -> Tensor:
        """The scores of a batch: (n, c), c >= 2, float32 or float64."""
        return self.read(self.run(x), x)

    def run(self, x: Tensor) -> Tensor:
        """What the model returns for a batch, as it is, in float32 or float64."""
        try:
            output = self.model(x)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            raise ModelError(
                f"the model raised {type(error).__name__} on a batch of shape {tuple(x.shape)}, {x.dtype}, "
                f"on {x.device}: {error}",
                hint=self._explain_failure(x),
            ) from error
        scores = find_scores(output)
        if not scores.is_floating_point():
            raise ModelError(f"the model must return floating-point scores, got {scores.dtype}.")
        return scores.to(torch.promote_types(scores.dtype, torch.float32))

    def read(self, z: Tensor, x: Tensor) -> Tensor:
        """The scores in what `run` returned for x."""
        shape, n = tuple(z.shape), len(x)
        if z.ndim == 0 or z.ndim > 2:
            raise ModelError(
                f"the model must return scores of shape (n, classes), (n, 1) or (n,), got {shape}.",
                hint="flatten the output, or pick the class dimension inside the model.",
            )
        if len(z) != n:
            raise ModelError(f"the model returned {len(z)} rows of scores for a batch of {n}: shape {shape}.")
        if z.ndim == 2 and z.shape[1] == 0:
            raise ModelError("the model returned no class scores at all.")
        single = z.ndim == 1 or z.shape[1] == 1
        if self.reads != "classes":
            return self._read_separately(z.reshape(n, -1))
        if self.probabilities is None:
            self.probabilities = self._ends_in_sigmoid() if single else self._returns_probabilities(z.detach(), x)
        if single:
            return self._read_single(z.reshape(n))
        return z.clamp_min(torch.finfo(z.dtype).tiny).log() if self.probabilities else z

    def _read_separately(self, z: Tensor) -> Tensor:
        """Outputs that do not compete: values as they are, labels as scores that are on above 0."""
        if self.reads == "values":
            return z
        if self.probabilities is None:
            self.probabilities = self._ends_in_sigmoid()
        if self.probabilities:
            z = torch.logit(z, eps=torch.finfo(z.dtype).eps)
        return z - self.cut

    def _ends_in_sigmoid(self) -> bool:
        found = isinstance(_last_layer(self.model), nn.Sigmoid)
        if found:
            _warn_of_probabilities("sigmoid")
        return found

    def _returns_probabilities(self, z: Tensor, x: Tensor) -> bool:
        """Whether the model returns probabilities: the scores z of x look like it, and so do those of other inputs.

        x alone will not do: the logits of a sample may add up to 1 by chance, and the same sample in another batch
        would then be read in another way. The other inputs are two random ones, shaped like x.
        """
        if not _look_like_probabilities(z):
            return False
        random = torch.rand((2, *x.shape[1:]), generator=torch.Generator().manual_seed(0)).to(x)
        # A compiled model would be compiled again for two samples: ask what it was compiled from.
        other = Classifier(getattr(self.model, "_orig_mod", self.model))
        with torch.no_grad(), suppress(ModelError):  # it may not be made for such inputs
            z = other.run(random)
        if bool(z.isfinite().all()) and not _look_like_probabilities(z):
            return False
        _warn_of_probabilities("softmax")
        return True

    def _read_single(self, f: Tensor) -> Tensor:
        last = _last_layer(self.model)
        if isinstance(last, nn.Softmax | nn.LogSoftmax):
            raise ModelError(
                "the model has one class only (a softmax over a single output): no decision can change.",
                hint="remove the softmax to use the output as a single logit.",
            )
        if self.probabilities:
            f = torch.logit(f, eps=torch.finfo(f.dtype).eps)
        return torch.stack([torch.zeros_like(f), f - self.cut], dim=1)

    @property
    def cut(self) -> float:
        """What is taken off a single score, so that its sign decides: the threshold, as a logit for probabilities."""
        if self.threshold is None or not self.probabilities:
            return self.threshold or 0.0
        if not 0 < self.threshold < 1:
            raise InputError(f"the threshold of a probability must lie between 0 and 1, got {self.threshold:g}.")
        return math.log(self.threshold / (1 - self.threshold))

    def _explain_failure(self, x: Tensor) -> str:
        weights = [p for p in self._parameters() if p.is_floating_point()]
        if weights and weights[0].dtype != x.dtype:
            return f"the weights are {weights[0].dtype} and x is {x.dtype}: convert one of them."
        if weights and weights[0].device != x.device:
            return f"the weights are on {weights[0].device} and x is on {x.device}: move one of them."
        return "call the model on this batch by itself; x needs a batch dimension first."

    def _parameters(self) -> list[nn.Parameter]:
        return list(self.model.parameters()) if isinstance(self.model, nn.Module) else []

    @contextmanager
    def frozen(self) -> Iterator[Classifier]:
        """Eval mode, weights that ask for no gradient, gradients enabled; all of it undone at the end.

        Training flags, `requires_grad`, `.grad`, buffers and the random streams are restored, even after an error. If
        another thread wants the same module frozen, it waits. The random streams belong to the whole process: threads
        that draw from them while an attack runs in another one may draw the same numbers twice.
        """
        with _lock_of(self.model):
            yield from self._freeze()

    def _freeze(self) -> Iterator[Classifier]:
        modules = list(self.model.modules()) if isinstance(self.model, nn.Module) else []
        parameters = self._parameters()
        if any(parameter.is_inference() for parameter in parameters):
            raise ModelError(
                "the weights of the model were created in inference mode, so no gradient can flow through it.",
                hint="build or load the model outside torch.inference_mode().",
            )
        flags = [(module, module.training) for module in modules]
        asked = [(parameter, parameter.requires_grad, parameter.grad) for parameter in parameters]
        buffers = [_Buffer(m, name, b) for m in modules for name, b in m._buffers.items() if b is not None]
        cuda = sorted({p.device.index or 0 for p in parameters if p.device.type == "cuda"})
        with torch.random.fork_rng(devices=cuda), torch.inference_mode(False), torch.enable_grad():
            try:
                if any(training for _, training in flags):
                    for module in modules:  # not model.eval(): exported programs refuse it, subclasses override it
                        module.training = False
                for parameter in parameters:
                    parameter.requires_grad_(False)
                yield self
            finally:
                for module, training in flags:
                    module.training = training
                for parameter, wanted, grad in asked:
                    parameter.requires_grad_(wanted)
                    parameter.grad = grad
                for buffer in buffers:
                    buffer.restore()


class _Buffer:
    """A buffer as it was: some models count calls or keep running values in eval mode too."""

    def __init__(self, module: nn.Module, name: str, tensor: Tensor) -> None:
        self.module, self.name, self.tensor = module, name, tensor
        self.version = None if tensor.is_inference() else tensor._version
        self.copy = tensor.detach().clone()

    def restore(self) -> None:
        if self.version is None or self.tensor._version != self.version:
            with torch.inference_mode(self.tensor.is_inference()):
                self.tensor.detach().copy_(self.copy)
        if self.module._buffers.get(self.name) is not self.tensor:  # replaced rather than changed
            self.module._buffers[self.name] = self.tensor


def _lock_of(model: Model) -> threading.RLock:
    """The lock of a module, the same for every Classifier around it; a function gets a lock of its own."""
    if not isinstance(model, nn.Module):
        return threading.RLock()
    with _LOCKS_GUARD:
        return _LOCKS.setdefault(model, threading.RLock())


def check_threshold(threshold: float | None) -> float | None:
    """A finite number, or None; or an error.

    >>> check_threshold(0.3)
    0.3
    """
    if threshold is None:
        return None
    try:
        if isinstance(threshold, numbers.Real) and not isinstance(threshold, bool) and math.isfinite(threshold):
            return float(threshold)
    except OverflowError:  # a whole number beyond all floats
        pass
    raise InputError(f"threshold must be a finite number, got {threshold!r:.80}.")


def _check_budget(memory_budget: int) -> int:
    whole = isinstance(memory_budget, numbers.Integral) and not isinstance(memory_budget, bool)
    if not whole or not 0 < memory_budget < 2**63:
        raise InputError(f"memory_budget must be a whole number of bytes >= 1, got {memory_budget!r:.80}.")
    return int(memory_budget)


def _check_outputs(outputs: str) -> bool | None:
    """Whether the outputs are probabilities; None where that is to be found out."""
    if outputs not in OUTPUTS:
        raise InputError(f"outputs must be one of {', '.join(OUTPUTS)}, got {outputs!r}.")
    return None if outputs == "auto" else outputs == "probabilities"


def _check_reads(reads: str) -> str:
    if reads not in READS:
        raise InputError(f"reads must be one of {', '.join(READS)}, got {reads!r}.")
    return reads


def find_scores(output: Any) -> Tensor:
    """The tensor of scores in what a model returned: itself, `.logits`, a dict's "logits", or a tuple's first."""
    if isinstance(output, Tensor):
        return output
    logits = getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    if isinstance(output, Mapping):
        named = [output[key] for key in ("logits", "scores", "output") if isinstance(output.get(key), Tensor)]
        found = named or [value for value in output.values() if isinstance(value, Tensor)][:2]
        if named or len(found) == 1:
            return found[0]
        raise ModelError(
            f"cannot tell which entry of the model's output holds the scores: {sorted(map(str, output))}.",
            hint='return the scores under the key "logits".',
        )
    if isinstance(output, tuple | list) and output and isinstance(output[0], Tensor):
        return output[0]
    raise ModelError(
        f"the model must return a tensor of scores, got {type(output).__name__}.",
        hint="a tensor, an object with .logits, a dict with logits, or a tuple that begins with them.",
    )


def _look_like_probabilities(z: Tensor) -> bool:
    z = z[z.isfinite().all(1)]
    return len(z) > 0 and bool((z >= 0).all()) and bool(((z.sum(1) - 1).abs() < 1e-4).all())


def _warn_of_probabilities(kind: str) -> None:
    warnings.warn(
        f"the model returns probabilities ({kind}); their logarithm is attacked. Where they saturate at 0 or 1 the "
        f"gradient vanishes: return the scores before the {kind} instead.",
        ProbabilityWarning,
        stacklevel=2,
    )


def _last_layer(model: Model) -> nn.Module | None:
    layers = [m for m in model.modules() if not list(m.children())] if isinstance(model, nn.Module) else []
    return layers[-1] if layers else None
