"""Harden a network on DeepFool's perturbations, and check with another attack whether the gain is real."""

import deepfool

data = deepfool.datasets.load("mnist-sample")
train = data.batch(range(500)), data.labels[:500]
test = data.batch(range(500, 1000)), data.labels[500:]

tuned = deepfool.finetune(
    "fc500-mnist", train, test=test, perturb="deepfool", epochs=3, judges=("deepfool", "smallest"), judged=25,
    cache="runs/finetuning",
)  # fmt: skip
print("epoch  test error  rho_adv by deepfool  by smallest")
for epoch in tuned.epochs:
    print(f"{epoch.epoch:5}  {epoch.test_error:10.3f}  {epoch.rho['deepfool']:19.4f}  {epoch.rho['smallest']:11.4f}")

before, after = tuned.epochs[0], tuned.epochs[-1]
gains = {judge: after.rho[judge] / before.rho[judge] - 1 for judge in before.rho}
print(", ".join(f"{judge} sees {gain:+.0%}" for judge, gain in gains.items()))
if any(after.censored.values()):
    print("some samples were not fooled afterwards: look for masked gradients before you believe the gain")
