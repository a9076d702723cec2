"""Settings for tests and doctests alike: a fixed random stream, one thread unless told otherwise, no clock."""

import importlib.util
import os

import pytest
import torch
from hypothesis import settings

# These modules are a subclass of something in a library that is not always there.
collect_ignore = [
    f"src/deepfool/integrations/{file}"
    for file, library in (("lightning.py", "pytorch_lightning"), ("transformers.py", "transformers"))
    if importlib.util.find_spec(library) is None
]

settings.register_profile("deepfool", deadline=None, max_examples=30, derandomize=True)
settings.load_profile("deepfool")
# The networks here are small: threads would wait for each other. `make test-portable` asks for two all the same.
torch.set_num_threads(int(os.environ.get("DEEPFOOL_TEST_THREADS", "1")))


@pytest.fixture(autouse=True)
def fixed_random_stream():
    """What an example draws does not depend on which others ran before it."""
    torch.manual_seed(0)
