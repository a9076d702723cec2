"""Fixtures that tests in several folders share; the settings are in the conftest.py of the project."""

from tests.browsing import browser, watch

__all__ = ["browser", "watch"]
