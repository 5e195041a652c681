"""The engine of runs: turns, checks of the output, failover between backends, ends of runs."""
