"""Limits, budgets, prices, and their use.

key_terms  limits and budgets that bind a key; prices of models
counters   counts shared by replicas: buckets, requests in progress, spending; background responses
alerts     alerts that were reached, and their deliveries
"""
