"""RECORDS: a run is a folder; what it holds, how it is measured, and how it is checked."""
