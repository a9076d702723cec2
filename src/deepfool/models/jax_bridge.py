"""A JAX function as a torch module: inputs are shared through dlpack without a copy, gradients come from jax.vjp.

    torch x ──dlpack──▶ jax x ──vjp──▶ scores, pullback
    torch grad ◀──dlpack── pullback(v) ◀──dlpack── v

Many rows of a Jacobian (`is_grads_batched=True`, or torch.func.jacrev) become one `jax.vmap` over the
pullback instead of a loop.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from deepfool.errors import InputError, ModelError, require

PURPOSE = "a JAX function"


class JaxFunction(nn.Module):
    """A JAX function of a batch, called and differentiated from torch."""

    digest: Tensor

    def __init__(self, function: Callable[..., Any], params: Any = None) -> None:
        super().__init__()
        jax = require("jax", extra="jax", purpose=PURPOSE)
        self.function = function if params is None else lambda x: function(params, x)
        # The weights are in JAX; their hash is kept as a buffer, so that the model's fingerprint covers them.
        digest = hashlib.sha256(_bytes_of(jax, params)).digest()
        self.register_buffer("digest", torch.frombuffer(bytearray(digest), dtype=torch.uint8))

    def forward(self, x: Tensor) -> Tensor:
        if not (torch.is_grad_enabled() and x.requires_grad):  # no gradient needed: half the work
            return _call(self.function, x)
        scores: Tensor = _Scores.apply(x, self.function)[0]  # type: ignore[no-untyped-call]
        return scores


def from_jax(function: Callable[..., Any], *, params: Any = None) -> JaxFunction:
    """Turn `function(x)` or `function(params, x)` into a module; it maps a batch `x` to class scores.

    float64 inputs are computed in float64 (JAX's default would silently use float32). Only first-order gradients are
    available. Weights inside a closure are not visible here: pass them as `params` to include them in the fingerprint.

    >>> import jax.numpy as jnp
    >>> model = from_jax(lambda w, x: jnp.tanh(x @ w), params=jnp.ones((3, 2)))
    >>> x = torch.zeros(1, 3, requires_grad=True)
    >>> torch.autograd.grad(model(x)[0, 0], x)[0]
    tensor([[1., 1., 1.]])
    """
    if not callable(function):
        raise InputError(f"A JAX function was expected, got {function!r}.")
    return JaxFunction(function, params)


class _Scores(torch.autograd.Function):
    """The function itself; it returns its pullback together with the scores."""

    @staticmethod
    def forward(x: Tensor, function: Callable[[Any], Any]) -> tuple[Tensor, Any]:
        jax = require("jax", extra="jax", purpose=PURPOSE)
        with _precision_of(jax, x):
            scores, pullback = jax.vjp(function, _to_jax(jax, x))
            return _to_torch(scores, x.device), pullback

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Any]) -> None:
        x, _ = inputs
        ctx.pullback, ctx.like = output[1], x.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:
        return _pull(grads[0], ctx.pullback, ctx.like), None


class _Pullback(torch.autograd.Function):
    """v -> v^T J, for one v, or under vmap for a stack of them."""

    @staticmethod
    def forward(v: Tensor, pullback: Callable[[Any], tuple[Any]], like: Tensor) -> Tensor:
        jax = require("jax", extra="jax", purpose=PURPOSE)
        with _precision_of(jax, like):
            return _to_torch(pullback(_to_jax(jax, v))[0], like.device)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], v: Tensor, pullback: Any, like: Tensor) -> tuple[Tensor, int]:
        jax = require("jax", extra="jax", purpose=PURPOSE)
        rows = v.movedim(in_dims[0], 0)
        return _Pullback.apply(rows, jax.vmap(pullback), like), 0  # type: ignore[no-untyped-call]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise ModelError("Second-order gradients are not supported for JAX functions.", hint="use a first-order attack")


def _pull(v: Tensor, pullback: Callable[[Any], tuple[Any]], like: Tensor) -> Tensor:
    """v^T J, also for the stack of v that `is_grads_batched=True` hides inside one tensor.

    That flag uses torch's legacy vmap, which does not support custom functions. So the stack is unpacked and packed
    again with the two functions that vmap itself uses. If a later torch lacks them, the call below raises a
    RuntimeError, and the rows are computed one by one.
    """
    if not _is_stack(v):
        return _Pullback.apply(v, pullback, like)  # type: ignore[no-untyped-call,no-any-return]
    jax = require("jax", extra="jax", purpose=PURPOSE)
    rows = torch._remove_batch_dim(v, 1, 0, 0)  # level 1: the flag does not nest
    pulled = _Pullback.apply(rows, jax.vmap(pullback), like)  # type: ignore[no-untyped-call]
    return torch._add_batch_dim(pulled, 0, 1)


def _is_stack(v: Tensor) -> bool:
    known = getattr(torch._C._functorch, "is_legacy_batchedtensor", None)
    return known is not None and known(v)


def _call(function: Callable[[Any], Any], x: Tensor) -> Tensor:
    jax = require("jax", extra="jax", purpose=PURPOSE)
    with _precision_of(jax, x):
        return _to_torch(function(_to_jax(jax, x)), x.device)


def _precision_of(jax: Any, x: Tensor) -> Any:
    """JAX turns float64 into float32 unless this is switched on."""
    if x.dtype != torch.float64:
        return contextlib.nullcontext()
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    return require("jax.experimental", extra="jax", purpose=PURPOSE).enable_x64()


def _to_jax(jax: Any, x: Tensor) -> Any:
    x = x.detach().contiguous()
    if jax.default_backend() == "cpu":
        x = x.cpu()
    return jax.numpy.from_dlpack(x)


def _to_torch(array: Any, device: torch.device) -> Tensor:
    if not hasattr(array, "__dlpack__"):
        raise ModelError(f"A JAX function was expected to return an array of class scores, got {type(array).__name__}.")
    # A copy, because torch may change a tensor in place, while JAX assumes that its arrays are constant.
    return torch.utils.dlpack.from_dlpack(array).clone().to(device)


def _bytes_of(jax: Any, params: Any) -> bytes:
    leaves, structure = jax.tree_util.tree_flatten(params)
    parts = [str(structure).encode()]
    for leaf in leaves:
        array = jax.numpy.asarray(leaf)
        parts += [f"{array.shape} {array.dtype}".encode(), jax.device_get(array).tobytes()]
    return b"\n".join(parts)
