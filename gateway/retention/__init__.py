"""Retention of stored data: sweeps, erasure, removal with a tenant, export."""
