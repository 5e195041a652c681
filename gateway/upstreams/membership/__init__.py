"""Membership of the pool: sources list the backends, and the pool follows."""
