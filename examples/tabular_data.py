"""A scikit-learn classifier on a table: the exact distance to its boundary, and features that must not change."""

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

import deepfool

table = load_breast_cancer()
x = torch.as_tensor(StandardScaler().fit_transform(table.data))  # in standard deviations, so that features compare
estimator = LogisticRegression().fit(x, table.target)
model = deepfool.models.as_module(estimator)  # one affine layer, checked against decision_function

found = deepfool.deepfool(model, x, overshoot=1e-6)
exact = deepfool.affine(model.weight[0], model.bias, x)
print(f"{found}; off the exact answer by at most {(found.norm - exact.norm).abs().max():.1e}")

nearest = found.norm.argmin()
print(f"nearest to the boundary: row {nearest}, {found.norm[nearest]:.3f} standard deviations away")
for feature in found.r[nearest].abs().topk(3).indices.tolist():
    print(f"  {table.feature_names[feature]:24} {found.r[nearest, feature]:+.4f}")

free = torch.tensor([name.endswith("error") for name in table.feature_names])  # the others stay as they are
kept = deepfool.deepfool(model, x, mask=free, bounds=(x.min(0).values, x.max(0).values))
print(f"with the 'error' features alone, inside what the table has seen: {kept}")
print(f"where nothing was found: {sorted({reason for reason in kept.reason if reason})}")
