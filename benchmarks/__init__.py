"""Side by side with the peers, in one run. The peers live in an environment of their own: `make bench-attacks`."""
