"""Several replicas: leases of runs, work nobody does, what has expired."""
