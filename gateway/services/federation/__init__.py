"""Credentials that issuers of tenants made: bearer tokens of end users, workload identity."""
