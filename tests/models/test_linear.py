from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression, Perceptron, RidgeClassifier, SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, PolynomialFeatures, StandardScaler
from sklearn.svm import SVC, LinearSVC
from torch import nn

from deepfool.errors import InputError, MissingExtraError
from deepfool.models.linear import from_sklearn
from deepfool.models.sources import as_module, resolve

IMAGES, LABELS = load_digits(return_X_y=True)
IMAGES = IMAGES[:600] / 16
LABELS = LABELS[:600]
ESTIMATORS = [
    LogisticRegression(max_iter=1000),
    LinearSVC(max_iter=10000),
    RidgeClassifier(),
    SGDClassifier(random_state=0),
    Perceptron(random_state=0),
    LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.1),
]


def named(estimator: object) -> str:
    return type(estimator).__name__


@pytest.mark.parametrize("two", [False, True], ids=["ten classes", "two classes"])
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=named)
def test_scores_are_the_decision_function(estimator, two: bool, gradients):
    labels = np.where(LABELS < 5, "low", "high") if two else LABELS
    estimator.fit(IMAGES, labels)
    source = resolve(estimator)
    ours = source.module(torch.tensor(IMAGES)).detach().numpy()
    theirs = estimator.decision_function(IMAGES)
    np.testing.assert_allclose(ours[:, 0] if two else ours, theirs, rtol=0, atol=1e-6)
    assert ours.shape == (600, 1 if two else 10)
    assert source.classes == (("high", "low") if two else tuple("0123456789"))
    assert source.input_shape == (64,)
    gradients(source.module, torch.tensor(IMAGES[:2]))


@pytest.mark.parametrize(
    "scaler",
    [
        StandardScaler(),
        StandardScaler(with_mean=False),
        StandardScaler(with_std=False),
        MinMaxScaler((-1, 2)),
        MaxAbsScaler(),
    ],
    ids=str,
)
def test_pipelines_of_scalers_fold_into_one_layer(scaler):
    rows = IMAGES * 7 + 3
    pipeline = make_pipeline(scaler, "passthrough", StandardScaler(), LogisticRegression(max_iter=1000)).fit(
        rows, LABELS
    )
    module = from_sklearn(pipeline)
    assert isinstance(module, nn.Linear)  # one affine layer: the closed form applies
    np.testing.assert_allclose(
        module(torch.tensor(rows)).detach().numpy(), pipeline.decision_function(rows), rtol=0, atol=1e-6
    )


def test_a_pipeline_may_end_in_a_pipeline():
    inner = make_pipeline(MinMaxScaler(), LinearSVC(max_iter=10000))
    pipeline = make_pipeline(StandardScaler(), inner).fit(IMAGES, LABELS)
    np.testing.assert_allclose(
        from_sklearn(pipeline)(torch.tensor(IMAGES)).detach().numpy(), pipeline.decision_function(IMAGES), atol=1e-6
    )


def test_images_and_other_precisions_go_in():
    estimator = LogisticRegression(max_iter=1000).fit(IMAGES, LABELS)
    images = torch.tensor(IMAGES, dtype=torch.float32).view(-1, 1, 8, 8)
    theirs = estimator.decision_function(images.flatten(1).double().numpy())
    assert from_sklearn(estimator)(images).dtype == torch.float64
    np.testing.assert_allclose(from_sklearn(estimator)(images).detach().numpy(), theirs, atol=1e-6)
    single = from_sklearn(estimator, dtype=torch.float32)
    assert single(images).dtype == torch.float32
    np.testing.assert_allclose(single(images).detach().numpy(), theirs, atol=1e-4)


def test_sparse_coefficients_and_no_intercept():
    sparse = SGDClassifier(random_state=0, penalty="l1").fit(IMAGES, LABELS).sparsify()
    np.testing.assert_allclose(
        as_module(sparse)(torch.tensor(IMAGES)).detach().numpy(), sparse.decision_function(IMAGES), atol=1e-6
    )
    through = LogisticRegression(max_iter=1000, fit_intercept=False).fit(IMAGES, LABELS)
    np.testing.assert_allclose(
        as_module(through)(torch.tensor(IMAGES)).detach().numpy(), through.decision_function(IMAGES), atol=1e-6
    )


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (SVC(kernel="linear"), "A scikit-learn linear classifier was expected"),
        (make_pipeline(PolynomialFeatures(1), LogisticRegression()), "StandardScaler, MinMaxScaler .* was expected"),
        (make_pipeline(MinMaxScaler(clip=True), LogisticRegression()), "without clip"),
    ],
    ids=["svc", "polynomial", "clip"],
)
def test_what_is_not_affine_is_refused(estimator, message: str):
    estimator.fit(IMAGES[:100, :4], LABELS[:100] % 2)
    with pytest.raises(InputError, match=message):
        as_module(estimator)


def test_what_is_not_fitted_is_refused():
    with pytest.raises(InputError, match="call fit first"):
        as_module(LogisticRegression())
    with pytest.raises(InputError, match="A fitted StandardScaler"):
        as_module(make_pipeline(StandardScaler(), LogisticRegression()))


def test_many_labels_per_row_are_refused():
    labels = np.stack([LABELS % 2, LABELS % 3 == 0], axis=1)
    with pytest.raises(InputError, match="one label per row"):
        as_module(RidgeClassifier().fit(IMAGES, labels))


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    estimator = LogisticRegression().fit([[0.0], [1.0]], [0, 1])
    monkeypatch.setitem(sys.modules, "sklearn.pipeline", None)
    with pytest.raises(MissingExtraError, match=r'pip install "deepfool\[sklearn\]"'):
        from_sklearn(estimator)
