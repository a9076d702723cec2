"""scikit-learn's linear classifiers as one affine layer with scalers folded in, so that exact solutions apply."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from deepfool.errors import InputError, ModelError, require

PURPOSE = "a scikit-learn model"


class LinearScores(nn.Linear):
    """An affine map from flattened inputs to class scores, computed in the precision of its weights.

    `classes` are the estimator's labels. With two classes there is a single score, positive for the second.
    """

    def __init__(self, weight: np.ndarray[Any, Any], bias: np.ndarray[Any, Any], classes: tuple[str, ...]) -> None:
        rows, columns = weight.shape
        super().__init__(columns, rows, dtype=torch.float64)
        with torch.no_grad():
            self.weight.copy_(torch.as_tensor(weight))
            self.bias.copy_(torch.as_tensor(bias))
        self.classes = classes

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(1).to(self.weight.dtype))


def from_sklearn(estimator: Any, *, dtype: torch.dtype = torch.float64) -> LinearScores:
    """Turn a fitted linear classifier, or a Pipeline of scalers that ends in one, into a module.

    The module's scores are checked against the estimator's `decision_function` before it is returned.

    >>> from sklearn.linear_model import LogisticRegression
    >>> estimator = LogisticRegression().fit([[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1])
    >>> row = torch.tensor([[0.25]])
    >>> bool(abs(from_sklearn(estimator)(row).item() - estimator.decision_function(row)[0]) < 1e-6)
    True
    """
    scale, shift, final = _take_apart(estimator)
    weight, bias = _coefficients(final)
    # score = weight (scale x + shift) + bias
    module = LinearScores(weight * scale, weight @ np.broadcast_to(shift, weight.shape[1]) + bias, _labels(final))
    _check(estimator, module)
    return module.to(dtype)


def _take_apart(estimator: Any) -> tuple[Any, Any, Any]:
    """The combined scale and shift of the steps before the classifier, and the classifier."""
    pipeline = require("sklearn.pipeline", extra="sklearn", purpose=PURPOSE)
    if not isinstance(estimator, pipeline.Pipeline):
        return np.float64(1), np.float64(0), estimator
    scale, shift = np.float64(1), np.float64(0)
    *steps, (_, final) = estimator.steps
    for name, step in steps:
        factor, offset = _scaling(name, step)
        scale, shift = scale * factor, shift * factor + offset
    inner_scale, inner_shift, final = _take_apart(final)  # a pipeline may end in a pipeline
    return scale * inner_scale, shift * inner_scale + inner_shift, final


def _scaling(name: str, step: Any) -> tuple[Any, Any]:
    preprocessing = require("sklearn.preprocessing", extra="sklearn", purpose=PURPOSE)
    if step is None or step == "passthrough":
        return np.float64(1), np.float64(0)
    if isinstance(step, preprocessing.StandardScaler) and hasattr(step, "n_features_in_"):
        factor = 1 / step.scale_ if step.with_std else np.float64(1)
        return factor, -step.mean_ * factor if step.with_mean else np.float64(0)
    if isinstance(step, preprocessing.MaxAbsScaler) and hasattr(step, "scale_"):
        return 1 / step.scale_, np.float64(0)
    if isinstance(step, preprocessing.MinMaxScaler) and hasattr(step, "scale_") and not step.clip:
        return step.scale_, step.min_
    raise InputError(
        f"A fitted StandardScaler, MinMaxScaler (without clip) or MaxAbsScaler was expected as step {name!r}, "
        f"got {step!r}.",
        hint="other steps need an nn.Module of your own",
    )


def _coefficients(estimator: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    base = require("sklearn.linear_model._base", extra="sklearn", purpose=PURPOSE)
    if not isinstance(estimator, base.LinearClassifierMixin):
        raise InputError(
            f"A scikit-learn linear classifier was expected, got {estimator!r}.",
            hint="for example LogisticRegression, LinearSVC, RidgeClassifier, SGDClassifier or Perceptron",
        )
    if not hasattr(estimator, "coef_"):
        raise InputError(f"A fitted estimator was expected, got {estimator!r}.", hint="call fit first")
    coefficients = estimator.coef_
    if hasattr(coefficients, "toarray"):  # after sparsify()
        coefficients = coefficients.toarray()
    weight = np.atleast_2d(np.asarray(coefficients, dtype=np.float64))
    bias = np.broadcast_to(np.asarray(estimator.intercept_, dtype=np.float64), weight.shape[0])
    return weight, bias


def _labels(estimator: Any) -> tuple[str, ...]:
    return tuple(str(label) for label in estimator.classes_)


def _check(estimator: Any, module: LinearScores) -> None:
    rows = np.random.default_rng(0).normal(size=(8, module.in_features))
    theirs = estimator.decision_function(rows)
    ours = module(torch.as_tensor(rows)).detach().numpy()
    if theirs.size != ours.size or module.out_features != (1 if len(module.classes) == 2 else len(module.classes)):
        raise InputError(
            f"{type(estimator).__name__} was expected to give one label per row, got scores of shape {theirs.shape}.",
            hint="multi-label and one-vs-one classifiers have no single set of class scores",
        )
    scale = max(1.0, float(np.abs(theirs).max()))
    if not np.allclose(theirs.reshape(ours.shape), ours, rtol=0, atol=1e-6 * scale):
        raise ModelError(f"The scores of {type(estimator).__name__} are not the affine map of its coefficients.")
