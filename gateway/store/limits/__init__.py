"""Limits, budgets, prices, and what is left and spent of them.

rules    limits, budgets and alerts, for operators and for the look-up of a key
prices   prices of models
counters what replicas share: buckets, what is under way, what is spent
alerts   alerts that were reached, and whether they were told
"""
