"""Real runs to report on."""

import pytest

from deepfool import evaluate


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Small real runs: with perturbations, without, in another norm."""
    folder = tmp_path_factory.mktemp("runs")
    evaluate("lenet-mnist", "mnist-sample", out=folder / "lenet", limit=60, save_perturbations=True)
    evaluate("fc500-mnist", "mnist-sample", out=folder / "fc", limit=60)
    evaluate("fc500-mnist", "mnist-sample", out=folder / "linf", limit=60, p=float("inf"), bounds=(0, 1))
    return folder
