"""One smoke reproduction for all tests here."""

import pytest

from deepfool.experiments import reproduce


@pytest.fixture(scope="session")
def smoke(tmp_path_factory):
    """(folder, the reported steps)."""
    out, steps = tmp_path_factory.mktemp("reproduction") / "out", []
    reproduce(out, scale="smoke", on_progress=steps.append)
    return out, steps
