"""Two runs for all trackers: one in which every search has an answer, and one in which some have none."""

import pytest
import torch

from deepfool import evaluate
from tests import nets


@pytest.fixture(scope="session")
def answered(tmp_path_factory):
    return evaluate(nets.small(), nets.points(30), out=tmp_path_factory.mktemp("runs") / "answered")


@pytest.fixture(scope="session")
def unanswered(tmp_path_factory):
    torch.manual_seed(0)
    run = evaluate(nets.Flat(), nets.points(30), out=tmp_path_factory.mktemp("runs") / "unanswered")
    assert 0 < run.records().censored.sum() < 30
    return run
