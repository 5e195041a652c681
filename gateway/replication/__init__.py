"""Several replicas: leases of runs, takeover of abandoned work, and expiry."""
