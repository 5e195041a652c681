"""Limits, budgets and prices of tenants, projects and keys: rules and numbers without I/O.

rules      limits and budgets, as they are looked up with a key
accounting the gates of requests, the counts of this process for them, and headroom
buckets    token buckets, shared by replicas or of this process alone
money      prices in nano-dollars, intervals of budgets, and spending in them
stored_bytes  stored bytes: the last measurement, and additions since
headers    the `x-ratelimit-*` headers of answers
refusal    errors for refused requests
"""
