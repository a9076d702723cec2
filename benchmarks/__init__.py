"""Comparison with other libraries, in one run. They are installed in a separate environment: `make bench-attacks`."""
