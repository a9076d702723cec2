"""The file server and the small data set of the data tests serve here too."""

from tests.datasets.conftest import server, tiny

__all__ = ["server", "tiny"]
