"""Limits, budgets, prices, and what is left and spent of them.

rules      limits and budgets that bind a key
prices     prices of models
counters   what replicas share: buckets, requests in progress, spending
background background responses, counted in their rows
storage    measurements of stored bytes
alerts     alerts that were reached, and who was told
"""
