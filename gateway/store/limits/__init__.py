"""Limits, budgets, prices, and what is left and spent of them.

key_terms  limits and budgets that bind a key; prices of models
counters   what replicas share: buckets, requests in progress, spending; background responses
alerts     alerts that were reached, and who was told
"""
