"""Limits, budgets and prices of tenants, projects and keys: rules and numbers without I/O.

rules      limits and budgets, as they are looked up with a key
accounting the gates of requests, all that this process counts for them, and what is left
buckets    token buckets, shared by replicas or of this process alone
money      prices in nano-dollars, intervals of budgets, and spending in them
stored_bytes  what is stored: the last measurement, and what came since
headers    the `x-ratelimit-*` headers of answers
refusal    errors for refused requests
"""
