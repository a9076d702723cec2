"""One smoke reproduction for all tests here, and the browser of the report's tests."""

import pytest

from deepfool.experiments import reproduce
from tests.reporting.conftest import browser, watch

__all__ = ["browser", "watch"]


@pytest.fixture(scope="session")
def smoke(tmp_path_factory):
    """(folder, the steps that were told)."""
    out, steps = tmp_path_factory.mktemp("reproduction") / "out", []
    reproduce(out, scale="smoke", on_progress=steps.append)
    return out, steps
