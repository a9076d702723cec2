"""The file server and the small data set of the data tests serve here too."""

import pytest

from tests.datasets.conftest import server, tiny

__all__ = ["server", "tiny"]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path_factory, monkeypatch):
    """Some commands write into the current folder."""
    monkeypatch.chdir(tmp_path_factory.mktemp("here"))
