"""A slice of the cases, each a test of its own; `make fuzz` runs more of them."""

import math
from dataclasses import replace

import pytest
import torch

from deepfool import Status
from tests.hostile.__main__ import main
from tests.hostile.cases import NORMS, Case
from tests.hostile.invariants import CHECKS, Snapshot, Trial, most_passes
from tests.hostile.models import KINDS
from tests.hostile.trial import OutOfTime, run_case, time_limit

SLICE = 3 * len(KINDS)
"""Every kind three times."""


def name(number):
    case = Case.draw(number)
    return f"{number}-{case.kind.name}-{case.attack}-{str(case.dtype).removeprefix('torch.')}"


@pytest.mark.parametrize("number", range(SLICE), ids=name)
def test_case(number):
    outcome = run_case(number)
    assert not outcome.violations, str(outcome)
