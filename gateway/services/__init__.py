"""Use cases of the gateway, for its edge: one function is one use case."""
