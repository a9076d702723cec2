"""A gate for CI: measure the candidate, check the agreed conditions, exit with 1 if one of them does not hold."""

import sys
from pathlib import Path

import deepfool
from deepfool.metrics.gates import check, to_junit

AGREED = {"min_rho": 0.15, "max_fooled": "0.3@eps=0.8", "min_accuracy": "0.97"}


def main(model: str = "lenet-mnist") -> int:
    run = deepfool.evaluate(model, "mnist-sample", out=f"runs/gate-{model}", limit=100)
    verdicts = check(run, **AGREED)
    Path("runs/robustness.xml").write_text(to_junit(verdicts, model), encoding="utf-8")
    for verdict in verdicts:
        print(f"{'passed' if verdict.passed else 'FAILED'}  {verdict.name}: {verdict.why}")
    return 0 if all(verdict.passed for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
