"""Settings for all tests: a fixed random stream, one thread, and hypothesis without a clock."""

import pytest
import torch
from hypothesis import settings

from tests.browsing import browser, watch

__all__ = ["browser", "watch"]

settings.register_profile("deepfool", deadline=None, max_examples=30, derandomize=True)
settings.load_profile("deepfool")
torch.set_num_threads(1)  # the networks here are small: threads would wait for each other


@pytest.fixture(autouse=True)
def fixed_random_stream():
    torch.manual_seed(0)
