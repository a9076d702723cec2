"""Tests of reports, tables and figures."""
