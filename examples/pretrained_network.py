"""How small a perturbation changes the decisions of a shipped network? Three norms, four attacks."""

import math

import deepfool

model = deepfool.models.load("lenet-mnist")
data = deepfool.datasets.load("mnist-sample")
x = data.batch(range(10))  # (10, 1, 28, 28), in [0, 1]

print("DeepFool, norm by norm")
for p in (1, 2, math.inf):
    found = deepfool.deepfool(model, x, p=p)
    relative = found.norm / x.flatten(1).norm(p=p, dim=1)
    print(f"  l{p:<4} {found}  rho_adv {relative.mean():.3f}")

print("l2, attack by attack, pixels kept in [0, 1]")
for attack in (deepfool.deepfool, deepfool.superdeepfool, deepfool.ddn, deepfool.smallest):
    found = attack(model, x, bounds=(0, 1))
    passes = (found.forwards + found.backwards).float().mean()
    print(f"  {attack.__name__:14} mean norm {found.norm.mean():.3f}, {passes:.0f} passes per sample")

first = deepfool.smallest(model, x[:1], bounds=(0, 1))
print(
    f"The first digit, a {first.label.item()}, is taken for a {first.adv_label.item()} after {first.norm.item():.2f}."
)
