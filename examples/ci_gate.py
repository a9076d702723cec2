"""A gate for CI: measure the candidate, check the agreed conditions, exit with 1 if one of them does not hold."""

import sys
from pathlib import Path

import deepfool
from deepfool.metrics.gates import to_junit

AGREED = {"min_rho": 0.13, "max_fooled": "0.3@eps=0.8", "min_accuracy": "0.97"}


def main(model: str = "lenet-mnist") -> int:
    run = deepfool.evaluate(model, "mnist-sample", limit=100)
    verdicts = run.check(**AGREED)
    Path("runs/robustness.xml").write_text(to_junit(verdicts, model), encoding="utf-8")
    print(verdicts)
    return 0 if verdicts.passed else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
