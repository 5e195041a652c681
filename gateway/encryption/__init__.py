"""Content at rest: each tenant's is sealed with keys of its own, which a provider wraps."""
