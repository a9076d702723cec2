"""Waiting for other processes without a say in how fast they are."""

import time

PATIENCE = 900
"""Seconds after which another process counts as hung. It only ends a test that would never end: what is slow passes."""


def wait_until(happened, process):
    """Look again and again until `happened()` is true; a process that ends before that is an error at once."""
    deadline = time.monotonic() + PATIENCE
    while not happened():
        if process.poll() is not None and not happened():
            out, err = process.communicate()
            raise AssertionError(f"the process ended early, with code {process.returncode}: {out or ''}{err or ''}")
        assert time.monotonic() < deadline, "the process hangs"
        time.sleep(0.005)
