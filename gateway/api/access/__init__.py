"""Access of requests: their keys, their clients' addresses, and the scopes of their keys."""
