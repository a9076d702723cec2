"""Fifty clients at once for half a minute."""

from urllib.parse import urlsplit

import pytest
from benchmarks.live import load


@pytest.mark.slow
def test_a_crowd_is_answered_rightly_or_told_that_the_server_is_busy(lenet):
    found = load(urlsplit(lenet.url).netloc, lenet.process.pid, clients=50, seconds=30)
    before, most = found.pop("memory_before_mb"), found.pop("memory_most_mb")
    assert set(found) <= {"right", "busy"}, found
    assert found["right"] >= 1
    assert found["busy"] >= 1  # more ask at once than may wait
    assert most - before < 500, f"the server grew from {before} to {most} MB"
