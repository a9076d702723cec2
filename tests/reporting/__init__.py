"""Tests of what a run is shown as."""
